"""The last line of each key of a history beside the table's row: what the table holds at one place of the log.

Lines are appended before the table takes their changes, and the status names the version in which all changes up to its
offset are. So that version and the lines up to that offset are of one moment, also while a merge runs.

A history that does not begin with an empty table has no line of keys that have not changed since. It is compared in the
keys of which it has lines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import State, TableStatus, history_location, read_status, table_location
from dblog_core.lake.task_plans import Past
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_to_json
from dblog_core.storage.location import Location
from dblog_core.verify.exchange import MAX_KEYS_NAMED, Answer, Task
from spark_jobs.delta_tables.column_types import OFFSET, key_shape, quote, spark_type
from spark_jobs.history import foreign_lines, rebuild_start
from spark_jobs.history.history_table import History


@dataclass(frozen=True, slots=True)
class _Extent:
    """The lines that count are those behind `lower`. `is_whole`: the table had no row there."""

    lower: int
    is_whole: bool


def compare_history(spark: SparkSession, lake: Location, task: Task) -> Answer:
    """Keys that the history's last line or the table alone has, and the columns in which they differ; `note`: why
    nothing is compared; `gap`: what another program has done to the history."""
    name = str(task.shape.table)
    lake_status = read_status(lake)
    status = None if lake_status is None else lake_status.tables.get(name)
    if status is None or (reason := explain_not_comparable(status)) is not None:
        return Answer(note="nothing of it is merged" if status is None else reason)
    history = History(spark, history_location(lake, task.shape.table), task.shape, app=f"dblog verify {name}")
    gap = None
    try:
        gap = foreign_lines.find_gap(history.path, status)
        lines = history.lines()
        extent = _find_extent(history, lines, task.shape, status)
    except LakeError as error:
        return Answer(note=error.message, gap=gap)
    rows = spark.read.format("delta").option("versionAsOf", status.version)
    rows_now = rows.load(str(table_location(lake, task.shape.table)))
    shape = _shared_columns(task.shape, lines, rows_now)
    last = rebuild_start.last_lines(lines, shape, Past(extent.lower, status.offset))
    return replace(_compare(last, rows_now, shape, is_whole=extent.is_whole), gap=gap)


def explain_not_comparable(status: TableStatus) -> str | None:
    """Why the history of a table cannot be compared with it now; None: it can."""
    if status.version is None:
        return "the table has no key"
    if status.begun is not None:
        return "a merge has not finished the table's share"
    if status.state is State.STOPPED:
        return "the merge of the table has stopped"
    if status.awaits is not None or status.damage is not None:
        return f"the table lacks rows or values: {status.missing_rows}"
    if not status.told:
        return "the last merge of the table did not write its history"
    return None


def _find_extent(history: History, lines: DataFrame, schema: TableSchema, status: TableStatus) -> _Extent:
    """Raises LakeError where the history does not say from where on it has every change."""
    try:
        return _Extent(rebuild_start.find_past(history, schema, status).lower, is_whole=True)
    except LakeError:
        if (begin := history.begin()) is None:
            raise
        merged = lines.where(F.col(OFFSET) <= status.offset)
        lower = max(begin.after, status.reset_at or 0, rebuild_start.last_truncate(merged))
        return _Extent(lower, is_whole=False)


def _shared_columns(schema: TableSchema, lines: DataFrame, rows: DataFrame) -> TableSchema:
    """The columns that the source, the history and the table have; a later one is not in the lines yet."""
    shared = {*lines.columns} & {*rows.columns}
    if lost := [name for name in schema.key if name not in shared]:
        raise LakeError(f"history and table have no common key column {lost[0]}", where=str(schema.table))
    return replace(schema, columns=tuple(column for column in schema.columns if column.name in shared))


def _compare(last: DataFrame, rows: DataFrame, schema: TableSchema, *, is_whole: bool) -> Answer:
    values = [F.col(quote(c.name)).cast(spark_type(c.type)).alias(c.name) for c in schema.columns]
    key = F.struct(*(F.col(quote(n)).alias(n) for n in schema.key)).cast(key_shape(schema)).alias("key")
    has_key = reduce(Column.__and__, [F.col(quote(name)).isNotNull() for name in schema.key])
    table = rows.where(has_key).select(key, F.struct(*values).alias("row"))
    both = last.alias("h").join(table.alias("t"), F.col("h.key") == F.col("t.key"), "full_outer")
    lives = F.coalesce(F.col("h.op") != DELETE, F.lit(False))
    is_known = F.coalesce(F.size(F.col(f"h.{quote('unchanged')}")), F.lit(0)) <= 0
    has_line, has_row = F.col("h.key").isNotNull(), F.col("t.key").isNotNull()
    differing = F.array_compact(F.array(*(_differs(column.name) for column in schema.columns)))
    kind = (
        F.when(has_row & has_line & ~lives, "missing")
        .when(has_row & ~has_line & F.lit(is_whole), "missing")
        .when(~has_row & lives & is_known, "extra")
        .when(has_row & lives & (F.size(differing) > 0), "different")
    )
    found = both.select(F.coalesce("h.key", "t.key").alias("key"), kind.alias("kind"), differing.alias("columns"))
    odd = found.where(F.col("kind").isNotNull()).orderBy("key").limit(MAX_KEYS_NAMED + 1).toArrow().to_pylist()
    return _name_keys(odd, schema)


def _differs(name: str) -> Column:
    """The column's name if the two rows differ in it; the line may not know its value."""
    unknown = F.coalesce(F.array_contains(F.col("h.unchanged"), name), F.lit(False))
    same = F.col(f"h.row.{quote(name)}").eqNullSafe(F.col(f"t.row.{quote(name)}"))
    return F.when(~unknown & ~same, F.lit(name))


def _name_keys(odd: list[dict[str, Any]], schema: TableSchema) -> Answer:
    by_kind: dict[str, list[tuple[Any, tuple[str, ...]]]] = {"missing": [], "extra": [], "different": []}
    for row in odd[:MAX_KEYS_NAMED]:
        key = key_to_json(tuple(row["key"][name] for name in schema.key))
        by_kind[row["kind"]].append((key, tuple(row["columns"])))
    return Answer(
        missing=tuple(key for key, _ in by_kind["missing"]),
        extra=tuple(key for key, _ in by_kind["extra"]),
        different=tuple(by_kind["different"]),
        more=len(odd) > MAX_KEYS_NAMED,
    )
