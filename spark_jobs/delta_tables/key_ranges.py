"""Literal ranges of a batch's keys: with them in the MERGE's condition, Delta leaves out the files that none touches.

The ranges hold every key of the batch, whatever else: a key outside of them would be inserted a second time. Where they
begin and end is a matter of cost alone: they leave out the widest gaps between the keys.
"""

from __future__ import annotations

import datetime as dt
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from dblog_core.model.schema import Column as SourceColumn
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import to_json
from spark_jobs.delta_tables.column_types import quote, spark_type

Range = tuple[Any, Any]
Ranges = tuple[Range, ...]

MOST = 16
"""Ranges of one column: each is compared with every row of the files that are read."""

_WIDE = 0.005  # of the whole, for a gap to be worth a range
_TEXTS = 20_000


def has_ranges(kind: pa.DataType) -> bool:
    """Whether the lake orders values of this type as we do, and keeps their ends for each file."""
    types = pa.types
    kinds = (types.is_integer, types.is_decimal, types.is_string, types.is_date, types.is_timestamp)
    return any(is_kind(kind) for is_kind in kinds)


def of_keys(keys: pa.StructArray, schema: TableSchema) -> dict[str, Ranges]:
    """Ranges by key column: several of the first one, which clusters the others, and the ends of those. `keys` may lack
    columns that have none (`has_ranges`)."""
    ranges: dict[str, Ranges] = {}
    for column in schema.key_columns:
        if has_ranges(column.type) and len(keys) and in_python(values := keys.field(column.name)):
            ranges[column.name] = _ranges(values, MOST if column is schema.key_columns[0] else 1)
    return ranges


def in_python(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether Python has these dates and times at all: its years go from 1 to 9999."""
    ends = pc.min_max(values)
    try:
        ends.as_py()
    except (ValueError, OverflowError):
        return False
    return True


def _ranges(values: pa.Array, most: int) -> Ranges:
    values = values.take(pc.sort_indices(values))
    last = len(values) - 1
    cuts = _wide_gaps(_places(values), most - 1) if most > 1 and last else []
    ends = [0, *(i for cut in cuts for i in (cut, cut + 1)), last]
    return tuple((values[a].as_py(), values[b].as_py()) for a, b in zip(ends[::2], ends[1::2], strict=True))


def _wide_gaps(places: np.ndarray[Any, Any], most: int) -> list[int]:
    """After which places the widest gaps lie, if they are worth it: together at least half of the whole."""
    whole = float(places[-1] - places[0])
    gaps = np.diff(places)
    widest = np.sort(np.argsort(gaps)[-most:])
    wide = [int(i) for i in widest if gaps[i] > whole * _WIDE]
    return wide if wide and sum(float(gaps[i]) for i in wide) >= whole / 2 else []


def _places(values: pa.Array) -> np.ndarray[Any, Any]:
    """Where sorted values lie on a line, roughly: it decides where the gaps are, never what a range holds."""
    if pa.types.is_string(values.type):
        return _text_places(values)
    kind = {4: pa.int32(), 8: pa.int64()}
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        values = values.view(kind[values.type.bit_width // 8])
    return np.asarray(values.cast(pa.float64(), safe=False))


def _text_places(values: pa.Array) -> np.ndarray[Any, Any]:
    """The six bytes after what all have in common, as a number."""
    if len(values) > _TEXTS:
        return np.zeros(len(values))
    texts = [text.encode() for text in values.to_pylist()]
    low = texts[0]
    high = texts[-1]
    common = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return np.array([int.from_bytes(text[common : common + 6].ljust(6, b"\0")) for text in texts], dtype=np.float64)


def within(column: Column, ranges: Ranges, kind: SourceColumn) -> Column:
    """Whether a value lies in one of the ranges, as Delta's data skipping reads it."""
    return reduce(Column.__or__, [column.between(literal(low, kind), literal(high, kind)) for low, high in ranges])


def literal(value: Any, column: SourceColumn) -> Column:
    if isinstance(value, dt.date):  # a datetime too: as text, so that no time zone of Spark's or Python's moves it
        return F.lit(to_json(value)).cast(spark_type(column.type))
    return F.lit(value)


def on_key(alias: str, ranges: dict[str, Ranges], schema: TableSchema) -> list[Column]:
    """The conditions of all ranges on a lake table's key."""
    return [
        within(F.col(f"{alias}.{quote(c.name)}"), ranges[c.name], c) for c in schema.key_columns if c.name in ranges
    ]
