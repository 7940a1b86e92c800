"""Tables of several shapes, their rows, and what a lake and its history hold of them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dblog_core.lake.lake_status import TableStatus, history_location, read_status
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableSchema
from dblog_core.verify.judge.compared_table import ComparedTable
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.exact_values import MISFITS
from dblog_core.verify.pinned_version import Pin
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

OLD = table("t", id=pa.int64(), v=pa.string(), gone=pa.string())


NEW = table("t", id=pa.int64(), v=pa.string())


WIDE = table("t", id=pa.int64(), n=pa.decimal128(12, 2), d=pa.decimal128(9, 3), day=pa.timestamp("us"), f=pa.float64())


def old(key: int, v: str = "a", gone: str | None = "x") -> Row:
    return {"id": key, "v": v, "gone": gone}


def new(key: int, v: str = "a") -> Row:
    return {"id": key, "v": v}


def status(lake: TestLake) -> TableStatus:
    table_status = read_status(lake.location)
    assert table_status is not None
    return table_status.tables["shop.t"]


def history_rows(lake: TestLake, *names: str) -> list[tuple[Any, ...]]:
    """The history's lines, in order."""
    frame = lake.spark.read.format("delta").load(str(history_location(lake.location, OLD.table)))
    return [tuple(row[n] for n in names) for row in frame.orderBy("_dblog_offset").collect()]


def at_the_end(lake: TestLake, schema: TableSchema, before: tuple[int, int], *, key: str = "id") -> list[Row]:
    """What verify expects of the source: version and offset `before`, and what is staged since."""
    version, offset = before
    table_status = status(lake)
    pin = Pin(version, offset, table_status.segment, lake.build.offset)
    return sorted(expected_rows(lake, schema, pin), key=lambda row: int(row[key]))


def expected_rows(lake: TestLake, schema: TableSchema, pin: Pin) -> list[Row]:
    """The rows that verify compares with the source: those of the version, with what is staged since on top."""
    upto = lake.build.offset
    comparison = Comparison(schema, pin, (), upto, upto)
    compared = ComparedTable(lake.staging, lake.table(schema), schema, rows=0, pin=pin)
    compared.read_on(comparison)
    rows: list[Row] = []
    for sides in compared.parts(comparison, compared.sort_source([])):
        state = sides.state_at(upto, np.ones(sides.count, np.bool_))
        images = sides.images(upto, np.flatnonzero(state.exists))
        assert not any(images[MISFITS].to_pylist())
        rows += images.drop_columns([MISFITS]).to_pylist()
    return [{name: _as_spark_gives_it(value) for name, value in row.items()} for row in rows]


def _as_spark_gives_it(value: Any) -> Any:
    """Moments in UTC without the zone."""
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def drop_column(lake: TestLake) -> tuple[int, int]:
    """Rows of both shapes: 1 is not written again, 2 is written before the drop, 3 after it, 4 is seen by a dump."""
    build = lake.build
    for key in (1, 2, 3, 4):
        build.create(OLD, old(key))
    build.seal()
    lake.merge_well()
    before = (log.version(lake.table(OLD)) or 0, build.offset)
    build.update(OLD, old(2, "b", "y"))
    build.schema(NEW)
    build.update(NEW, new(3, "b"))
    build.create(NEW, new(5))
    build.seal()
    return before


def wide(key: int, n: str = "7") -> Row:
    return {"id": key, "n": Decimal(n), "d": Decimal("1.250"), "day": dt.datetime.fromisoformat("2026-01-31"), "f": 0.5}
