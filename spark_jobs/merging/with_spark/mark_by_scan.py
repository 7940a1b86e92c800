"""Folded rows that Spark has, brought into a table as `mark_and_append` brings those that the driver has.

  the table's rows of these keys, with their places, at the snapshot's version -> which of the changes win
  -> places of rows that go, file by file -> vectors grown; rows that come -> files, by Delta's own writer
  -> one commit by the driver, created if absent

Executors scan the keys and write the files, so that works and tables may be of any size, and keys of any type. Which
change wins is as in `delta_writer.order_guard`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.features import BatchRefused, refusal
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.upsert import commit_deletes, commit_files, overtaken_error
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.variant_encoding import VARIANT
from spark_jobs.delta_tables import log
from spark_jobs.delta_tables.column_types import OFFSET, PROVENANCE, quote
from spark_jobs.delta_tables.new_files import write_files
from spark_jobs.delta_tables.session import compute_once
from spark_jobs.events import moved_unchanged_toast
from spark_jobs.events.fold import PUT, WITHHOLD
from spark_jobs.merging.with_spark import delta_merge
from spark_jobs.merging.with_spark.batch import Batch
from spark_jobs.merging.with_spark.unchanged_toast import keep_lake_value

_ATTEMPTS = 3  # each reads the keys again, and writes the rows again
_BROADCAST_ROWS = 200_000
_FEW = 1_000_000
"""Rows of a batch whose places the driver takes from Spark as they come."""
_PLACES_AT_ONCE = 4_000_000
"""Places that the driver takes from Spark at once: twelve bytes each."""

_PLAIN = re.compile(r"[\w/.:=-]+", re.ASCII)
"""An address that needs no encoding."""

# Beside a table's columns, none of which begins like this but our own.
_KEY = "_dblog_key"
_FILE = "_dblog_file"
_ADDRESS = "_dblog_address"
_ROW = "_dblog_row"
_LOST = "_dblog_lost"
_SAME = "_dblog_same"
_FIRST = "_dblog_first"
_MATCHED = "_dblog_matched"
_WINS = "_dblog_wins"
_PUTS = "_dblog_puts"
_UNKNOWN = "_dblog_unknown"


def write(
    spark: SparkSession,
    table: OpenTable,
    batch: Batch,
    schema: TableSchema,
    app: str,
    number: int,
    *,
    broadcast: bool,
    may_lose_upto: int | None,
    read_at: int | None,
    withhold: Callable[[list[Key]], None],
) -> Upserted:
    """Commits the batch as merge `number` of `app`, once, whatever others commit meanwhile.

    `may_lose_upto`: a log row up to this offset, and a dump's row, may lose against the table's (None: no row may);
    `read_at`: the version of the table that the batch has values from, if any. `withhold` gets, before the commit, the
    keys of rows with a value that nobody knows.

    Raises TableRefused for a table that takes a MERGE alone, Overtaken where others leave no room, LeaseLost where
    another may merge.
    """
    path = table.files.root
    for attempt in range(_ATTEMPTS):
        shape = table.refresh()
        version = table.snapshot.version
        last_number = table.snapshot.txns.get(app, -1)
        if attempt and last_number == number:
            return Upserted(version, already=True)  # by another process of ours, of the same rows
        if last_number >= number:
            raise log.already_committed(path, number, last_number)
        if not table.snapshot.takes_vectors:
            raise _refusal(table, "the table takes no deletion vectors")
        if shape.row_id is not None:
            raise _refusal(table, "its rows are tracked, and a MERGE keeps their ids")
        if any(column.type == VARIANT for column in shape):
            raise _refusal(table, "it has VARIANT columns, which a MERGE knows")
        if lacking := {*(c.name for c in schema.columns), *(f.name for f in PROVENANCE)} - set(shape.names):
            raise refusal(str(path), f"it lacks the column {', '.join(sorted(lacking))}")
        if read_at not in (None, version):
            break
        places = _Places(spark, table)
        if may_lose_upto is None and not batch.has_unchanged_toast:
            plan: _Plan = _all_win(places, batch, schema, broadcast=broadcast)
        else:
            plan = _plan(places, batch, schema, broadcast=broadcast, may_lose_upto=may_lose_upto)
        if unknown := plan.find_unknown():
            withhold(unknown)
        counts = plan.count(version + 1)
        added = write_files(spark, path, plan.new_rows()) if counts.inserted or counts.updated else []
        grown = list(places.grow_vectors(plan.places()))
        if commit_files(table, grown, added, batch.count, counts, app, number):
            return counts
    raise overtaken_error(table, _ATTEMPTS)


def remove(
    spark: SparkSession, table: OpenTable, choose: Callable[[DataFrame], DataFrame], app: str, number: int
) -> Upserted | None:
    """Removes those of the table's rows that `choose` leaves, as transaction `number` of `app`; None where there are
    none. All marks in the table's files count as deletes then.

    Raises as `write`.
    """
    for _ in range(_ATTEMPTS):
        table.refresh()
        if not table.snapshot.takes_vectors:
            raise _refusal(table, "the table takes no deletion vectors")
        places = _Places(spark, table)
        grown = list(places.grow_vectors(compute_once(places.number(choose(places.rows)).select(_FILE, _ROW))))
        if not grown:
            return None
        if (done := commit_deletes(table, grown, app, number)) is not None:
            return done
    raise overtaken_error(table, _ATTEMPTS)


class _Places:
    """The rows of the snapshot's version, with the places that Spark says they have.

    A file is a number to executors: its address in each row would be most of what they keep.
    """

    def __init__(self, spark: SparkSession, table: OpenTable) -> None:
        self._spark = spark
        self._table = table
        read = spark.read.format("delta").option("versionAsOf", table.snapshot.version).load(str(table.files.root))
        self.have = read.schema
        address, row = F.col("_metadata.file_path"), F.col("_metadata.row_index")
        self.rows = read.select("*", address.alias(_ADDRESS), row.alias(_ROW))
        """The table's columns, the address of the file, and the row's number in it."""
        addresses = read.inputFiles()
        self._files = [self._file_at(address) for address in addresses]
        path = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
        # As Spark writes the address of a row's file; for most files both are the same.
        encoded = [a if _PLAIN.fullmatch(a) else path(a).toUri().toString() for a in addresses]
        self._numbers = [(address, number) for number, address in enumerate(encoded)]

    def _file_at(self, address: str) -> LiveFile:
        path = address.removeprefix("file:").removeprefix(f"{self._table.files.root}/")
        if (live := self._table.snapshot.files.get(path)) is None:
            raise _refusal(self._table, f"Spark reads {address}, which its log does not name")
        return live

    def number(self, rows: DataFrame) -> DataFrame:
        """The rows with the number of their file in place of its address; NULL for one that is not known."""
        numbers = self._spark.createDataFrame(self._numbers, f"{_ADDRESS} string, {_FILE} int")
        return rows.join(F.broadcast(numbers), _ADDRESS, "left").drop(_ADDRESS)

    def grow_vectors(self, places: DataFrame | pa.Table) -> Iterator[tuple[LiveFile, RowSet]]:
        """The files that rows go from, with all rows of them that are dead then. `places`: numbers of files and of
        rows in them, computed once, or with the driver already."""
        if isinstance(places, pa.Table):
            if places[_FILE].null_count:
                raise self._unknown_file()
            yield from self._grow(places)
            return
        counts = {row[_FILE]: int(row["count"]) for row in places.groupBy(_FILE).count().collect()}
        if None in counts:
            raise self._unknown_file()
        # Several files at once, as many as are not too much: of one the places are at most its rows.
        turns: list[list[int]] = []
        size = 0
        for file in sorted(counts):
            if not turns or size + counts[file] > _PLACES_AT_ONCE:
                turns.append([])
                size = 0
            turns[-1].append(file)
            size += counts[file]
        for turn in turns:
            chosen = places.where(F.col(_FILE).between(turn[0], turn[-1]))
            yield from self._grow(chosen.select(_FILE, _ROW).toArrow())

    def _unknown_file(self) -> BatchRefused:
        return _refusal(self._table, "Spark gives rows the address of a file that it does not name")

    def _grow(self, chosen: pa.Table) -> Iterator[tuple[LiveFile, RowSet]]:
        of_file = np.asarray(chosen[_FILE])
        rows = np.asarray(chosen[_ROW])
        order = np.argsort(of_file, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(of_file[order])) + 1):
            if not len(part):
                continue
            live = self._files[of_file[part[0]]]
            dead = self._table.dead_rows(live)
            grown = dead.with_rows(rows[part])
            if len(grown) != len(dead) + len(part):
                raise _refusal(self._table, f"Spark reads rows of {live.path} that are not alive")
            yield live, grown


class _Plan(Protocol):
    """What becomes of a batch."""

    def find_unknown(self) -> list[Key]:
        """The keys of rows with a value that nobody has."""

    def count(self, version: int) -> Upserted:
        """The keys by what becomes of them in this version."""

    def new_rows(self) -> DataFrame:
        """The rows that come, in the table's columns: NULL in those that the source has dropped."""

    def places(self) -> DataFrame | pa.Table:
        """The places of the rows that go."""


