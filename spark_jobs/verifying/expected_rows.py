"""What the lake is to hold at a place of the log: one Delta version of a table, with the staged events after it on top.

It is the merge's own fold, and nothing is written. So a comparison needs no merge to keep pace with it, and what it
finds equal says as much of the staged log as of the lake.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.errors import LakeError
from dblog_core.lake import merge_plan
from dblog_core.lake.merge_plan import Work
from dblog_core.model.events import DELETE, TRUNCATE
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging, parquet
from dblog_core.staging.manifest import DataFile, Manifest
from dblog_core.staging.row_format import log_schema
from dblog_core.storage.location import Location
from dblog_core.verify.exchange import Pin
from spark_jobs.delta_tables import variants
from spark_jobs.delta_tables.column_types import OFFSET, quote, row_shape
from spark_jobs.events import fold, moved_unchanged_toast, staged_events

NEVER = -1
"""The offset of a row whose own is missing or impossible: anything that is staged is newer."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Events of one table in a stretch of the log (None: none), and the offsets of its TRUNCATEs there."""

    work: Work
    events: DataFrame | None
    truncates: tuple[int, ...] = ()

    def above(self, offset: int) -> Staged:
        """What of it lies above an offset."""
        return self._part(F.col("offset") > offset, tuple(t for t in self.truncates if t > offset))

    def upto(self, offset: int) -> Staged:
        """What of it lies at an offset or below."""
        return self._part(F.col("offset") <= offset, tuple(t for t in self.truncates if t <= offset))

    def _part(self, condition: Column, truncates: tuple[int, ...]) -> Staged:
        return Staged(self.work, None if self.events is None else self.events.where(condition), truncates)

    @property
    def rows(self) -> int:
        return self.work.rows


def of_keys(lake: DataFrame, staged: Staged, keys: DataFrame) -> tuple[DataFrame, Staged]:
    """Rows and events of these keys alone, before they are folded: a key's row depends on no other key's. All of them
    where rows may have values of other keys' rows."""
    files = staged.work.files
    if any(f.has_unchanged for f in files) and any(f.has_moves for f in files):
        return lake, staged
    keys = F.broadcast(keys)
    events = None if staged.events is None else staged.events.join(keys, "key", "left_semi")
    return lake.join(keys, "key", "left_semi"), replace(staged, events=events)


def lake_rows(
    spark: SparkSession, table: Location, pin: Pin, schema: TableSchema, renames: Renames | None = None
) -> DataFrame:
    """The rows of the pinned version: `key` and `row` (structs in the shape `schema`), `offset`. `renames`: those of
    the stretch that is staged after it.

    A column that the lake does not have yet is NULL, or what rows are known to hold in it; a text whose VARIANT differs
    counts as different. Raises LakeError where it lacks a column of the key.
    """
    frame = variants.mark_other_variants(spark.read.format("delta").option("versionAsOf", pin.version).load(str(table)))
    for step in renames.after(pin.offset).steps if renames else ():
        if {old for old, _ in step.pairs}.issubset(frame.columns):  # a merge that died may have renamed them already
            frame = frame.toDF(*map(step.current_name, frame.columns))
    have = {f.name: f.dataType for f in frame.schema}
    if lacking := [name for name in schema.key if name not in have]:
        raise LakeError(
            f"the lake table lacks the key column {', '.join(lacking)}",
            where=str(table),
            fix=f"rebuild the table: it is not a copy of {schema.table}",
        )
    columns = []
    constants = renames.after(pin.offset).constants if renames else {}
    for field in row_shape(schema):
        column = F.lit(None).cast(field.dataType)
        if field.name in have:
            column = F.col(quote(field.name))
            column = column if have[field.name] == field.dataType else column.try_cast(field.dataType)
        if field.name in constants:  # a merge that died may have added it already
            before, value = constants[field.name]
            column = F.when(F.col(OFFSET) < before, F.lit(value).cast(field.dataType)).otherwise(column)
        columns.append(column.alias(field.name))
    offset = F.col(OFFSET) if OFFSET in have else F.lit(None)
    possible = offset.cast("bigint").between(0, pin.newest)
    return frame.select(
        F.struct(*columns).alias("row"), F.when(possible, offset.cast("bigint")).otherwise(NEVER).alias("offset")
    ).select(_key_of("row", schema), "row", "offset")


def _key_of(row: str, schema: TableSchema) -> Column:
    return F.struct(*(F.col(f"{row}.{quote(name)}").alias(name) for name in schema.key)).alias("key")


def read_staged(
    spark: SparkSession, staging: Staging, schema: TableSchema, directory: str, *, after: int, upto: int
) -> Staged:
    """All that is staged of the table with after < offset <= upto. What lies in manifests is written to `directory`
    first, since Spark reads files alone."""
    manifests = _manifests(staging, after, upto)
    name = str(schema.table)
    first = manifests[0].first if manifests else 1
    work = merge_plan.plan_works(manifests, lambda _: first - 1).get(name, Work(name, schema.fingerprint))
    marks = [m for manifest in manifests for m in manifest.marks if m.table == name and after < m.offset <= upto]
    truncates = tuple(m.offset for m in marks if m.op == TRUNCATE)
    files = tuple(f.cut(after + 1, upto) for f in work.files if f.last_offset > after and f.first_offset <= upto)
    chunks = tuple(c for c in work.chunks if c.first_offset + c.rows > after + 1 and c.first_offset <= upto)
    reshaped = tuple(m for m in work.reshaped if after < m.offset <= upto)
    work = Work(name, work.schema, _on_storage(staging, files, directory), chunks, reshaped=reshaped)
    if not (work.files or work.chunks):
        return Staged(work, None, truncates)
    events = staged_events.read_events(spark, staging, work, schema)
    return Staged(work, events.where(F.col("offset").between(after + 1, upto)), truncates)


