"""Minima, maxima and null counts of a data file, as Delta's log has them: never narrower than the values.

A reader leaves out a file by them, so a bound that cannot be given exactly is made wider, or left out: text is cut at
32 characters, timestamps are given in milliseconds, a column with NaN or an infinite value has no bounds. Source:
PROTOCOL.md, "Per-file Statistics".
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.shape import DeltaColumn, Shape, Stands
from dblog_core.interfaces import Json
from dblog_core.rows.variant_encoding import VARIANT

PREFIX = 32
"""Characters of a text that its bounds have."""
HIGHEST = "\U0010ffff"
_COLUMNS = 32  # that have statistics, where the table does not say otherwise
_LOOSE = ',"tightBounds":false}'
_FIRST_YEAR_US = -62_135_596_800_000_000  # 0001-01-01
_LAST_US = 253_402_300_799_999_000  # the last millisecond of the year 9999
_DAY_US = 86_400_000_000
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # printed with or without its zone

Ends = tuple[Any, Any]
"""The lowest and the highest value as JSON has them; None: not given."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What a file's statistics say of a column; None: nothing."""

    lowest: Any
    highest: Any
    nulls: int | None

    @classmethod
    def of(cls, statistics: str | None, column: str) -> Self:
        """`column`: its physical name."""
        fields = load_json(statistics)
        return cls(*((fields.get(kind) or {}).get(column) for kind in ("minValues", "maxValues", "nullCount")))


class FileStatistics:
    """The statistics of a file that is written part by part."""

    def __init__(self, shape: Shape, configuration: Mapping[str, str]) -> None:
        self._columns = [column.physical for column in columns_with_statistics(shape, configuration)]
        self._rows = 0
        self._nulls = dict.fromkeys(self._columns, 0)
        self._ends: dict[str, Ends] = {}

    def add(self, rows: pa.Table) -> None:
        """Takes in a part of the file's rows."""
        self._rows += len(rows)
        for name in self._columns:
            values = rows[name]
            self._nulls[name] += values.null_count
            if values.null_count < len(values):
                ends = bounds(values)
                self._ends[name] = _join_ends(self._ends[name], ends) if name in self._ends else ends

    def json(self) -> str:
        """Those of all rows that were taken in."""
        low = {name: ends[0] for name, ends in self._ends.items() if ends[0] is not None}
        high = {name: ends[1] for name, ends in self._ends.items() if ends[1] is not None}
        fields = {"numRecords": self._rows, "minValues": low, "maxValues": high, "nullCount": self._nulls}
        return dump_json({**fields, "tightBounds": True})


def _join_ends(one: Ends, other: Ends) -> Ends:
    """Those of both parts: what one of them does not give, nobody knows. Texts of days and times are in their order."""
    low = None if one[0] is None or other[0] is None else min(one[0], other[0])
    high = None if one[1] is None or other[1] is None else max(one[1], other[1])
    return low, high


def columns_with_statistics(shape: Shape, configuration: Mapping[str, str]) -> list[DeltaColumn]:
    """The columns that have statistics: those that the table names, or its first ones. Nested ones have none, nor those
    that the log has whole, or that no reader knows; VARIANTs have a count of NULLs."""
    in_files = [column for column in shape if column.stands is Stands.IN_FILES]
    simple = [column for column in in_files if column.type == VARIANT or not pa.types.is_nested(column.type)]
    if named := configuration.get("delta.dataSkippingStatsColumns"):
        chosen = {name.strip().strip("`") for name in named.split(",")}
        return [column for column in simple if column.name in chosen]
    indexed = int(configuration.get("delta.dataSkippingNumIndexedCols", _COLUMNS))
    first = in_files if indexed < 0 else in_files[:indexed]
    return [column for column in simple if column in first]