@dataclass(frozen=True, slots=True)
class _AllWin:
    """Every row of the batch is newer than the table's, and whole: the batch itself is what comes. `matches`: the
    table's rows of its keys, as `places` wants them; `matched`: keys that rows come for, and keys that go."""

    matches: DataFrame | pa.Table
    matched: tuple[int, int]
    batch: Batch
    schema: TableSchema
    have: StructType

    def find_unknown(self) -> list[Key]:
        return []

    def count(self, version: int) -> Upserted:
        updated, deleted = self.matched
        puts = self.batch.rows.where(F.col("op") == PUT).count() if self.batch.deletes else self.batch.count
        absent = self.batch.count - puts - deleted
        return Upserted(version, inserted=puts - updated, updated=updated, deleted=deleted, absent=absent)

    def new_rows(self) -> DataFrame:
        values = delta_merge.new_values(self.schema, "", {})
        return self.batch.rows.where(F.col("op") == PUT).select(*_in_shape(values, self.have))

    def places(self) -> DataFrame | pa.Table:
        return self.matches


def _all_win(places: _Places, batch: Batch, schema: TableSchema, *, broadcast: bool) -> _AllWin:
    source = batch.rows.select("key", (F.col("op") == PUT).alias(_PUTS))
    source = F.broadcast(source) if broadcast else source
    matched = places.rows.alias("t").join(source.alias("s"), delta_merge.same_key(batch, schema, places.rows))
    # Keys are counted, and not rows: others may have doubled some. A hash is enough for a count.
    key = F.xxhash64("s.key").alias(_KEY)
    matches = places.number(matched.select(key, F.col(f"s.{_PUTS}"), f"t.{_ADDRESS}", f"t.{_ROW}"))
    if batch.count <= _FEW:  # one job, and all of it is with the driver
        few = matches.toArrow()
        is_put = np.asarray(few[_PUTS])
        keys = np.asarray(few[_KEY])
        counts = len(np.unique(keys[is_put])), len(np.unique(keys[~is_put]))
        return _AllWin(few, counts, batch, schema, places.have)
    matches = compute_once(matches)
    distinct = [F.count_distinct(F.when(is_so, F.col(_KEY))) for is_so in (F.col(_PUTS), ~F.col(_PUTS))]
    updated, deleted = matches.agg(*distinct).collect()[0]
    return _AllWin(matches, (updated, deleted), batch, schema, places.have)


