"""What a source's catalogue says of the rows of a table: two stamps of it show a change of rows that no log has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ColumnStamp:
    """One column.

    `number` is never used again in its table. `labels` are those of an enum, by their ids. `type_id` and `modifier` say
    its type and length. `written` changes whenever the description of the column is written.
    """

    number: int
    labels: Mapping[str, str]
    type_id: int
    modifier: int
    written: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """What tells it from another column, and from itself under another type."""
        return self.number, self.type_id, self.modifier

    @property
    def description(self) -> tuple[int, int, str]:
        """What changes whenever ALTER TABLE may have changed the column's values."""
        return self.type_id, self.modifier, self.written

    @classmethod
    def from_json(cls, data: list[Any]) -> Self:
        number, labels, type_id, modifier, written, *_ = data  # a later version may write more
        return cls(number, labels, type_id, modifier, written)

    def to_json(self) -> list[Any]:
        return [self.number, dict(self.labels), self.type_id, self.modifier, self.written]


@dataclass(frozen=True, slots=True)
class PublicationStamp:
    """How a publication shows one table in the log.

    `server` is its major version. `publication` is never used again there. `options` are those that leave out no row.
    `written` changes whenever the publication is altered, and `member` whenever the table's part in it is. `lacks` says
    what the log does not show of the table, in words, empty for nothing; `fix` is the statement that repairs it.
    """

    server: int
    publication: int
    options: str
    written: str
    member: str
    lacks: str
    fix: str = field(default="", compare=False)

    @classmethod
    def from_json(cls, data: list[Any]) -> Self:
        server, publication, options, written, member, lacks, *_ = data  # a later version may write more
        return cls(server, publication, options, written, member, lacks)

    def to_json(self) -> list[Any]:
        return [self.server, self.publication, self.options, self.written, self.member, self.lacks]


@dataclass(frozen=True, slots=True)
class LargeValues:
    """The relation of a table's large values (TOAST).

    `is_by_alter`: the transaction that made it gave it to the table too, as an ALTER TABLE does that writes all rows
    again.
    """

    relation: int
    is_by_alter: bool


@dataclass(frozen=True, slots=True)
class TableStamp:
    """One table: its id, its columns by name, the file of its rows (of each partition, if it has some) by the id of the
    table or partition, its large values, and how a publication shows it. The last two may be missing."""

    table: int
    columns: Mapping[str, ColumnStamp]
    files: Mapping[str, int]
    large_values: LargeValues | None = None
    shown: PublicationStamp | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        columns = {name: ColumnStamp.from_json(column) for name, column in data["columns"].items()}
        large = data.get("large_values")
        shown = data.get("shown")
        return cls(
            data["table"],
            columns,
            data["files"],
            None if large is None else LargeValues(*large[:2]),
            None if shown is None else PublicationStamp.from_json(shown),
        )

    def to_json(self) -> dict[str, Any]:
        columns = {name: column.to_json() for name, column in self.columns.items()}
        data = {"table": self.table, "columns": columns, "files": dict(self.files)}
        if self.large_values is not None:
            data["large_values"] = [self.large_values.relation, self.large_values.is_by_alter]
        if self.shown is not None:
            data["shown"] = self.shown.to_json()
        return data
