"""What a source's catalogue says of the rows of a table: two stamps of it show a change of rows that no log has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

BUILT_IN = 10_000
"""PostgreSQL's own types have smaller ids: one of them is the same type, and prints the same text, at every look."""


@dataclass(frozen=True, slots=True)
class TypeStamp:
    """What the text of a column's values depends on beside the values.

    `base` is the innermost type below domains. `form` stands for it and all types that are reached from it, through
    arrays, domains, ranges and composites: what they consist of, and the functions that print them; it is empty for a
    type of the server's own. `labels` are those of all enums among these, by their ids; `label_writes` changes whenever
    a label is written. `is_enum`: the text is one of the labels.
    """

    base: int
    form: str
    labels: Mapping[str, str] = field(default_factory=dict)
    label_writes: Mapping[str, str] = field(default_factory=dict)
    is_enum: bool = False


@dataclass(frozen=True, slots=True)
class ColumnStamp:
    """One column.

    `number` is never used again in its table. `type_id` and `modifier` say its type and length. `written` changes
    whenever the description of the column is written. `prints`: None in a stamp of a former version that did not
    describe types; then `labels` has those of a column that is itself an enum.
    """

    number: int
    type_id: int
    modifier: int
    written: str
    prints: TypeStamp | None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        """What tells it from another column, and from itself under another type."""
        return self.number, self.type_id, self.modifier

    @property
    def description(self) -> tuple[int, int, str]:
        """What changes whenever ALTER TABLE may have changed the column's values."""
        return self.type_id, self.modifier, self.written

    @property
    def all_labels(self) -> Mapping[str, str]:
        return self.labels if self.prints is None else self.prints.labels

    @classmethod
    def from_json(cls, data: list[Any]) -> Self:
        number, labels, type_id, modifier, written, *more = data  # a later version may write more
        prints = None
        if len(more) >= 4:
            prints = TypeStamp(more[0], more[1], labels, more[2], more[3])
        elif type_id < BUILT_IN and not labels:
            prints = TypeStamp(type_id, "")
        return cls(number, type_id, modifier, written, prints, labels if prints is None else {})

    def to_json(self) -> list[Any]:
        data = [self.number, dict(self.all_labels), self.type_id, self.modifier, self.written]
        if self.prints is None or self.type_id < BUILT_IN:
            return data
        return [*data, self.prints.base, self.prints.form, dict(self.prints.label_writes), self.prints.is_enum]


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
    table or partition, its large values, how a publication shows it, and the numbers of columns that were dropped. The
    last three may be missing."""

    table: int
    columns: Mapping[str, ColumnStamp]
    files: Mapping[str, int]
    large_values: LargeValues | None = None
    shown: PublicationStamp | None = None
    dropped: tuple[int, ...] | None = None

    @property
    def listed(self) -> tuple[tuple[str, int, int], ...]:
        """The columns in the order of their numbers, as the log lists them: name, type's id and modifier."""
        in_order = sorted(self.columns.items(), key=lambda item: item[1].number)
        return tuple((name, column.type_id, column.modifier) for name, column in in_order)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        columns = {name: ColumnStamp.from_json(column) for name, column in data["columns"].items()}
        large = data.get("large_values")
        shown = data.get("shown")
        dropped = data.get("dropped")
        return cls(
            data["table"],
            columns,
            data["files"],
            None if large is None else LargeValues(*large[:2]),
            None if shown is None else PublicationStamp.from_json(shown),
            None if dropped is None else tuple(dropped),
        )

    def to_json(self) -> dict[str, Any]:
        columns = {name: column.to_json() for name, column in self.columns.items()}
        data = {"table": self.table, "columns": columns, "files": dict(self.files)}
        if self.large_values is not None:
            data["large_values"] = [self.large_values.relation, self.large_values.is_by_alter]
        if self.shown is not None:
            data["shown"] = self.shown.to_json()
        if self.dropped is not None:
            data["dropped"] = list(self.dropped)
        return data
