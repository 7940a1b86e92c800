"""Delta tables of tests: made and changed by Spark, changed by our writer; and a model that says what is right."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyspark.sql import DataFrame, SparkSession

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from tests.duckdb_reader import read_delta

Row = dict[str, Any]
APP = "dblog:shop:shop.orders"
OFFSET = "_dblog_offset"
COLUMNS = {
    "id": ("BIGINT", pa.int64()),
    "flag": ("BOOLEAN", pa.bool_()),
    "tiny": ("TINYINT", pa.int8()),
    "small": ("SMALLINT", pa.int16()),
    "number": ("INT", pa.int32()),
    "single": ("FLOAT", pa.float32()),
    "double": ("DOUBLE", pa.float64()),
    "price": ("DECIMAL(38,10)", pa.decimal128(38, 10)),
    "cents": ("DECIMAL(9,2)", pa.decimal128(9, 2)),
    "day": ("DATE", pa.date32()),
    "at": ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
    "wall": ("TIMESTAMP_NTZ", pa.timestamp("us")),
    "note": ("STRING", pa.string()),
    "raw": ("BINARY", pa.binary()),
    OFFSET: ("BIGINT", pa.int64()),
}


def make_checkpoint(spark: SparkSession, path: Path) -> None:
    """By Spark, which removes old log with it."""
    jvm: Any = spark._jvm
    spark.read.format("delta").load(str(path))  # so that Delta has looked for the newest version
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path)).checkpoint()


def row(i: int, note: str, offset: int = 1) -> Row:
    """Every seventh row has NULLs, every fifth the values at an end."""
    if i % 7 == 6:
        return {"id": i, "note": note, OFFSET: offset}
    far = i % 5 == 4
    return {
        "id": i,
        "flag": i % 2 == 0,
        "tiny": -128 if far else i % 100,
        "small": 32767 if far else i,
        "number": -(2**31) if far else i,
        "single": float(np.float32(-3.4e38 if far else i / 4)),
        "double": 5e-324 if far else i / 3,
        "price": Decimal("9999999999999999999999999999.9999999999") if far else Decimal(i) / 8,
        "cents": Decimal("-9999999.99") if far else Decimal(i) / 4,
        "day": dt.date(9999, 12, 31) if far else dt.date(2024, 1, 1) + dt.timedelta(days=i % 900),
        "at": dt.datetime(2024, 1, 1, 0, 0, 0, i % 1000, tzinfo=dt.UTC),
        "wall": dt.datetime(1900, 1, 1) if far else dt.datetime(1969, 12, 31, 23, 59, 59, i % 1000),  # noqa: DTZ001
        "note": note + "é😀" * (20 if far else 0),
        "raw": bytes([i % 256] * (i % 4)),
        OFFSET: offset,
    }


class SparkTable:
    """A table as the lake makes them, and what its rows should be."""

    def __init__(
        self, spark: SparkSession, lake: Path, *, properties: Sequence[str] = (), vectors: bool = True
    ) -> None:
        """`vectors`: whether the table takes deletion vectors."""
        self.spark = spark
        self.lake = lake
        self.path = lake / "table"
        self.rows: dict[int, Row] = {}
        self.columns = dict(COLUMNS)
        self.merges = 0
        properties_text = ", ".join([f"'delta.enableDeletionVectors' = '{str(vectors).lower()}'", *properties])
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        self.sql(f"CREATE TABLE {self.name} ({columns}) USING delta TBLPROPERTIES ({properties_text})")

    @property
    def name(self) -> str:
        return f"delta.`{self.path}`"

    def sql(self, text: str) -> None:
        self.spark.sql(text.replace("TABLE_NAME", self.name)).collect()

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        return pa.table({n: pa.array([r.get(n) for r in rows], kind) for n, (_, kind) in self.columns.items()})

    def frame(self, rows: Sequence[Row]) -> DataFrame:
        return self.spark.createDataFrame(self.arrow(rows), self.spark.table(self.name).schema)

    def append(self, rows: Sequence[Row]) -> None:
        """By Spark."""
        frame = self.frame(rows)
        frame.coalesce(1).write.format("delta").mode("append").save(str(self.path))

    def checkpoint(self) -> None:
        """By Spark."""
        make_checkpoint(self.spark, self.path)

    def writer(self) -> OpenTable:
        place = Location(LocalStorage(self.lake, temporary="_dblog/tmp"), "table")
        return OpenTable(place, ["id"], order=OFFSET, mark="dblog")

    def changes(self, puts: Sequence[Row], deletes: Sequence[int] = (), *, dump: bool = False) -> Changes:
        rows = [*puts, *({"id": i} for i in deletes)]
        return Changes(self.arrow(rows), np.arange(len(rows)) >= len(puts), np.full(len(rows), dump))

    def merge(
        self,
        writer: OpenTable,
        puts: Sequence[Row],
        deletes: Sequence[int] = (),
        *,
        parts: int = 1,
        below: int | None = None,
    ) -> None:
        """`parts`: in how many of them the changes come; `below`: rows whose offset is below it go first."""
        self.merges += 1
        changes = [self.changes(puts[i::parts], deletes[i::parts]) for i in range(parts)]
        upsert(writer, changes, APP, self.merges, below=below)
        if below is not None:
            self.rows = {i: r for i, r in self.rows.items() if r[OFFSET] >= below}
        self.rows.update((r["id"], r) for r in puts)
        for i in deletes:
            self.rows.pop(i, None)

    def check(self, *, by_both: bool = True) -> None:
        """Spark, delta-rs and DuckDB read what the model says."""
        expected_rows = self.arrow([self.rows[i] for i in sorted(self.rows)])
        rows_read = self.spark.sql(f"SELECT * FROM {self.name}").toArrow().sort_by("id")
        assert rows_read.cast(expected_rows.schema).equals(expected_rows), "Spark reads other rows"
        if not by_both:
            return
        others = {
            "delta-rs": pa.table(QueryBuilder().register("t", RustTable(str(self.path))).execute("select * from t")),
            "DuckDB": read_delta(self.path),
        }
        for name, other in others.items():
            rows_read = other.select(expected_rows.column_names).cast(expected_rows.schema).sort_by("id")
            assert rows_read.equals(expected_rows), f"{name} reads other rows"

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        self.rows = {i: r for i, r in self.rows.items() if not is_gone(i)}