def _manifests(staging: Staging, after: int, upto: int) -> list[Manifest]:
    head = staging.head()
    if head is None or after >= upto or after >= head.last_offset:
        return []
    first = staging.segment_of(after + 1, head)
    last = staging.segment_of(upto, head)
    return list(staging.manifests(first - 1, last))


def _on_storage(staging: Staging, files: tuple[DataFile, ...], directory: str) -> tuple[DataFile, ...]:
    """The files, those that lie in manifests as one for each table version."""
    inside: dict[str, list[DataFile]] = {}
    for file in files:
        if not file.path:
            inside.setdefault(file.schema, []).append(file)
    written = []
    for number, (fingerprint, group) in enumerate(inside.items()):
        rows = [batch for file in group for batch in staging.log_batches(file)]
        path = f"{directory}/staged-{number}.parquet"
        staging.storage.replace(path, parquet.encode(log_schema(staging.schema(fingerprint)), rows))
        written.append(
            replace(
                group[0],
                path=path,
                inline=b"",
                part=False,
                last_offset=group[-1].last_offset,
                has_unchanged=any(f.has_unchanged for f in group),
                has_moves=any(f.has_moves for f in group),
            )
        )
    return (*(f for f in files if f.path), *written)


def rows_at(spark: SparkSession, lake: DataFrame, staged: Staged, schema: TableSchema) -> DataFrame:
    """The rows of `lake` (`lake_rows`) with the staged events on top: `key` and `row`."""
    if staged.truncates:
        emptied = max(staged.truncates)
        lake = lake.where(F.col("offset") >= emptied)
        staged = staged.above(emptied)
    if staged.events is None:
        return lake.select("key", "row")
    touched = staged.events.select("key").distinct()
    touched = F.broadcast(touched) if staged.rows <= merge_plan.MAX_ROWS else touched
    rest = lake.join(touched, "key", "left_anti").select("key", "row")
    touched_rows = lake.join(touched, "key", "left_semi")
    folded = _fold_events(spark, staged, lake, touched_rows, schema)
    return rest.unionByName(_apply_rows(touched_rows, folded, schema))


def _fold_events(
    spark: SparkSession, staged: Staged, lake: DataFrame, touched_rows: DataFrame, schema: TableSchema
) -> DataFrame:
    assert staged.events is not None
    events = staged.events
    if not any(f.has_unchanged for f in staged.work.files):
        return fold.last_rows(events)
    # A row of the lake has the events up to its offset already: of a merge that is under way, which may have moved it
    # from a key that is gone. A later event keeps this row's values, and not those of an event before it.
    in_lake = touched_rows.groupBy("key").agg(F.max("offset").alias("_held"))
    is_later = F.col("_held").isNull() | (F.col("offset") > F.col("_held"))
    events = events.join(in_lake, "key", "left").where(is_later).drop("_held")
    if any(f.has_moves for f in staged.work.files):
        former_rows = lake.select("row.*", F.coalesce("offset", F.lit(-1)).alias(OFFSET))
        events = moved_unchanged_toast.resolve(spark, events, former_rows, schema)
    return fold.column_by_column(events, schema)


def _apply_rows(lake: DataFrame, folded: DataFrame, schema: TableSchema) -> DataFrame:
    """What a merge makes of these rows: a newer one replaces or removes, and columns that it lacks stay."""
    both = lake.alias("l").join(folded.alias("f"), F.col("l.key") == F.col("f.key"), "full_outer")
    in_lake = F.col("l.key").isNotNull()
    newer = F.col("f.offset") > F.col("l.offset")
    values = [
        F.when(F.array_contains("f.unchanged_toast", c.name), F.col(f"l.row.{quote(c.name)}"))
        .otherwise(F.col(f"f.row.{quote(c.name)}"))
        .alias(c.name)
        for c in schema.columns
    ]
    put = F.col("f.op") == fold.PUT
    row = (
        F.when(F.col("f.key").isNull() | (in_lake & ~newer), F.col("l.row"))
        .when(put & F.col("f.unchanged_toast").isNull(), F.col("f.row"))
        .when(put & in_lake, F.struct(*values))
    )
    rows = both.select(F.coalesce("l.key", "f.key").alias("key"), row.alias("row"))
    return rows.where(F.col("row").isNotNull())


def states_of_keys(staged: Staged, keys: DataFrame, schema: TableSchema) -> DataFrame | None:
    """Each change that the log knows of one of `keys`: its `key`, whether the row lives after it (`lives`), and its
    `row`; `whole` is false where the log left columns of that out. A TRUNCATE changes all of them. None: no change."""
    parts = []
    if staged.events is not None:
        changed = staged.events.where(F.col("origin") == "log").join(keys, "key", "left_semi")
        whole = F.coalesce(F.size("unchanged"), F.lit(0)) <= 0
        parts.append(changed.select("key", (F.col("op") != DELETE).alias("lives"), "row", whole.alias("whole")))
    if staged.truncates:
        no_row = F.lit(None).cast(row_shape(schema))
        parts.append(keys.select("key", F.lit(False).alias("lives"), no_row.alias("row"), F.lit(True).alias("whole")))
    return reduce(DataFrame.unionByName, parts) if parts else None
