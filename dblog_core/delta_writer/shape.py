"""A table's columns as its log tells them: names, names in the files, ids and Arrow types.

Two kinds of columns stand beside those that a data file and the schema both have:

    of a partition   in the schema, and in no file: the log has the one value of all rows of a file
    of row tracking  in files, and not in the schema: the id of a row, and the version that last changed it, where they
                     are not those that the row's place says (PROTOCOL.md, "Row Tracking")
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

import orjson
import pyarrow as pa

from dblog_core.delta_writer.features import alter, check_column, refusal
from dblog_core.interfaces import Json
from dblog_core.rows.variant_encoding import VARIANT

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
    "variant": VARIANT,
}
_NAMES = {kind: name for name, kind in _SIMPLE.items()}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
PHYSICAL_NAME = "delta.columnMapping.physicalName"
COLUMN_ID = "delta.columnMapping.id"
_FIELD_ID = b"PARQUET:field_id"


class Stands(Enum):
    """Where the values of a column stand."""

    IN_FILES = auto()
    IN_LOG = auto()
    """The column is one of the table's partitions."""
    AS_ROW_ID = auto()
    AS_ROW_VERSION = auto()


TRACKS_ROWS = "delta.enableRowTracking"
_TRACKING = {
    "delta.rowTracking.materializedRowIdColumnName": Stands.AS_ROW_ID,
    "delta.rowTracking.materializedRowCommitVersionColumnName": Stands.AS_ROW_VERSION,
}
"""Properties that name the columns."""


