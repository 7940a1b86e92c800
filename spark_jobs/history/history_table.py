"""LAKE/SCHEMA/TABLE__history: every change of a table once, appended before the lake's own table takes it.

The order is what makes it simple: as long as changes are missing here, the lake's table stands as it was before them,
so that a dump's rows can be compared with it, whatever died in between. Each commit tells, as Delta's transaction
version, up to which offset the history is complete: what a merge brings again, after a crash or because its table had
stopped, is known by its offset.

Properties of the Delta table say from where on it tells every change, and whether the table had no row then: such a
history is all that the table can be made of again (`past`). A merge without history leaves a gap; the next one with
history closes it: it begins again, in the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.delta_writer.altering.alterations import AddColumn, Change, SetProperties
from dblog_core.delta_writer.altering.column_mapping import MODE
from dblog_core.delta_writer.features import TableRefused
from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import HISTORY_AFTER, HISTORY_WHOLE
from dblog_core.lake.merge_plan import Work
from dblog_core.model.events import DELETE, REFRESH, TRUNCATE
from dblog_core.model.schema import Column as TableColumn
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.schema_evolution import compatibility
from dblog_core.schema_evolution.renames import Renames, describe_stale, is_stale
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import alter_table, create_table, delta_log_checkpoint, key_ranges, log
from spark_jobs.delta_tables.column_types import (
    COMMIT_TIME,
    MOVED_FROM,
    OFFSET,
    OP,
    ORIGIN,
    POSITION,
    TRANSACTION,
    UNCHANGED,
    check_names,
    history_shape,
    needs_mapping,
    quote,
    spark_type,
)  # fmt: skip
from spark_jobs.delta_tables.shaped_table import Described, ShapedTable
from spark_jobs.events import fold_on_driver, moved_unchanged_toast, staged_events
from spark_jobs.history import previous_rows
from spark_jobs.history.lines_on_driver import Lines
from spark_jobs.history.without_spark import Tables

AFTER = HISTORY_AFTER
WHOLE = HISTORY_WHOLE
APPEND_ONLY = "delta.appendOnly"


@dataclass(frozen=True, slots=True)
class Before:
    """How a table stood before a merge: its rows in the lake (None: there is no table), whether it has none, and the
    keys that wait for a dump.

    All changes up to `offset` were in; `is_in_history`: the last of them are in the history too.
    """

    rows: Callable[[], DataFrame | None]
    is_empty: Callable[[], bool]
    withheld: Sequence[Key]
    offset: int
    is_in_history: bool
    exists: bool
    """Whether there is a lake table."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A history tells every change after the offset `after`; `whole`: the table had no row then."""

    after: int
    whole: bool