def _in_shape(values: Mapping[str, Column], have: StructType) -> list[Column]:
    nothing = F.lit(None)
    return [values.get(field.name, nothing).cast(field.dataType).alias(field.name) for field in have]


@dataclass(frozen=True, slots=True)
class _Decided:
    """`matches`: the table's rows of the keys; `decided`: each row of the batch (`s`) with the newest one of its
    key (`t`); `left_out`: columns whose value the log left out in some row; `have`: the table's shape."""

    matches: DataFrame
    decided: DataFrame
    schema: TableSchema
    have: StructType
    left_out: Sequence[str]

    def find_unknown(self) -> list[Key]:
        unknown = self.decided.where(_UNKNOWN).select("s.key")
        return [moved_unchanged_toast.as_key(row.key) for row in unknown.collect()]

    def count(self, version: int) -> Upserted:
        goes = F.col(_WINS) & (F.col("s.op") != PUT)
        outcomes = {
            "inserted": F.col(_PUTS) & ~F.col(_MATCHED),
            "updated": F.col(_PUTS) & F.col(_MATCHED),
            "deleted": goes & F.col(_MATCHED),
            "older": F.coalesce(_LOST, F.lit(False)),
            "unchanged": F.coalesce(F.col(_SAME) & ~F.col(_LOST), F.lit(False)),
            "absent": goes & ~F.col(_MATCHED),
            "withheld": F.col(_UNKNOWN),
        }
        counted = self.decided.agg(*(F.count_if(is_so).alias(name) for name, is_so in outcomes.items())).collect()[0]
        return Upserted(version, **counted.asDict())

    def new_rows(self) -> DataFrame:
        values = delta_merge.new_values(self.schema, "s.", {})
        values |= {name: keep_lake_value(name, name, values[name]) for name in self.left_out}
        return self.decided.where(_PUTS).select(*_in_shape(values, self.have))

    def places(self) -> DataFrame:
        return self.matches.where(~F.col(_LOST) & ~F.col(_SAME)).select(_FILE, _ROW)


