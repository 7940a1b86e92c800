"""Compares tables of a source with those of a lake, by readers that import nothing of the product."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.duckdb_reader import read_delta

META = ("_dblog_offset", "_dblog_position", "_dblog_commit_time", "_dblog_origin")
_SHOWN = 3  # rows of a difference
Row = dict[str, Any]


def read_lake(lake: Path, table: str) -> list[Row]:
    """The rows of SCHEMA.TABLE in a lake, with the columns that tell where each came from."""
    rows: list[Row] = read_delta(lake.joinpath(*table.split(".", 1))).to_pylist()
    return rows


def plain_value(value: object) -> object:
    """A value in one form, whichever driver has read it. Every digit, byte and moment counts."""
    if isinstance(value, bool):
        return int(value)  # MySQL has no other
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, dt.datetime):
        return (value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value).isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    return value if value is None or isinstance(value, int) else str(value)


def plain_rows(rows: list[Row]) -> Counter[str]:
    """Each row as text, and how often it is there."""
    return Counter(repr(sorted((name, plain_value(value)) for name, value in row.items())) for row in rows)


def compare(table: str, source: list[Row], lake: list[Row]) -> None:
    """Raises AssertionError where a row or a value differs, or where a lake row does not say where it came from."""
    values = [{name: value for name, value in row.items() if name not in META} for row in lake]
    in_source = plain_rows(source)
    in_lake = plain_rows(values)
    missing = list((in_source - in_lake).elements())
    extra = list((in_lake - in_source).elements())
    assert not missing and not extra, (
        f"{table}: {len(source)} rows in the source, {len(lake)} in the lake;\n"
        f"{len(missing)} are missing: {missing[:_SHOWN]}\n{len(extra)} are extra: {extra[:_SHOWN]}"
    )
    for row in lake:
        offset, position, commit_time, origin = (row[name] for name in META)
        assert offset > 0 and position and commit_time is not None and origin in ("log", "dump"), (table, row)
