"""A table with a history, and what its history has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dblog_core.lake.lake_status import history_location
from dblog_core.model.schema import TableSchema
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

ITEMS = table("items", id=pa.int64(), v=pa.string(), big=pa.string())


def lines(lake: TestLake, schema: TableSchema) -> list[Row]:
    path = history_location(lake.location, schema.table)
    return [row.asDict(recursive=True) for row in lake.spark.read.format("delta").load(str(path)).collect()]


def history_rows(lake: TestLake, schema: TableSchema) -> list[tuple[Any, ...]]:
    """Offset, op and the row, in order."""
    names = [c.name for c in schema.columns]
    rows = sorted(lines(lake, schema), key=lambda row: row["_dblog_offset"])
    return [(row["_dblog_offset"], row["_dblog_op"], *(row[n] for n in names)) for row in rows]


def item(key: int, v: str | None = "v", big: str | None = "b") -> Row:
    return {"id": key, "v": v, "big": big}
