"""A table's columns as its log tells them: names, names in the files, ids and Arrow types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson
import pyarrow as pa

from dblog_core.delta_writer.features import check_column, refusal
from dblog_core.interfaces import Json

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_PHYSICAL = "delta.columnMapping.physicalName"
_ID = "delta.columnMapping.id"
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class DeltaColumn:
    """A column; `physical` is its name in data files and statistics, `field` its Arrow field there (names of nested
    fields are physical too)."""

    name: str
    physical: str
    id: int | None
    field: pa.Field
    nullable: bool

    @property
    def type(self) -> pa.DataType:
        return self.field.type


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of one version of a table. `by_id`: files name their columns by id."""

    columns: tuple[DeltaColumn, ...]
    by_id: bool = False

    def __iter__(self) -> Iterator[DeltaColumn]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> DeltaColumn:
        """The column of that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def arrow(self) -> pa.Schema:
        """The schema of its data files."""
        return pa.schema([column.field for column in self.columns])


def shape_of(metadata: Json, where: str) -> Shape:
    """The shape of a `metaData` action. Raises TableRefused for a column that this package does not write."""
    mode = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
    fields = orjson.loads(metadata["schemaString"])["fields"]
    return Shape(tuple(_column(field, mode != "none", where) for field in fields), by_id=mode == "id")


def _column(schema_field: Json, mapped: bool, where: str) -> DeltaColumn:
    field = _field(schema_field, schema_field["name"], mapped, where)
    about = schema_field.get("metadata") or {}
    return DeltaColumn(
        schema_field["name"], field.name, about.get(_ID) if mapped else None, field, bool(schema_field["nullable"])
    )


def _field(schema_field: Json, path: str, mapped: bool, where: str) -> pa.Field:
    about = schema_field.get("metadata") or {}
    check_column(path, about, where)
    # Where columns are mapped, files and statistics have physical names: a rename changes the log alone.
    physical = about.get(_PHYSICAL) if mapped else schema_field["name"]
    if physical is None or (mapped and _ID not in about):
        raise refusal(where, f"column {path} has no physical name and id, though the table maps its columns")
    ids = {_FIELD_ID: str(about[_ID]).encode()} if mapped else None
    return pa.field(physical, _type(schema_field["type"], path, mapped, where), metadata=ids)


def _type(delta_type: str | Json, path: str, mapped: bool, where: str) -> pa.DataType:
    if isinstance(delta_type, str):
        if (kind := _SIMPLE.get(delta_type)) is not None:
            return kind
        if (decimal := _DECIMAL.fullmatch(delta_type)) is not None:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        raise refusal(where, f"column {path} is of type {delta_type}")
    if delta_type["type"] == "struct":
        return pa.struct([_field(f, f"{path}.{f['name']}", mapped, where) for f in delta_type["fields"]])
    if delta_type["type"] == "array":
        return pa.list_(pa.field("element", _type(delta_type["elementType"], f"{path}.element", mapped, where)))
    if delta_type["type"] == "map":
        key = _type(delta_type["keyType"], f"{path}.key", mapped, where)
        return pa.map_(key, _type(delta_type["valueType"], f"{path}.value", mapped, where))
    raise refusal(where, f"column {path} is of type {delta_type['type']}")
