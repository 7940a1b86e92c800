"""One table's share of a merge, from staged files to a committed Delta version. Safe to run again at any point."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.events import DELETE
from dblog_core.lake import TableStatus, table_location
from dblog_core.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.values import Key
from spark_jobs import changes, fold, ghosts, moves, small
from spark_jobs.highest import Highest
from spark_jobs.lake import Batch, LakeTable, measured, measured_here
from spark_jobs.plan import Work, from_dump
from spark_jobs.shapes import check_follows, key_shape, quoted
from spark_jobs.withheld import Withheld

_BROADCAST_ROWS, _BROADCAST_BYTES = 200_000, 32 << 20


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a table's rows: those staged, those written, those removed (ghosts included), those withheld."""

    table: str
    rows: int
    applied: int = 0
    deleted: int = 0
    withheld: int = 0
    seconds: float = 0.0
    version: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Lake:
    """Where tables go, and by what name our transactions are known there."""

    location: Location
    app: str
    highest: Highest = field(default_factory=Highest)
    check: Callable[[], None] = lambda: None
    """Raises LeaseLost once another may merge."""

    def table(self, spark: SparkSession, schema: TableSchema) -> LakeTable:
        location = table_location(self.location, schema.table)
        app = f"{self.app}:{schema.table}"
        return LakeTable(spark, location, schema, app=app, highest=self.highest, check=self.check)


class TableMerge:
    """Applies works of one table after another; `spark` is a session of its own, for the transaction settings."""

    def __init__(self, spark: SparkSession, staging: Staging, lake: Lake, withheld: Withheld) -> None:
        self._spark = spark
        self._staging = staging
        self._lake = lake
        self._withheld = withheld

    def apply(
        self, work: Work, number: int, *, last: int, upto: int, known: TableStatus | None, merged: int, again: bool
    ) -> Applied | None:
        """Applies the work as part of merge `number`, which ends with segment `last` and offset `upto`.

        None for a table without a key. `known`: what the last merge left here; `merged`: the highest offset that a row
        of ours can have before this one; `again`: an earlier run may have committed it.
        """
        began = time.monotonic()
        schema = self._staging.schema(work.schema)
        if not schema.key:
            return None
        lake = self._lake.table(self._spark, schema)
        done = again and lake.exists() and lake.committed() == number
        seen = known.version if known else None
        counts, withheld = {"inserted": 0, "updated": 0, "deleted": 0}, 0
        if not done:
            work, rows = self._read(work, schema, lake)
            if seen is not None and (lake.exists() or work.floor is None):
                seen = lake.answer_others(after=seen, merged=merged)
            if lake.exists() or rows is None or len(rows) or work.truncated is not None or work.finished:
                self._prepare(work, lake, known.schema if known else None)
            if work.truncated is not None:
                lake.remove_older(work.truncated)
                self._withheld.forget(work.table, self._withheld.keys(work.table, schema))
            if work.files or work.chunks:
                try:
                    counts, withheld = self._commit(work, rows, schema, lake, number)
                finally:
                    self._staging.remove_spilled(work.files)
        removed = sum(
            ghosts.remove(self._spark, self._staging, lake, schema, mark, last=last) for mark in work.finished
        )
        self._settle(lake, schema)
        version = lake.answer_others(after=seen or 0, merged=upto) if lake.exists() else None
        return Applied(
            table=work.table,
            rows=work.rows,
            applied=counts["inserted"] + counts["updated"],
            deleted=counts["deleted"] + removed,
            withheld=withheld,
            seconds=round(time.monotonic() - began, 3),
            version=version,
        )

    def _read(self, work: Work, schema: TableSchema, lake: LakeTable) -> tuple[Work, pa.Table | None]:
        """The work whose files are whole, with its folded rows where the driver has folded them."""
        if not lake.version():  # none yet, or just made
            work = from_dump(work)
        for fingerprint in work.schemas:
            check_follows(self._staging.schema(fingerprint), schema)
        rows = None
        if work.files or work.chunks:
            rows = small.folded(self._staging, work, schema) if small.fits(work, schema) else None
            if rows is None:
                changes.check_files(self._spark, self._staging, work)
        return work, rows

    def _prepare(self, work: Work, lake: LakeTable, known: str | None) -> None:
        """Makes the lake table, or widens it, where its shape is not known to be the work's."""
        if not lake.exists() or known != work.schema:
            lake.prepare()

    def _commit(
        self, work: Work, rows: pa.Table | None, schema: TableSchema, lake: LakeTable, number: int
    ) -> tuple[dict[str, int], int]:
        if rows is not None and not len(rows):
            batch = Batch(self._spark.range(0))
        elif rows is not None:
            batch = measured_here(self._spark, rows, schema)
        else:
            batch = measured(self._folded(work, schema, lake), schema)
        if not batch.count:
            return {"inserted": 0, "updated": 0, "deleted": 0}, 0
        before = self._withheld.keys(work.table, schema)
        unknown = _unknown(batch, lake, schema) if batch.keeps else []
        self._withheld.add(work.table, unknown)
        broadcast = rows is not None or (batch.count <= _BROADCAST_ROWS and work.bytes <= _BROADCAST_BYTES)
        counts = lake.apply(batch, number, broadcast=broadcast)
        if before:
            deleted = batch.rows.where(F.col("op") == DELETE)
            self._withheld.forget(work.table, set(self._keys(deleted, before, schema)) - set(unknown))
        return counts, len(unknown)

    def _folded(self, work: Work, schema: TableSchema, lake: LakeTable) -> DataFrame:
        events = changes.events(self._spark, self._staging, work, schema)
        if not any(f.has_unchanged for f in work.files):
            return fold.last_rows(events)
        if any(f.has_moves for f in work.files):
            events = moves.resolve(self._spark, events, lake.rows(), schema)
        return fold.column_by_column(events, schema)

    def _settle(self, lake: LakeTable, schema: TableSchema) -> None:
        """Forgets the withheld keys that the lake has by now."""
        table = str(schema.table)
        if self._withheld.waits(table):
            rows = lake.rows().select(F.struct(*(F.col(quoted(n)).alias(n) for n in schema.key)).alias("key"))
            self._withheld.forget(table, self._keys(rows, self._withheld.keys(table, schema), schema))

    def _keys(self, rows: DataFrame, wanted: list[Key], schema: TableSchema) -> list[Key]:
        """Those of the wanted keys that the rows have."""
        asked = self._spark.createDataFrame(wanted, key_shape(schema))
        asked = asked.select(F.struct(*(F.col(quoted(n)).alias(n) for n in schema.key)).alias("key"))
        return [
            moves.as_key(row.key) for row in rows.join(F.broadcast(asked), "key", "left_semi").select("key").collect()
        ]


def _unknown(batch: Batch, lake: LakeTable, schema: TableSchema) -> list[Key]:
    """Keys of the rows with a value that nobody has: neither this span nor the lake."""
    partial = batch.rows.where(F.col("missing").isNotNull() & (F.col("op") == fold.PUT)).select("key")
    have = lake.rows().select(F.struct(*(F.col(quoted(n)).alias(n) for n in schema.key)).alias("key"))
    lost = batch.rows.where(F.col("op") == fold.WITHHOLD).select("key")
    return [moves.as_key(row.key) for row in partial.join(have, "key", "left_anti").union(lost).collect()]
