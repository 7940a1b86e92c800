"""Tables, columns and their versions: the shape that log rows and chunk rows share."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
import pyarrow as pa

from dblog_core.model import table_names


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table of the source: `schema` is the database on MySQL and MariaDB. Its text tells it from every other."""

    schema: str
    name: str

    def __str__(self) -> str:
        return table_names.join(self.schema, self.name)

    @classmethod
    def parse(cls, text: str) -> TableName:
        """`SCHEMA.TABLE` as `str` writes it (see `dblog_core.model.table_names`). Raises ValueError on any other
        shape."""
        return cls(*table_names.split(text))

    @property
    def in_lower_case(self) -> TableName:
        """One name for all that differ in upper and lower case alone."""
        return TableName(to_lower_case(self.schema), to_lower_case(self.name))


def to_lower_case(name: str) -> str:
    """A name in lower case: character by character, as servers do it that do not tell the two apart."""
    return name.lower() if name.isascii() else "".join(character.lower()[0] for character in name)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, the source's own type text, and the Arrow type of its values everywhere after decoding.

    `or_null`: dates and timestamps that the type does not hold are read as NULL; `hidden`: no message shows a value.
    Neither is part of the shape.
    """

    name: str
    source_type: str
    type: pa.DataType
    or_null: bool = field(default=False, compare=False)
    hidden: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class TableSchema:
    """One version of a table's shape. `key` names the key columns in key order; empty if the table has none."""

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def __hash__(self) -> int:
        # What is equal has one fingerprint, and a hash over all columns is looked up for every batch of every table.
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over table, column names, Arrow types and key: equal in log and catalogue for one shape.

        The source's own type text stays out: a log names `varchar` in bytes where the catalogue counts characters.
        """
        shape = [str(self.table), [[c.name, str(c.type)] for c in self.columns], list(self.key)]
        return hashlib.blake2b(orjson.dumps(shape), digest_size=8).hexdigest()

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of a row image."""
        return pa.schema([pa.field(c.name, c.type) for c in self.columns])

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        by_name = {c.name: c for c in self.columns}
        return tuple(by_name[name] for name in self.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": [self.table.schema, self.table.name],
            "columns": [{"name": c.name, "source_type": c.source_type, "type": str(c.type)} for c in self.columns],
            "key": list(self.key),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TableSchema:
        return cls(
            table=TableName(*data["table"]),
            columns=tuple(Column(c["name"], c["source_type"], parse_type(c["type"])) for c in data["columns"]),
            key=tuple(data["key"]),
        )


_TYPES: dict[str, pa.DataType] = {
    str(t): t
    for t in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
    )
}  # fmt: skip
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")


def parse_type(text: str) -> pa.DataType:
    """The Arrow type that prints as `text`. Raises ValueError for a type that is never staged."""
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    try:
        return _TYPES[text]
    except KeyError:
        raise ValueError(f"no staged column has the type {text!r}") from None