@dataclass(frozen=True, slots=True)
class DeltaColumn:
    """A column; `physical` is its name in data files and statistics, `field` its Arrow field there (names of nested
    fields are physical too)."""

    name: str
    physical: str
    id: int | None
    field: pa.Field
    nullable: bool
    stands: Stands = Stands.IN_FILES

    @property
    def type(self) -> pa.DataType:
        return self.field.type


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of one version of a table. `by_id`: files name their columns by id; `tracking`: the columns by which
    rows are tracked, those of ids and of versions; none where they are not."""

    columns: tuple[DeltaColumn, ...]
    by_id: bool = False
    tracking: tuple[DeltaColumn, ...] = ()

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

    @property
    def partitions(self) -> list[DeltaColumn]:
        """The columns of which a file has one value."""
        return [column for column in self.columns if column.stands is Stands.IN_LOG]

    @property
    def columns_in_files(self) -> list[DeltaColumn]:
        """The columns that data files have."""
        return [column for column in self.columns if column.stands is not Stands.IN_LOG]

    @property
    def row_id(self) -> str | None:
        """The name of the column of ids; None where rows are not tracked."""
        return self.tracking[0].name if self.tracking else None

    def with_row_ids(self) -> Shape:
        """With the ids of tracked rows, of which new versions get another file."""
        return replace(self, columns=(*self.columns, *self.tracking[:1]))

    def with_tracking(self) -> Shape:
        """With all that tracked rows keep where they are copied."""
        return replace(self, columns=(*self.columns, *self.tracking))

    def arrow(self) -> pa.Schema:
        """The schema of its data files."""
        return pa.schema([column.field for column in self.columns_in_files])


def shape_of(metadata: Json, where: str) -> Shape:
    """The shape of a `metaData` action. Raises TableRefused for a column that this package does not write."""
    configuration = metadata.get("configuration") or {}
    mode = configuration.get("delta.columnMapping.mode", "none")
    fields = orjson.loads(metadata["schemaString"])["fields"]
    partitions = metadata.get("partitionColumns") or ()
    columns = tuple(_column(field, mode != "none", partitions, where) for field in fields)
    for column in columns:
        if column.stands is Stands.IN_LOG and not _is_printable(column.type):
            raise refusal(where, f"it is partitioned by {column.name}, a column of type {column.type}")
    return Shape(columns, by_id=mode == "id", tracking=tuple(_tracking(configuration, where)))


def _tracking(configuration: Mapping[str, str], where: str) -> Iterator[DeltaColumn]:
    if str(configuration.get(TRACKS_ROWS, "")).lower() != "true":
        return
    for name, stands in _TRACKING.items():
        if (physical := configuration.get(name)) is None:
            off = alter(where, f"SET TBLPROPERTIES ('{TRACKS_ROWS}' = 'false')")
            raise refusal(where, f"its rows are tracked, and its property {name} is missing", off)
        field = pa.field(physical, pa.int64())
        # No column of the schema has the name: it would be that of a file's column too.
        yield DeltaColumn(physical, physical, None, field, nullable=True, stands=stands)


def readable_shape_of(metadata: Json, names: Collection[str], where: str) -> Shape:
    """The columns of these names, for who reads them alone. Raises TableRefused for one that this package does not
    read."""
    mode = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
    fields = [field for field in orjson.loads(metadata["schemaString"])["fields"] if field["name"] in names]
    # What a writer must make or check is no matter for a reader.
    bare = ({**field, "metadata": _only_mapping(field.get("metadata") or {})} for field in fields)
    partitions = metadata.get("partitionColumns") or ()
    columns = tuple(_column(field, mode != "none", partitions, where) for field in bare)
    return Shape(columns, by_id=mode == "id")


def simple_type(name: str) -> pa.DataType | None:
    """The Arrow type of a Delta type without parts; None for one that is not known."""
    if (decimal := _DECIMAL.fullmatch(name)) is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _SIMPLE.get(name)


def name_of_type(kind: pa.DataType) -> str:
    """The Delta type with the values of an Arrow type."""
    return f"decimal({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else _NAMES[kind]


def column_names(metadata: Json) -> list[str]:
    """The names of all columns of a `metaData` action."""
    return [field["name"] for field in orjson.loads(metadata["schemaString"])["fields"]]


def _only_mapping(about: Json) -> Json:
    return {name: value for name, value in about.items() if name in (PHYSICAL_NAME, COLUMN_ID)}


def _column(schema_field: Json, mapped: bool, partitions: Collection[str], where: str) -> DeltaColumn:
    name = schema_field["name"]
    field = _field(schema_field, name, mapped, where)
    about = schema_field.get("metadata") or {}
    return DeltaColumn(
        name,
        field.name,
        about.get(COLUMN_ID) if mapped else None,
        field,
        nullable=bool(schema_field["nullable"]),
        stands=Stands.IN_LOG if name in partitions else Stands.IN_FILES,
    )


def _is_printable(kind: pa.DataType) -> bool:
    """Whether values of the type are read from texts as they were printed. Those of binary columns are not by all
    readers, and floating-point numbers have several texts: rows of one value would lie in several partitions."""
    is_kind = pa.types
    tests = (
        is_kind.is_string,
        is_kind.is_integer,
        is_kind.is_boolean,
        is_kind.is_date,
        is_kind.is_timestamp,
        is_kind.is_decimal,
    )
    return any(test(kind) for test in tests)


def _field(schema_field: Json, path: str, mapped: bool, where: str) -> pa.Field:
    about = schema_field.get("metadata") or {}
    check_column(path, about, where)
    # Where columns are mapped, files and statistics have physical names: a rename changes the log alone.
    physical = about.get(PHYSICAL_NAME) if mapped else schema_field["name"]
    if physical is None or (mapped and COLUMN_ID not in about):
        raise refusal(where, f"column {path} has no physical name and id, though the table maps its columns")
    ids = {_FIELD_ID: str(about[COLUMN_ID]).encode()} if mapped else None
    return pa.field(physical, _type(schema_field["type"], path, mapped, where), metadata=ids)


def _type(delta_type: str | Json, path: str, mapped: bool, where: str) -> pa.DataType:
    if isinstance(delta_type, str):
        if (kind := simple_type(delta_type)) is not None:
            return kind
        raise refusal(where, f"column {path} is of type {delta_type}")
    if delta_type["type"] == "struct":
        return pa.struct([_field(f, f"{path}.{f['name']}", mapped, where) for f in delta_type["fields"]])
    if delta_type["type"] == "array":
        return pa.list_(pa.field("element", _type(delta_type["elementType"], f"{path}.element", mapped, where)))
    if delta_type["type"] == "map":
        key = _type(delta_type["keyType"], f"{path}.key", mapped, where)
        return pa.map_(key, _type(delta_type["valueType"], f"{path}.value", mapped, where))
    raise refusal(where, f"column {path} is of type {delta_type['type']}")