class History:
    """The history of one table. `app` names our transactions in its Delta log."""

    def __init__(
        self,
        spark: SparkSession,
        path: Location,
        schema: TableSchema,
        *,
        app: str,
        check: Callable[[], None] = lambda: None,
        renames: Renames | None = None,
        tables: Tables | None = None,
    ) -> None:
        """`check` raises LeaseLost once another may merge: it is asked right before every statement. `renames`: those
        that led to the shape; `tables`: what small works are written by without Spark (None: none are)."""
        self._spark = spark
        self.path = path
        self._schema = schema
        self._app = app
        self._check = check
        self._shaped = ShapedTable(spark, path, check)
        self._renames = renames or Renames()
        self._tables = tables

    def version(self) -> int | None:
        return log.version(self.path)

    def newest_offset(self) -> int:
        """The last offset of the newest merge that has written its changes; 0 where the log that is left names none."""
        return log.newest_transaction(self.path, self._app) or 0

    def begin(self) -> Begin | None:
        """From where on it is without a gap; None where it does not say so."""
        properties = self._shaped.describe().properties
        return Begin(int(properties[AFTER]), properties.get(WHOLE) == "true") if AFTER in properties else None

    def lines(self, renames: Renames | None = None) -> DataFrame:
        """All of them; with the names that columns have now, if some were renamed since the last line."""
        lines = self._spark.read.format("delta").load(str(self.path))
        later = renames.after(alter_table.renamed_upto(self._shaped.describe().properties)) if renames else None
        return lines.toDF(*map(later.current_name, lines.columns)) if later else lines

    def append_changes(self, work: Work, before: Before, *, staging: Staging, upto: int) -> None:
        """Appends the work's changes that are not here yet. `upto`: the last offset of the merge."""
        told_of = work.files or work.chunks or work.truncates
        if not (told_of or work.finished or self.version() is not None):
            return
        has_shape = self._is_prepared(before)
        if not has_shape:
            self._prepare(before)
            has_shape = self._has_shape()
        if stale := _stale(work, staging) if self._renames else []:
            self._keep(stale)
        done = self.newest_offset()
        if not told_of or done >= upto:
            return
        if has_shape and self._append_without_spark(work, before, staging, upto):
            return
        parts = [self._truncates(work.truncates)] if work.truncates else []
        if work.files or work.chunks:
            parts.append(self._with_stale(self._changes(work, before, staging), work, staging, stale))
        lines = parts[0] if len(parts) == 1 else parts[1].unionByName(parts[0], allowMissingColumns=True)
        lines = lines.where(F.col(OFFSET) > done)
        self._append(lines.coalesce(1) if work.rows <= fold_on_driver.MAX_ROWS else lines, self._app, upto)

    def append_ghosts(self, keys: DataFrame, mark: LogMark) -> None:
        """Appends a d for each key that the dump of `mark` shows to be gone; `keys` has the key columns alone."""
        self._prepare(None)
        app = f"{self._app}:ghosts"
        if (log.newest_transaction(self.path, app) or 0) >= mark.offset:
            return
        others = [c.name for c in self._schema.columns if c.name not in self._schema.key]
        fields = {
            **self._fields_of_mark(mark, DELETE, "dump"),
            UNCHANGED: F.array(*map(F.lit, others)) if others else F.lit(None),
        }
        self._append(self._lines(keys, {n: F.col(quote(n)) for n in self._schema.key}, fields), app, mark.offset)

    def _append_without_spark(self, work: Work, before: Before, staging: Staging, upto: int) -> bool:
        """As `append_changes`, where the history has its shape; False for what is Spark's."""
        assert self._tables is not None
        try:
            lines = self._tables.make_lines(staging, work, self._schema, before.withheld, exists=before.exists)
            if lines is not None:
                self._append(lines, self._app, upto)
        except TableRefused:
            return False
        return lines is not None

    def _append(self, lines: DataFrame | Lines, app: str, version: int) -> None:
        if not isinstance(lines, DataFrame):
            assert self._tables is not None
            self._tables.append(self._spark, self.path, lines, app, version)
            return
        self._check()
        options = {"txnAppId": app, "txnVersion": str(version)}
        lines.write.format("delta").mode("append").options(**options).save(str(self.path))
        log.check_committed(self.path, app, version)

    def _is_prepared(self, before: Before) -> bool:
        """Whether it is known, without Spark, that there is nothing to prepare."""
        if self.version() is None or not self._has_shape():
            return False
        assert self._tables is not None
        return before.is_in_history or self._tables.properties().get(AFTER) == str(before.offset)

    def _has_shape(self) -> bool:
        """Whether lines can be appended without Spark."""
        if self._tables is None or self._renames:
            return False
        try:
            return self._tables.has_shape(self._schema)
        except TableRefused:
            return False

    def _prepare(self, before: Before | None) -> None:
        """Makes the table, or widens it and adds the columns that are new. Raises LakeError for a shape that it can
        not take.

        `before` (None: somebody has prepared it already): where it begins, if the last changes were not written.
        """
        self._check()
        if self.version() is None:
            self._create(before)
            return
        have = self._shaped.describe()
        if OP in have.shape.names:
            for step in self._renames.steps:
                self._shaped.alter(partial(alter_table.rename, step=step))
            have = self._shaped.describe()
        self._check_owner(have)
        self._shaped.alter(self._plan_changes)
        if before is not None and not before.is_in_history:
            self._begin_anew(before)

    def _check_owner(self, have: Described) -> None:
        """Raises LakeError where another table has this place."""
        if OP not in have.shape.names:
            raise self._refusal(
                "its place is that of another table", "leave one of the two out of `tables`, or set history off"
            )
        if (other := alter_table.is_another(have.properties, self._schema.table)) is not None:
            raise self._refusal(
                f"its place is that of the history of {other}: the file system takes the two names for one",
                "leave one of the two out of `tables`, or have the lake on a file system that tells them apart",
            )

    def _plan_changes(self, have: Described) -> list[Change]:
        """Columns that are wider now, and those that are new. Raises LakeError for a shape that it can not take."""
        want = history_shape(self._schema)
        changes = alter_table.widen(have.shape, want)
        if changes is None:
            old = {f.name: f.dataType for f in have.shape}
            changed = [
                f"column {f.name} was {old[f.name].simpleString()} and is {f.dataType.simpleString()}"
                for f in want
                if not alter_table.is_wider(old.get(f.name, f.dataType), f.dataType, or_equal=True)
            ]
            raise self._cannot_follow(changed)
        if conflicts := alter_table.find_case_conflicts(have.shape.names, self._schema):
            raise self._cannot_follow(
                f"column {name} differs from {other} in upper and lower case alone" for name, other in conflicts
            )
        added = [f for f in want if f.name not in have.shape.names]
        return [*changes, *(AddColumn(f.name, f.dataType.jsonValue()) for f in added)]

    def _cannot_follow(self, faults: Iterable[str]) -> LakeError:
        return self._refusal(
            f"the history cannot follow: {'; '.join(faults)}",
            "move the history's directory away: the next merge begins a new one",
        )

    def _keep(self, stale: Sequence[TableColumn]) -> None:
        """Has a column for each whose name another one takes within the merge; `_rename` has made those it has had."""
        stale_columns = {describe_stale(column.name): spark_type(column.type).jsonValue() for column in stale}

        def plan(have: Described) -> list[Change]:
            names = {name.lower() for name in have.shape.names}
            return [AddColumn(name, kind) for name, kind in stale_columns.items() if name.lower() not in names]

        self._shaped.alter(plan)

    def _with_stale(self, lines: DataFrame, work: Work, staging: Staging, stale: Sequence[TableColumn]) -> DataFrame:
        """The lines with the values that those columns had until then."""
        if not stale:
            return lines
        whole = TableSchema(self._schema.table, (*self._schema.columns, *stale), self._schema.key)
        events = staged_events.read_events(self._spark, staging, replace(work, truncates=(), floor=None), whole)
        image = F.when(F.col("op") == DELETE, F.col("before")).otherwise(F.col("row"))
        values = events.select(
            F.col("offset").alias(OFFSET), *(image[column.name].alias(describe_stale(column.name)) for column in stale)
        )
        return lines.join(values, OFFSET, "left")

    def _begin_anew(self, before: Before) -> None:
        """Changes up to where the table stood may be missing. A merge that is tried again has said so already."""
        begin = self.begin()
        if begin is None or begin.after != before.offset:
            self._shaped.alter(lambda have: [SetProperties(_properties(before))])

    def _refusal(self, what: str, fix: str) -> LakeError:
        return LakeError(what, where=str(self.path), fix=fix)

    def _create(self, before: Before | None) -> None:
        check_names(self._schema)
        keys = zip(self._schema.key, self._schema.key_columns, strict=True)
        bounded = [OFFSET, COMMIT_TIME, *(quote(name) for name, c in keys if key_ranges.has_ranges(c.type))]
        properties = {
            APPEND_ONLY: "true",
            delta_log_checkpoint.CLEANS: "false",
            alter_table.TABLE: str(self._schema.table),
            "delta.dataSkippingStatsColumns": ",".join(bounded),
            **(_properties(before) if before is not None else {}),
        }
        if self._renames:
            properties[alter_table.RENAMED] = str(self._renames.last_offset)
        if needs_mapping(self._schema):
            properties[MODE] = "name"
        shape = history_shape(self._schema)
        if (
            self._tables is not None
            and create_table.is_place_empty(self.path)
            and not create_table.has_default_properties(self._spark)
        ):
            create_table.create_table(self.path, shape, properties)
            return
        builder = DeltaTable.createIfNotExists(self._spark).location(str(self.path)).addColumns(shape)
        for name, value in properties.items():
            builder = builder.property(name, value)
        builder.execute()

    def _changes(self, work: Work, before: Before, staging: Staging) -> DataFrame:
        """The work's rows as lines: those of a dump only where they differ from what was there."""
        schema = self._schema
        whole = replace(work, truncates=(), floor=None)  # what vanished again is history all the same
        events = staged_events.read_events(self._spark, staging, whole, schema)
        if schema.key:
            rows = before.rows()
            if any(f.has_unchanged and f.has_moves for f in work.files):
                events = moved_unchanged_toast.resolve(self._spark, events, rows, schema)
            if previous_rows.needs_previous_rows(staging, work):
                events = previous_rows.add_previous_values(
                    self._spark, events, rows, before.withheld, schema, work.truncates
                )
        deleted = F.col("op") == DELETE
        not_in_key = F.array(*(F.lit(c.name) for c in schema.columns if c.name not in schema.key)).cast("array<string>")
        fields = {
            OP: F.col("op"),
            OFFSET: F.col("offset"),
            POSITION: F.col("position"),
            COMMIT_TIME: F.col("commit_time"),
            ORIGIN: F.col("origin"),
            TRANSACTION: F.when(F.col("op") != REFRESH, F.col("transaction")),
            UNCHANGED: F.when(F.col("key_only"), F.when(F.size(not_in_key) > 0, not_in_key)).otherwise(
                F.col("unchanged")
            ),
            MOVED_FROM: F.col("moved_from"),
        }
        values = {
            c.name: F.col(f"key.{quote(c.name)}")
            if c.name in schema.key
            else F.when(F.col("key_only"), None)
            .when(deleted, F.col(f"before.{quote(c.name)}"))
            .otherwise(F.col(f"row.{quote(c.name)}"))
            for c in schema.columns
        }
        return self._lines(events, values, fields)

    def _truncates(self, marks: Sequence[LogMark]) -> DataFrame:
        lines = [self._lines(self._spark.range(1), {}, self._fields_of_mark(mark, TRUNCATE, "log")) for mark in marks]
        return reduce(DataFrame.unionByName, lines)

    def _fields_of_mark(self, mark: LogMark, op: str, origin: str) -> dict[str, Column]:
        return {
            OP: F.lit(op),
            OFFSET: F.lit(mark.offset),
            POSITION: F.lit(mark.position),
            COMMIT_TIME: F.timestamp_micros(F.lit(mark.commit_time)),
            ORIGIN: F.lit(origin),
            TRANSACTION: F.lit(mark.transaction if op == TRUNCATE else None),
        }

    def _lines(self, rows: DataFrame, values: dict[str, Column], fields: dict[str, Column]) -> DataFrame:
        """Rows in the table's shape; what neither says is NULL."""
        have = {**values, **fields}
        shape = history_shape(self._schema)
        return rows.select(*(have.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in shape))


def _stale(work: Work, staging: Staging) -> list[TableColumn]:
    """Columns of the work's rows whose names other columns now have, each in its widest type."""
    widest: dict[str, TableColumn] = {}
    for column in (c for shape in work.shapes(staging.schema) for c in shape.columns if is_stale(c.name)):
        widest_column = widest.get(column.name)
        if widest_column is None or compatibility.is_widening(widest_column.type, column.type):
            widest[column.name] = column
    return list(widest.values())


def _properties(before: Before) -> dict[str, str]:
    """How a history says that it begins here."""
    return {AFTER: str(before.offset), WHOLE: str(before.is_empty()).lower()}