def _plan(
    places: _Places,
    batch: Batch,
    schema: TableSchema,
    *,
    broadcast: bool,
    may_lose_upto: int | None,
) -> _Decided:
    left_out: list[str] = []
    if batch.has_unchanged_toast:
        names = batch.rows.select(F.explode("unchanged_toast").alias("name")).distinct()
        left_out = sorted(row.name for row in names.collect())
    matches = _find_matches(places, batch, schema, left_out, broadcast=broadcast, may_lose_upto=may_lose_upto)
    newest = matches.where(_FIRST).drop(_FILE, _ROW, _FIRST)
    if matches.count() <= _BROADCAST_ROWS and not left_out:
        newest = F.broadcast(newest)
    decided = batch.rows.alias("s").join(newest.alias("t"), F.col("s.key") == F.col(f"t.{_KEY}"), "left")
    is_put = F.col("s.op") == PUT
    is_whole = F.col("s.unchanged_toast").isNull()
    is_matched = F.col(f"t.{_KEY}").isNotNull()
    wins = ~F.coalesce(F.col(_LOST) | F.col(_SAME), F.lit(False))
    flags = {
        _MATCHED: is_matched,
        _WINS: wins,
        _PUTS: wins & is_put & (is_whole | is_matched),
        _UNKNOWN: (F.col("s.op") == WITHHOLD) | (is_put & ~is_whole & ~is_matched),
    }
    return _Decided(matches, decided.withColumns(flags), schema, places.have, left_out)


def _find_matches(
    places: _Places,
    batch: Batch,
    schema: TableSchema,
    left_out: Sequence[str],
    *,
    broadcast: bool,
    may_lose_upto: int | None,
) -> DataFrame:
    """The table's rows of the batch's keys, computed once: key, place, whether the change loses against them or says
    nothing new, whether it is the newest one of its key, and its `left_out` values."""
    source = F.broadcast(batch.rows) if broadcast else batch.rows
    order = F.col(f"t.{OFFSET}")
    overtaken = equal = F.lit(False)
    if may_lose_upto is not None:  # otherwise keys and offsets are all that is read
        is_guarded = (F.col("s.origin") == "dump") | (F.col("s.offset") <= may_lose_upto)
        # A row without an offset is older than any change: somebody else has written it. An equal offset is this very
        # change.
        overtaken = is_guarded & F.coalesce(order >= F.col("s.offset"), F.lit(False))
        is_compared = is_guarded & (F.col("s.op") == PUT) & ~F.col("s.inserted")
        equal = is_compared & delta_merge.has_equal_values(schema, batch.has_unchanged_toast, {})
    matched = places.rows.alias("t").join(source.alias("s"), delta_merge.same_key(batch, schema, places.rows))
    matches = matched.select(
        F.col("s.key").alias(_KEY),
        F.col(f"t.{_ADDRESS}").alias(_ADDRESS),
        F.col(f"t.{_ROW}").alias(_ROW),
        order.alias(OFFSET),
        overtaken.alias(_LOST),
        equal.alias(_SAME),
        *(F.col(f"t.{quote(name)}").alias(name) for name in left_out),
    )
    of_key = Window.partitionBy(_KEY)
    newest = of_key.orderBy(F.col(OFFSET).desc_nulls_last(), _FILE, _ROW)
    verdicts = {
        _LOST: F.max(_LOST).over(of_key),
        # Several live rows of one key are another program's doing: such a key is always written, as one row.
        _SAME: F.max(_SAME).over(of_key) & (F.count(F.lit(1)).over(of_key) == 1),
        _FIRST: F.row_number().over(newest) == 1,
    }
    return compute_once(places.number(matches).withColumns(verdicts).drop(OFFSET))


def _refusal(table: OpenTable, reason: str) -> BatchRefused:
    return BatchRefused(f"rows cannot be marked: {reason}", where=str(table.files), fix="Spark merges the batch")
