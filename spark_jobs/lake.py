"""The Delta tables: made, widened, and changed by one MERGE a span, exactly once by Delta's transaction versions.

Every statement is also guarded by offsets, so that applying one again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dblog_core.errors import LakeError
from dblog_core.events import DELETE
from dblog_core.renames import Renames
from dblog_core.schema import TableSchema
from dblog_core.storage.location import Location
from spark_jobs import alters, delta_log, ranges, small
from spark_jobs.alters import KEY, Gone
from spark_jobs.fold import PUT, WITHHOLD
from spark_jobs.highest import Highest
from spark_jobs.ranges import Ranges
from spark_jobs.session import computed_once
from spark_jobs.shapes import (
    COMMIT_TIME,
    OFFSET,
    ORIGIN,
    POSITION,
    PROVENANCE,
    check_names,
    lake_shape,
    needs_mapping,
    quoted,
)  # fmt: skip

SMALL_TABLE = 16 << 20
"""Bytes of a table that is read whole: new literals in each merge would have Spark compile its code anew each time."""

_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True, slots=True)
class Batch:
    """Folded rows of one table, computed once; how many there are, and the ranges of each key column."""

    rows: DataFrame
    count: int = 0
    deletes: bool = False
    keeps: bool = False
    """Whether a row keeps lake values (`missing`)."""
    births: bool = False
    """Whether every row was born in this span, or comes from a dump: rows that the lake may well lack."""
    ranges: dict[str, Ranges] = field(default_factory=dict)


def measured(rows: DataFrame, schema: TableSchema) -> Batch:
    """Computes the folded rows once, and what the MERGE wants to know of them."""
    cached = computed_once(rows)
    bounded = [n for n, c in zip(schema.key, schema.key_columns, strict=True) if ranges.bounded(c.type)]
    ends = [
        F.struct(*(f(F.col(f"key.{quoted(n)}")).alias(n) for n in bounded)).alias(f.__name__)
        for f in (F.min, F.max)
        if bounded
    ]
    found = cached.agg(
        F.count(F.lit(1)).alias("count"),
        F.coalesce(F.bool_or(F.col("op") != PUT), F.lit(False)).alias("deletes"),
        F.coalesce(F.bool_or(F.col("missing").isNotNull()), F.lit(False)).alias("keeps"),
        F.coalesce(F.bool_and(F.col("inserted") | (F.col("origin") == "dump")), F.lit(False)).alias("births"),
        *ends,
    ).toArrow()
    count, deletes, keeps, births = (found[name][0].as_py() for name in ("count", "deletes", "keeps", "births"))
    keys = pa.concat_arrays([c.combine_chunks() for c in found.columns[4:]]) if count and bounded else None
    held = ranges.of_keys(keys, schema) if keys is not None else {}
    return Batch(cached, count, deletes, keeps, births, {n: ((r[0][0], r[-1][1]),) for n, r in held.items()})


def measured_here(spark: SparkSession, rows: pa.Table, schema: TableSchema) -> Batch:
    """The batch of rows that the driver has folded (`small`): all is known without a job."""
    births = pc.or_(rows["inserted"], pc.equal(rows["origin"], "dump"))
    return Batch(
        rows=spark.createDataFrame(rows, small.folded_shape(schema)),
        count=len(rows),
        deletes=bool(len(rows)) and pc.any(pc.not_equal(rows["op"], PUT)).as_py(),
        births=bool(len(rows)) and pc.all(births).as_py(),
        ranges=ranges.of_keys(rows["key"].combine_chunks(), schema),
    )


@contextmanager
def _transaction(spark: SparkSession, app: str, number: int) -> Iterator[None]:
    """Statements within commit as merge `number` of `app`. One pair covers one statement."""
    spark.conf.set(_APP, app)
    spark.conf.set(_VERSION, str(number))
    try:
        yield
    finally:
        spark.conf.unset(_APP)
        spark.conf.unset(_VERSION)


class LakeTable:
    """One table of the lake. `app` names our transactions in its Delta log."""

    def __init__(
        self,
        spark: SparkSession,
        path: Location,
        schema: TableSchema,
        *,
        app: str,
        highest: Highest | None = None,
        check: Callable[[], None] = lambda: None,
        gone: Gone | None = None,
        renames: Renames | None = None,
    ) -> None:
        """`check` raises LeaseLost once another may merge: it is asked right before every statement. `renames`: those
        that led to the shape."""
        self._check = check
        self._renames = renames or Renames()
        self._gone = gone or Gone()
        self._spark = spark
        self.path = path
        self._schema = schema
        self._app = app
        self._highest = highest or Highest()

    def exists(self) -> bool:
        return self.version() is not None

    def version(self) -> int | None:
        return delta_log.version(self.path)

    def prepare(self) -> None:
        """Makes the table, or gives it the shape. Raises LakeError for a shape that it can not take."""
        check_names(self._schema)
        self._check()
        if not self.exists():
            self._create()
            return
        if KEY not in self._properties():
            raise LakeError("holds a Delta table that dblog has not made", where=str(self.path), fix="move it away")
        self._rename()
        properties, have = self._properties(), self.rows().schema
        self._check_provenance(have)
        for statement in alters.statements(
            self._sql, have, properties, key=json.loads(properties[KEY]), schema=self._schema, gone=self._gone
        ):
            self._check()
            self._spark.sql(statement)

    def _rename(self) -> None:
        for step in self._renames.steps:
            for statement in alters.set_apart(self._sql, self.rows().schema, self._properties(), step):
                self._check()
                self._spark.sql(statement)
            for statement in alters.bring_together(self._sql, self.rows().schema, step):
                self._check()
                self._spark.sql(statement)

    def renamed(self) -> int:
        """The offset up to which its columns are renamed."""
        return alters.renamed(self._properties())

    def _check_provenance(self, shape: StructType) -> None:
        have = {f.name: f.dataType for f in shape}
        if lost := [f.name for f in PROVENANCE if have.get(f.name) != f.dataType]:
            raise LakeError(
                f"somebody has changed the column {', '.join(lost)}, which tells what has been merged",
                where=str(self.path),
                fix=f"undo it, or run `dblog reset {self._schema.table}`: the table is built anew",
            )

    def answer_others(self, *, after: int, merged: int) -> int:
        """Looks at what somebody else wrote since version `after`; returns the version up to which it has looked.

        A row without an offset, or beyond `merged` (the highest that a row of ours can have here), counts as older than
        all of ours from now on. Raises LakeError where the table is not the one that `after` was a version of.
        """
        newest = self.version()
        if newest is None or newest < after:
            found = "is gone" if newest is None else f"was replaced: it ends at version {newest}"
            raise LakeError(
                f"the lake table {found}; a merge left version {after}",
                where=str(self.path),
                fix=f"restore it, or run `dblog reset {self._schema.table}`: the table is built anew",
            )
        while delta_log.others_wrote(self.path, after, newest):
            self.prepare()
            self._disown(merged, newest)
            after, newest = newest, self._newest()
        return newest

    def _disown(self, merged: int, number: int) -> None:
        beyond = F.col(OFFSET).isNull() | (F.col(OFFSET) > merged)
        with _transaction(self._spark, f"{self._app}:others", number):
            DeltaTable.forPath(self._spark, str(self.path)).update(beyond, {OFFSET: F.lit(0).cast("long")})

    @property
    def _sql(self) -> str:
        return f"delta.{quoted(str(self.path))}"

    def replace(self, rows: DataFrame | None, number: int, *, renamed: int = 0) -> None:
        """Commits these folded rows, all of them whole (None: no row), in this shape, as merge `number` in place of all
        that the table has. Its versions go on. `renamed`: the offset of a rename in it that is still to be met."""
        check_names(self._schema)
        self._check()
        self._own_properties(renamed)
        options = {"overwriteSchema": "true", "txnAppId": self._app, "txnVersion": str(number)}
        if rows is None:
            new = self._spark.createDataFrame([], lake_shape(self._schema))
        else:
            new = rows.select(*(value.alias(name) for name, value in self._values("").items()))
        self._check()
        new.write.format("delta").mode("overwrite").options(**options).save(str(self.path))
        delta_log.check_committed(self.path, self._app, number)

    def _own_properties(self, renamed: int) -> None:
        """Where the key has become another one, or names need a mapping: a commit of its own, before the rows go."""
        wanted = {KEY: json.dumps(list(self._schema.key))}
        if needs_mapping(self._schema):
            wanted["delta.columnMapping.mode"] = "name"
        have = self._properties()
        if renamed > alters.renamed(have):
            wanted[alters.RENAMED] = str(renamed)
        if other := {name: value for name, value in wanted.items() if have.get(name) != value}:
            self._spark.sql(alters.set_properties(self._sql, other))

    def _properties(self) -> dict[str, str]:
        table = DeltaTable.forPath(self._spark, str(self.path))
        return dict(table.detail().select("properties").collect()[0][0])

    def kept(self) -> list[str]:
        """The columns that the table has and the source has no more."""
        return alters.kept(self._properties())

    def _create(self) -> None:
        builder = (
            DeltaTable.createIfNotExists(self._spark)
            .location(str(self.path))
            .addColumns(lake_shape(self._schema))
            .property("delta.enableDeletionVectors", "true")
            .property("delta.feature.timestampNtz", "supported")  # so that such a column can be added later
            .property(KEY, json.dumps(list(self._schema.key)))
        )
        if needs_mapping(self._schema):
            builder = builder.property("delta.columnMapping.mode", "name")
        if self._renames:
            builder = builder.property(alters.RENAMED, str(self._renames.last))
        builder.execute()

    def rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(str(self.path))

    def remove_older(self, offset: int) -> None:
        """TRUNCATE at `offset`: what came before goes."""
        self._check()
        DeltaTable.forPath(self._spark, str(self.path)).delete(F.col(OFFSET) < offset)

    def committed(self) -> int | None:
        """The newest merge that has committed here."""
        return delta_log.committed(self.path, self._app)

    def apply(self, batch: Batch, number: int, *, broadcast: bool, mending: bool = False) -> dict[str, int]:
        """Commits the batch as merge `number`, and looks whether it is there. Returns rows by what became of them.

        `mending`: rows that the lake has of the same offset are not trusted either.
        """
        delta_log.check_unused(self.path, self._app, number)
        before = self._newest()
        appended = not mending and self._has_none_of(batch, before)
        self._check()
        with _transaction(self._spark, self._app, number):
            counts = self._append(batch) if appended else self._merge(batch, broadcast=broadcast, mending=mending)
        delta_log.check_committed(self.path, self._app, number)
        self._highest.written(self.path, before, self._newest(), self._schema, batch.ranges)
        return counts

    def _newest(self) -> int:
        """The version of a table that is there."""
        if (version := self.version()) is None:
            raise LakeError("the table's Delta log is gone", where=str(self.path), fix="restore it from a backup")
        return version

    def _has_none_of(self, batch: Batch, version: int) -> bool:
        """Whether the table is certain to hold no key of the batch: nothing is to be compared then."""
        if version == 0:  # just made
            return True
        if not batch.births or batch.deletes or batch.keeps:
            return False
        return self._highest.all_above(self.path, version, self.rows(), self._schema, batch.ranges)

    def _append(self, batch: Batch) -> dict[str, int]:
        """The table has none of these keys: nothing to compare with."""
        whole = batch.rows.where((F.col("op") == PUT) & F.col("missing").isNull())
        columns = [value.alias(name) for name, value in self._values("").items()]
        whole = whole.coalesce(1) if batch.count <= small.MAX_ROWS else whole
        whole.select(*columns).write.format("delta").mode("append").save(str(self.path))
        # A row that is not whole is withheld, and one that is deleted was never there.
        inserted = batch.count if not (batch.deletes or batch.keeps) else whole.count()
        return {"inserted": inserted, "updated": 0, "deleted": 0}

    def _merge(self, batch: Batch, *, broadcast: bool, mending: bool) -> dict[str, int]:
        source = F.broadcast(batch.rows) if broadcast else batch.rows
        own = F.col(f"t.{OFFSET}")
        later = F.col("s.offset") >= own if mending else F.col("s.offset") > own
        merge = (
            DeltaTable.forPath(self._spark, str(self.path)).alias("t").merge(source.alias("s"), self._same_key(batch))
        )
        if batch.deletes:
            merge = merge.whenMatchedDelete(F.col("s.op").isin(DELETE, WITHHOLD) & later)
        emptied = {} if mending else dict.fromkeys(self._left(), F.lit(None))
        merge = merge.whenMatchedUpdate(
            (F.col("s.op") == PUT) & later & (F.col("s.inserted") | ~self._equal(batch.keeps)),
            {quoted(name): value for name, value in {**self._values("s.", keeps=batch.keeps), **emptied}.items()},
        )
        merge = merge.whenNotMatchedInsert(
            (F.col("s.op") == PUT) & F.col("s.missing").isNull(),
            {quoted(name): value for name, value in self._values("s.").items()},
        )
        metrics = merge.execute().collect()
        if not metrics:
            return {"inserted": 0, "updated": 0, "deleted": 0}
        return {name: int(metrics[0][f"num_{name}_rows"]) for name in ("inserted", "updated", "deleted")}

    def _left(self) -> list[str]:
        """The columns of the table that no row of the batch has: the source has dropped them."""
        names = {c.name for c in self._schema.columns}
        return [n for n in self.rows().columns if n not in names and not n.startswith("_dblog_")]

    def _same_key(self, batch: Batch) -> Column:
        """Equal keys; the literal ranges of the batch's keys let Delta leave out files."""
        parts = [F.col(f"t.{quoted(n)}") == F.col(f"s.key.{quoted(n)}") for n in self._schema.key]
        if self._bytes() > SMALL_TABLE:
            parts += ranges.on_key("t", batch.ranges, self._schema)
        return reduce(Column.__and__, parts)

    def _bytes(self) -> int:
        """The size of its files, from the snapshot that Delta holds: no job."""
        plan = self.rows()._jdf.queryExecution().analyzed()
        return int(plan.stats().sizeInBytes())

    def _equal(self, keeps: bool) -> Column:
        """Whether the lake has the row's values already: NULL equals NULL, NaN equals NaN."""
        same = []
        for column in self._schema.columns:
            equal = F.col(f"t.{quoted(column.name)}").eqNullSafe(F.col(f"s.row.{quoted(column.name)}"))
            same.append(_kept(column.name) | equal if keeps else equal)
        return reduce(Column.__and__, same)

    def _values(self, source: str, *, keeps: bool = False) -> dict[str, Column]:
        """Each lake column's new value. `keeps`: a missing one stays as the lake has it."""
        values: dict[str, Column] = {}
        for column in self._schema.columns:
            value = F.col(f"{source}row.{quoted(column.name)}")
            if keeps:
                value = F.when(_kept(column.name), F.col(f"t.{quoted(column.name)}")).otherwise(value)
            values[column.name] = value
        provenance = {OFFSET: "offset", POSITION: "position", COMMIT_TIME: "commit_time", ORIGIN: "origin"}
        return {**values, **{name: F.col(f"{source}{field}") for name, field in provenance.items()}}


def _kept(name: str) -> Column:
    return F.coalesce(F.array_contains("s.missing", name), F.lit(False))
