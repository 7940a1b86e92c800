"""A table's rows and lines in Avro: pure. Which schemas a shape has, and a line as the value and the key of a message.

    Key        the key's columns, never null
    Envelope   before, after: Value, each column null or of its type (so that columns may come and go)
               unchanged, key_only, moved_from: what is not in them; finished: the end of a dump
               source, op, ts_ms, ts_us: as in Debezium's envelope, with our position and offset

Numbers, text and bytes are what they are in staging; decimals, dates and times have Avro's logical types.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import fastavro
import orjson
import pyarrow as pa

from dblog_core.interfaces import Json
from dblog_core.model.events import FINISHED
from dblog_core.model.schema import TableName, TableSchema

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_DAY = dt.date(1970, 1, 1)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
_MICROSECOND = dt.timedelta(microseconds=1)
_PLAIN = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "int"),
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.string(): "string",
}
_SOURCE = [
    *({"name": name, "type": "string"} for name in ("version", "connector", "name")),
    {"name": "ts_ms", "type": "long"},
    {"name": "ts_us", "type": "long"},
    *({"name": name, "type": "string"} for name in ("snapshot", "schema", "table")),
    {"name": "txId", "type": ["null", "string"], "default": None},
    {"name": "position", "type": "string"},
    {"name": "offset", "type": "long"},
]
_FINISHED = [
    {"name": "dump", "type": "string"},
    {"name": "since", "type": "long"},
    {"name": "key_from", "type": ["null", "string"], "default": None},
    {"name": "key_to", "type": ["null", "string"], "default": None},
]


def avro_name(name: str) -> str:
    """A column's name as Avro takes it: a character that it does not take becomes `_u` and its code in hex."""
    legal_name = _NOT_IN_NAMES.sub(lambda match: f"_u{ord(match[0]):04x}", name)
    # Avro's names do not begin with a digit.
    return f"_{legal_name}" if legal_name[:1].isdigit() else legal_name


def key_schema(shape: TableSchema) -> Json:
    """Of the key of a message; the table must have one."""
    fields = [_field(column.name, _type(column.type)) for column in shape.key_columns]
    return {"type": "record", "name": "Key", "namespace": _namespace(shape.table), "fields": fields}


def value_schema(shape: TableSchema) -> Json:
    """Of the value of a message."""
    # Null and a default make every added or dropped column a compatible change for a registry.
    row = [_field(c.name, ["null", _type(c.type)], default=None) for c in shape.columns]
    value = {"type": "record", "name": "Value", "fields": row}
    finished = {"type": "record", "name": "Finished", "fields": _FINISHED}
    fields = [
        _field("before", ["null", value], default=None),
        _field("after", ["null", "Value"], default=None),
        _field("source", {"type": "record", "name": "Source", "fields": _SOURCE}),
        _field("op", "string"),
        _field("ts_ms", "long"),
        _field("ts_us", "long"),
        _field("unchanged", {"type": "array", "items": "string"}, default=[]),
        _field("key_only", "boolean", default=False),
        _field("moved_from", ["null", "Value"], default=None),
        _field("finished", ["null", finished], default=None),
    ]
    return {"type": "record", "name": "Envelope", "namespace": _namespace(shape.table), "fields": fields}