def loosen_bounds(statistics: str | None, rows: int) -> str:
    """The statistics of a file of `rows` rows that has got a vector: its bounds hold for the rows that are left."""
    # As this function leaves them: they are not read again with each commit.
    if statistics and statistics.endswith(_LOOSE) and count_rows(statistics) == rows:
        return statistics
    fields = load_json(statistics)
    if fields.get("tightBounds") is False and fields.get("numRecords") == rows:
        assert statistics is not None
        return statistics
    # Rows die without a look at the bounds: these still hold, and are no longer exact.
    return dump_json({**fields, "numRecords": rows, "tightBounds": False})


def count_rows(statistics: str | None) -> int | None:
    """How many rows a file has by its statistics."""
    if statistics is None:
        return None
    # It comes first in what all writers write, and the rest may be long.
    if statistics.startswith('{"numRecords":') and (end := statistics.find(",", 14)) > 0:
        number = statistics[14:end]
        if number.isascii() and number.isdigit():
            return int(number)
    count = load_json(statistics).get("numRecords")
    return None if count is None else int(count)


def load_json(statistics: str | None) -> Json:
    """Statistics from their JSON; numbers with a fraction are exact."""
    fields = json.loads(statistics, parse_float=Decimal) if statistics else {}
    return fields if isinstance(fields, dict) else {}


def dump_json(value: Any) -> str:
    """JSON in which a Decimal is a number with all its digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(k))}:{dump_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump_json, value)) + "]"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


def has_bounds(kind: pa.DataType) -> bool:
    """Whether Delta keeps minima and maxima of a type."""
    return not (pa.types.is_boolean(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind))


def bounds(values: pa.ChunkedArray) -> Ends:
    """Those of a column with a value."""
    kind = values.type
    if not has_bounds(kind):
        return None, None
    if pa.types.is_timestamp(kind):
        return _times(values, "Z" if kind.tz else "")
    if pa.types.is_date(kind):
        return _days(values)
    ends = pc.min_max(values)
    low = ends["min"].as_py()
    high = ends["max"].as_py()
    if pa.types.is_string(kind):
        return low[:PREFIX], _upper(high)
    if pa.types.is_floating(kind):
        # Spark orders NaN above every number: bounds without it would have readers skip the file.
        exact = not pc.any(pc.is_nan(values)).as_py() and math.isfinite(low) and math.isfinite(high)
        return (low, high) if exact else (None, None)
    return low, high


def _upper(text: str) -> str | None:
    """A short text that is not below a long one."""
    if len(text) <= PREFIX:
        return text
    # The prefix alone lies below the text, and readers would skip the file.
    upper = text[:PREFIX] + HIGHEST
    return upper if upper.encode() >= text.encode() else None


def _days(values: pa.ChunkedArray) -> Ends:
    """Readers print and read years of four digits alike, and others not."""
    ends = pc.min_max(values.cast(pa.int32()))
    low = ends["min"].as_py()
    high = ends["max"].as_py()
    first = _FIRST_YEAR_US // _DAY_US
    last = _LAST_US // _DAY_US
    return (
        str(_EPOCH.date() + dt.timedelta(days=low)) if first <= low <= last else None,
        str(_EPOCH.date() + dt.timedelta(days=high)) if first <= high <= last else None,
    )


def _times(values: pa.ChunkedArray, zone: str) -> Ends:
    ends = pc.min_max(values.cast(pa.int64()))
    # Statistics have milliseconds: rounded outwards, so that no value lies beyond them.
    low = ends["min"].as_py() // 1000 * 1000
    high = -(-ends["max"].as_py() // 1000) * 1000
    return (
        _print_time(low) + zone if _FIRST_YEAR_US <= low <= _LAST_US else None,
        _print_time(high) + zone if _FIRST_YEAR_US <= high <= _LAST_US else None,
    )


def _print_time(microseconds: int) -> str:
    return (_EPOCH + dt.timedelta(microseconds=microseconds)).isoformat(timespec="milliseconds")
