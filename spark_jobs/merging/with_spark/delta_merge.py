"""The MERGE of a batch into a lake table: which rows it touches, and what each column becomes.

Rows of the table are `t`, those of the batch `s`. Offsets guard each row, so that the same MERGE again changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dblog_core.lake.json_variants import json_columns
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import key_ranges, variants
from spark_jobs.delta_tables.column_types import COMMIT_TIME, OFFSET, ORIGIN, POSITION, quote
from spark_jobs.events import fold_on_driver
from spark_jobs.events.fold import PUT, WITHHOLD
from spark_jobs.merging.with_spark.batch import Batch
from spark_jobs.merging.with_spark.unchanged_toast import is_left_out, keep_lake_value

SMALL_TABLE = 16 << 20
"""Bytes of a table that is read whole: new literals in each merge would have Spark compile its code each time."""


def merge_batch(
    table: DeltaTable,
    batch: Batch,
    schema: TableSchema,
    *,
    have: StructType,
    broadcast: bool,
    mending: bool,
) -> dict[str, int]:
    """Runs the MERGE; returns rows by what became of them. `have`: the table's shape; `mending`: as in
    `LakeTable.merge`."""
    source = F.broadcast(batch.rows) if broadcast else batch.rows
    lake_offset = F.col(f"t.{OFFSET}")
    later = F.col("s.offset") >= lake_offset if mending else F.col("s.offset") > lake_offset
    merge = table.alias("t").merge(source.alias("s"), same_key(batch, schema, table.toDF()))
    if batch.deletes:
        merge = merge.whenMatchedDelete(F.col("s.op").isin(DELETE, WITHHOLD) & later)
    beside = variants.of(have)
    emptied = {} if mending else _null_columns(have, schema)
    values = {**emptied, **new_values(schema, "s.", beside, has_unchanged_toast=batch.has_unchanged_toast)}
    put = (F.col("s.op") == PUT) & later
    if mending:
        put &= F.col("s.inserted") | ~has_equal_values(schema, batch.has_unchanged_toast, beside)
    elif batch.dumped:  # what the log tells has changed something; and looking costs a column each in both passes
        is_news = F.col("s.inserted") | (F.col("s.origin") != "dump")
        put &= is_news | ~has_equal_values(schema, batch.has_unchanged_toast, beside)
    merge = merge.whenMatchedUpdate(
        put,
        {quote(name): value for name, value in values.items()},
    )
    merge = merge.whenNotMatchedInsert(
        (F.col("s.op") == PUT) & F.col("s.unchanged_toast").isNull(),
        {quote(name): value for name, value in new_values(schema, "s.", beside).items()},
    )
    metrics = merge.execute().collect()
    if not metrics:
        return {"inserted": 0, "updated": 0, "deleted": 0}
    return {name: int(metrics[0][f"num_{name}_rows"]) for name in ("inserted", "updated", "deleted")}


def append_batch(table: Location, batch: Batch, schema: TableSchema, *, have: StructType) -> dict[str, int]:
    """Appends the batch to a table that has no row of its keys: there is nothing to compare with."""
    whole = batch.rows.where((F.col("op") == PUT) & F.col("unchanged_toast").isNull())
    beside = variants.of(have) if json_columns(schema) else {}
    columns = [value.alias(name) for name, value in new_values(schema, "", beside).items()]
    whole = whole.coalesce(1) if batch.count <= fold_on_driver.MAX_ROWS else whole
    whole.select(*columns).write.format("delta").mode("append").save(str(table))
    # A row that is not whole is withheld, and one that is deleted was never there.
    inserted = batch.count if not (batch.deletes or batch.has_unchanged_toast) else whole.count()
    return {"inserted": inserted, "updated": 0, "deleted": 0}


def same_key(batch: Batch, schema: TableSchema, table: DataFrame) -> Column:
    """Equal keys of a row of the table (`t`) and one of the batch (`s`). Ranges of the batch's keys, as literals, let
    Delta leave out files of a larger table."""
    parts = [F.col(f"t.{quote(n)}") == F.col(f"s.key.{quote(n)}") for n in schema.key]
    # From the snapshot that Delta holds: no job.
    if int(table._jdf.queryExecution().analyzed().stats().sizeInBytes()) > SMALL_TABLE:
        parts += key_ranges.on_key("t", batch.ranges, schema)
    return reduce(Column.__and__, parts)


def new_values(
    schema: TableSchema, source: str, beside: Mapping[str, str], *, has_unchanged_toast: bool = False
) -> dict[str, Column]:
    """Each lake column's new value; `beside`: the VARIANTs, by text. `has_unchanged_toast`: a value that the log left
    out stays as the lake has it."""
    values: dict[str, Column] = {}
    for column in schema.columns:
        text = _row(source, column.name)
        values_of_column = {column.name: text}
        if column.name in beside:
            values_of_column[beside[column.name]] = variants.parse_text(text)
        for name, value in values_of_column.items():
            values[name] = keep_lake_value(column.name, name, value) if has_unchanged_toast else value
    provenance = {OFFSET: "offset", POSITION: "position", COMMIT_TIME: "commit_time", ORIGIN: "origin"}
    return {**values, **{name: F.col(f"{source}{field}") for name, field in provenance.items()}}


def _null_columns(have: StructType, schema: TableSchema) -> dict[str, Column]:
    """NULL for the columns of the table that no row of the batch has: the source has dropped them."""
    names = {c.name for c in schema.columns}
    left = [f for f in have if f.name not in names and not f.name.startswith("_dblog_")]
    return {f.name: F.lit(None).cast(f.dataType) for f in left}


def has_equal_values(schema: TableSchema, has_unchanged_toast: bool, beside: Mapping[str, str]) -> Column:
    """Whether the lake has the row's values already: NULL equals NULL, NaN equals NaN. VARIANTs (`beside`, by text)
    are looked at last, where all else is equal."""
    same = [(c.name, F.col(f"t.{quote(c.name)}").eqNullSafe(_row("s.", c.name))) for c in schema.columns]
    same += [
        (c.name, variants.agrees(F.col(f"t.{quote(beside[c.name])}"), _row("s.", c.name)))
        for c in schema.columns
        if c.name in beside
    ]
    return reduce(Column.__and__, (is_left_out(name) | equal if has_unchanged_toast else equal for name, equal in same))


def _row(source: str, name: str) -> Column:
    return F.col(f"{source}row.{quote(name)}")