class Coder:
    """Writes what a schema describes, such as one that `key_schema` made, or that a registry had."""

    def __init__(self, schema: Json) -> None:
        self._schema = fastavro.parse_schema(schema)

    def encode(self, datum: Json) -> bytes:
        """Raises ValueError, TypeError or OverflowError where the datum is none of the schema."""
        out = io.BytesIO()
        # Strict: without it, a column that the schema lacks would be dropped in silence.
        fastavro.schemaless_writer(out, self._schema, datum, strict=True)
        return out.getvalue()


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows of one shape are read from a line."""

    columns: dict[str, tuple[str, Callable[[Any], Any]]]
    """By name: the name in Avro, and what makes a value of its JSON form."""

    def read(self, row: Json) -> Json:
        return {
            name: None if (value := row[column]) is None else of(value)
            for column, (name, of) in self.columns.items()
            if column in row
        }

    def read_with_nulls(self, row: Json) -> Json:
        """With null for what the row does not tell."""
        return {**dict.fromkeys(name for name, _ in self.columns.values()), **self.read(row)}


def rows_of(shape: TableSchema) -> Rows:
    """Raises ValueError where two columns have one name in Avro."""
    names = [avro_name(column.name) for column in shape.columns]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"columns of {shape.table} have one name in Avro: {', '.join(sorted(twice))}")
    return Rows({c.name: (name, _decoder_of(c.type)) for c, name in zip(shape.columns, names, strict=True)})


def envelope(line: Json, rows: Rows, *, source: str) -> Json:
    """The datum of a line. `source`: the configuration's name of the database."""
    table = TableName.parse(line["table"])
    before = line["before"]
    after = line["after"]
    microseconds = _microseconds(line["commit_time"])
    times = {"ts_ms": microseconds // 1000, "ts_us": microseconds}
    moved_from = line.get("moved_from")
    return {
        "before": None if before is None else _value(table, rows.read_with_nulls(before)),
        "after": None if after is None else _value(table, rows.read_with_nulls(after)),
        "source": {
            # Consumers of Debezium look at `snapshot`, `txId` and `ts_ms` here.
            "version": "1",
            "connector": "dblog",
            "name": source,
            **times,
            "snapshot": "true" if line["origin"] == "dump" else "false",
            "schema": table.schema,
            "table": table.name,
            "txId": line["transaction"],
            "position": line["position"],
            "offset": line["offset"],
        },
        "op": line["op"],
        **times,
        "unchanged": [rows.columns[name][0] for name in line["unchanged"]],
        # A server that logs keys alone (`REPLICA IDENTITY DEFAULT`) gives no other columns of a deleted row.
        "key_only": before is not None and len(before) < len(rows.columns),
        "moved_from": None if moved_from is None else _value(table, rows.read_with_nulls(moved_from)),
        "finished": _finished(line) if line["op"] == FINISHED else None,
    }


def _finished(line: Json) -> Json:
    """A key stays as JSON: a dump's range may be one of an older shape."""
    ends = {name: line.get(name) for name in ("key_from", "key_to")}
    texts = {name: None if end is None else orjson.dumps(end).decode() for name, end in ends.items()}
    return {"dump": line["dump"], "since": line["since"], **texts}


def _value(table: TableName, row: Json) -> tuple[str, Json]:
    """With its branch of the union, which fastavro would find by trying."""
    return f"{_namespace(table)}.Value", row


@lru_cache(maxsize=4096)
def _namespace(table: TableName) -> str:
    return f"{avro_name(table.schema)}.{avro_name(table.name)}"


def _field(name: str, kind: Any, **more: Any) -> Json:
    avro_field = avro_name(name)
    # The column's own name stands in `doc`, so that a reader can get it back.
    return {"name": avro_field, "type": kind, **more, **({"doc": name} if avro_field != name else {})}


def _type(kind: pa.DataType) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_floating(kind):
        return "float" if kind == pa.float32() else "double"
    if pa.types.is_binary(kind):
        return "bytes"
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    raise ValueError(f"no staged column has the type {kind}")


def _decoder_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes Avro's value of the JSON form."""
    if pa.types.is_floating(kind):
        return float  # NaN and infinities are text
    if pa.types.is_binary(kind):
        return base64.b64decode
    if pa.types.is_date(kind):
        # Days since 1970, as the logical type holds them.
        return lambda text: (dt.date.fromisoformat(text) - _FIRST_DAY).days
    if pa.types.is_timestamp(kind):
        return _microseconds
    if pa.types.is_decimal(kind):
        return Decimal
    return lambda value: value


def _microseconds(text: str) -> int:
    return (dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) - _EPOCH) // _MICROSECOND
