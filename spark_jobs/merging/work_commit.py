"""One work's rows committed to its lake table, whichever way takes them: marked on the driver, or written by Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.features import BatchRefused, TableRefused
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.lake.merge_plan import Work
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.staging import Staging
from spark_jobs.events import fold, fold_on_driver, moved_unchanged_toast, staged_events
from spark_jobs.events.fold_without_spark import FoldedRows
from spark_jobs.merging import deleted_rows, mark_and_append
from spark_jobs.merging.lake import Lake
from spark_jobs.merging.lake_table import LakeTable
from spark_jobs.merging.with_spark import mark_by_scan, unchanged_toast
from spark_jobs.merging.with_spark.batch import Batch, measure_on_driver, measure_rows
from spark_jobs.merging.withheld_keys import Withheld

_BROADCAST_ROWS = 200_000
_BROADCAST_BYTES = 32 << 20


class LookFirst(Exception):
    """What others have committed must be known before the next step."""


class WorkCommit:
    """Commits works of one table; `spark` is a session of its own, for the transaction settings."""

    def __init__(
        self, spark: SparkSession, staging: Staging, lake: Lake, withheld: Withheld, *, step: Callable[[str], None]
    ) -> None:
        """`step`: as for `TableMerge`."""
        self._spark = spark
        self._step = step
        self._staging = staging
        self._lake = lake
        self._withheld = withheld
        self.merge_because: str | None = None
        """What stands in the way of writing the table without Spark, in all of its batches."""
        self.is_left = False
        """Whether the table is known to be as we have left it, without a look whether others have committed since."""
        self.may_have_spilled = False
        """Whether rows of the work may lie beside it in staging."""

    def check_looked(self) -> None:
        """Raises LookFirst where the table's log was not looked at: a commit by Spark needs that."""
        if self.is_left:
            raise LookFirst

    def commit(
        self, work: Work, rows: FoldedRows | None, schema: TableSchema, lake: LakeTable, number: int, *, merged: int
    ) -> int:
        """Commits the work's rows, and its last TRUNCATE; how many rows are withheld.

        Both are one version where the driver writes the rows. Where Spark does, and where no row follows the TRUNCATE,
        that is a commit of its own.
        """
        if self._lake.spreads(work):
            return self._spread(work, schema, lake, number, merged=merged)
        refused: str | None = None
        if rows is not None and len(rows) and self._lake.open_tables is not None:
            try:
                return self._mark(work, rows, schema, lake, number, merged=merged)
            except TableRefused as refusal:
                if not isinstance(refusal, BatchRefused):
                    self.merge_because = refused = refusal.feature
        # Spark has no other row to take the values from, and parts are more than it gets from the driver.
        if len(rows or ()) and (fold_on_driver.has_unchanged_toast(work) or not isinstance(rows, pa.Table)):
            rows = None
        if work.last_truncate is not None:
            self._truncate(work, work.last_truncate, schema, lake)
        if not (work.files or work.chunks) or (rows is not None and not len(rows)):
            return 0
        self.check_looked()
        # Values that rows take along to another key are those of this version.
        has_moves = any(f.has_unchanged and f.has_moves for f in work.files)
        read_at = lake.version() if rows is None and has_moves else None
        if isinstance(rows, pa.Table):
            batch = measure_on_driver(self._spark, rows, schema)
        else:
            batch = measure_rows(self._fold_events(work, schema, lake), schema)
        if not batch.count:
            return 0
        before = self._withheld.keys(work.table, schema)
        broadcast = rows is not None or (batch.count <= _BROADCAST_ROWS and work.bytes <= _BROADCAST_BYTES)
        unknown = self._commit_batch(
            work, batch, schema, lake, number, merged=merged, broadcast=broadcast, read_at=read_at, refused=refused
        )
        if before:
            deleted = batch.rows.where(F.col("op") == DELETE)
            gone = unchanged_toast.find_keys(self._spark, deleted, before, schema)
            self._withheld.forget(work.table, set(gone) - unknown)
        return len(unknown)

    def _truncate(self, work: Work, offset: int, schema: TableSchema, lake: LakeTable) -> None:
        deleted_rows.remove_older(lake, offset, self._lake.open_tables)
        self._withheld.forget(work.table, self._withheld.keys(work.table, schema))
        self._step(f"truncated {work.table}")

    def _commit_batch(
        self,
        work: Work,
        batch: Batch,
        schema: TableSchema,
        lake: LakeTable,
        number: int,
        *,
        merged: int,
        broadcast: bool,
        read_at: int | None,
        refused: str | None,
    ) -> set[Key]:
        """Commits rows that Spark has; the keys of those that are withheld. `read_at`: as for `mark_by_scan.write`;
        `refused`: why the driver may not write the table, where it has just tried."""
        unknown = set[Key]()

        def withhold(keys: list[Key]) -> None:
            self._withheld.add(work.table, keys)
            unknown.update(keys)

        if self._lake.open_tables is not None:
            is_new = not batch.dumped and work.first_offset is not None and work.first_offset > merged

            def write(table: OpenTable, app: str, number: int) -> Upserted:
                return mark_by_scan.write(
                    self._spark,
                    table,
                    batch,
                    schema,
                    app,
                    number,
                    broadcast=broadcast,
                    may_lose_upto=None if is_new else merged,
                    read_at=read_at,
                    withhold=withhold,
                )

            try:
                lake.upsert_batch(batch, number, self._lake.open_tables, write)
            except TableRefused as refusal:
                if not isinstance(refusal, BatchRefused):
                    self.merge_because = refusal.feature
            else:
                self.merge_because = refused
                return unknown
        if batch.has_unchanged_toast:
            withhold(unchanged_toast.find_unknown(batch, lake.rows(), schema))
        if batch.deletes and self._lake.open_tables is not None:
            deleted_rows.count_marks_as_deletes(lake, number, self._lake.open_tables)
        lake.merge(batch, number, broadcast=broadcast)
        return unknown

    def may_mark(self) -> bool:
        """Whether nothing is known that stands in the way of writing the table without Spark."""
        return self._lake.open_tables is not None and self.merge_because is None

    def _mark(
        self, work: Work, rows: FoldedRows, schema: TableSchema, lake: LakeTable, number: int, *, merged: int
    ) -> int:
        """As `commit`, without Spark. Raises TableRefused where the table takes a MERGE alone."""
        table = str(schema.table)
        before = self._withheld.keys(table, schema)

        def withhold(keys: list[Key]) -> None:
            self._withheld.add(table, keys)

        assert self._lake.open_tables is not None
        upsert = partial(lake.upsert, rows, number, self._lake.open_tables, merged=merged, begins=work.first_offset)
        done = upsert(below=work.last_truncate, withhold=withhold, is_left=self.is_left)
        self.merge_because = None
        # Behind the commit: should that fail, the rows that the table then still lacks are still waited for.
        self._withheld.forget(table, _find_gone(work, rows, before, schema))
        return done.withheld + mark_and_append.count_withheld(rows)

    def _spread(self, work: Work, schema: TableSchema, lake: LakeTable, number: int, *, merged: int) -> int:
        """As `commit`, by executors."""
        table = str(schema.table)
        assert self._lake.spread is not None and self._lake.open_tables is not None, "the work is spread"
        outcome = lake.upsert_spread(
            self._lake.spread,
            self._staging,
            work,
            number,
            self._lake.open_tables,
            merged=merged,
            withhold=partial(self._withheld.add, table),
            waiting=self._withheld.keys(table, schema),
        )
        self._withheld.forget(table, outcome.gone_keys)
        return outcome.withheld

    def forget_gone(self, work: Work, rows: FoldedRows | None, schema: TableSchema, lake: LakeTable) -> None:
        """Forgets the withheld keys that a work which is committed has removed. `rows`: those of the work, where the
        driver has folded them."""
        before = self._withheld.keys(work.table, schema)
        if rows is not None:
            gone = _find_gone(work, rows, before, schema)
        else:
            folded = self._fold_events(work, schema, lake)
            is_last = F.col("op") == DELETE if work.last_truncate is None else F.col("op") != DELETE
            gone = set(unchanged_toast.find_keys(self._spark, folded.where(is_last), before, schema))
            gone = gone if work.last_truncate is None else set(before) - gone
        self._withheld.forget(work.table, gone)

    def _fold_events(self, work: Work, schema: TableSchema, lake: LakeTable) -> DataFrame:
        self.may_have_spilled = True
        events = staged_events.read_events(self._spark, self._staging, work, schema)
        if not any(f.has_unchanged for f in work.files):
            return fold.last_rows(events)
        if any(f.has_moves for f in work.files):
            events = moved_unchanged_toast.resolve(self._spark, events, lake.rows(), schema)
        return fold.column_by_column(events, schema)

    def settle(self, lake: LakeTable, schema: TableSchema) -> None:
        """Forgets the withheld keys that the lake now has."""
        table = str(schema.table)
        if not self._withheld.waits(table):
            return
        waiting = self._withheld.keys(table, schema)
        settled = None
        if self._lake.open_tables is not None and self.merge_because is None:
            open_table = self._lake.open_tables.table(lake.path, schema, lake.check)
            settled = mark_and_append.find_keys(open_table, waiting, schema)
        if settled is None:
            rows = unchanged_toast.keys_of(lake.rows(), schema)
            settled = unchanged_toast.find_keys(self._spark, rows, waiting, schema)
        self._withheld.forget(table, settled)


def _find_gone(work: Work, rows: FoldedRows, before: Collection[Key], schema: TableSchema) -> set[Key]:
    """Those of the withheld keys that are no longer in the source at the end of the work: deleted, or not put again
    after its last TRUNCATE."""
    if not before:
        return set()
    if work.last_truncate is None:
        return mark_and_append.deleted_keys(rows, before, schema)
    return set(before) - mark_and_append.living_keys(rows, before, schema)
