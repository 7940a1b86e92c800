"""Unchanged TOAST values of a row that changes its key: taken from the old key's row as it was then.

A row that got its key from another one (`c` with `moved_from`) and has `unchanged` columns is a *move*. Where its
values stand is found on the driver from the history of the keys involved, without any values: in another event of this
span, or in the lake. Chains of moves are followed; then two joins bring the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from dblog_core.model.events import CREATE, DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_of
from spark_jobs.delta_tables.column_types import OFFSET, key_shape, quote


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a key without its values."""

    offset: int
    op: str
    unchanged: frozenset[str]
    moved_from: Key | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the value of `column` for the move at `offset` stands: in event `event`, or in the lake's row `key`.

    `before`: the offset at which that row has moved away; a later row of the key is another one, which a lake has that
    is ahead of these events.
    """

    offset: int
    column: str
    event: int | None
    key: Key | None
    before: int = 0


def find_places(histories: Mapping[Key, list[Step]]) -> Iterator[Place]:
    """The place of every value that a move left out; none for what nobody has. Histories: by growing offset."""
    for history in histories.values():
        for step in history:
            if step.op == CREATE and step.moved_from is not None:
                for column in sorted(step.unchanged):
                    if (place := _find_place(histories, step, column)) is not None:
                        yield place


def _find_place(histories: Mapping[Key, list[Step]], move: Step, column: str) -> Place | None:
    """Follows the old key's life backwards from the move, and the moves that it came from."""
    key = move.moved_from
    before = move.offset
    while key is not None:
        life = [s for s in histories.get(key, ()) if s.offset < before]
        if life and life[-1].op == DELETE:
            life.pop()  # the other half of the move itself
        key_of_life = key
        key = None
        for step in reversed(life):
            if step.op == DELETE:
                return None
            if column not in step.unchanged:
                return Place(move.offset, column, step.offset, None)
            if step.op == CREATE:
                key = step.moved_from
                before = step.offset
                break
        else:
            return Place(move.offset, column, None, key_of_life, before)
    return None


def resolve(spark: SparkSession, events: DataFrame, lake: DataFrame | None, schema: TableSchema) -> DataFrame:
    """Events in which every move has all the values that this span or the lake knows; the rest stay in `unchanged`.
    `lake`: its rows, with their offsets as OFFSET."""
    histories = _histories(spark, events, schema)
    places = list(find_places(histories))
    if not places:
        return events
    values = _values_from_events(spark, events, [p for p in places if p.event is not None])
    from_lake = [p for p in places if p.key is not None]
    if lake is not None and from_lake:
        values = values.unionByName(_values_from_lake(spark, lake, from_lake, schema))
    return _fill_values(events, values, sorted({p.column for p in places}), schema)


def _histories(spark: SparkSession, events: DataFrame, schema: TableSchema) -> dict[Key, list[Step]]:
    """All events of the keys that moves come from. A chain passes through moves alone, so one look is enough."""
    moves = events.where((F.col("op") == CREATE) & F.col("moved_from").isNotNull() & (F.size("unchanged") > 0))
    ends = moves.select("key", "moved_from").collect()
    if not ends:
        return {}
    end_keys = {as_key(key) for row in ends for key in (row.key, row.moved_from)}
    keys = spark.createDataFrame([(key,) for key in end_keys], t.StructType([t.StructField("key", key_shape(schema))]))
    steps = events.join(F.broadcast(keys), "key", "left_semi").select("key", "offset", "op", "unchanged", "moved_from")
    histories: dict[Key, list[Step]] = {}
    for row in sorted(steps.collect(), key=lambda row: int(row.offset)):
        moved_from = as_key(row.moved_from) if row.moved_from else None
        step = Step(row.offset, row.op, frozenset(row.unchanged or ()), moved_from)
        histories.setdefault(as_key(row.key), []).append(step)
    return histories


def as_key(row: Row) -> Key:
    """A key struct that Spark handed over, as the rest of the program has keys."""
    return key_of(bytes(part) if isinstance(part, bytearray) else part for part in row)


def _values_from_events(spark: SparkSession, events: DataFrame, places: list[Place]) -> DataFrame:
    refs = spark.createDataFrame(
        [(p.offset, p.column, p.event) for p in places], "move long, column string, offset long"
    )
    return events.join(F.broadcast(refs), "offset").select("move", "column", "row")


def _values_from_lake(spark: SparkSession, lake: DataFrame, places: list[Place], schema: TableSchema) -> DataFrame:
    shape = t.StructType(
        [
            t.StructField("move", t.LongType()),
            t.StructField("column", t.StringType()),
            t.StructField("key", key_shape(schema)),
            t.StructField("before", t.LongType()),
        ]
    )
    refs = spark.createDataFrame([(p.offset, p.column, p.key, p.before) for p in places], shape)
    same: Any = [lake[quote(name)] == refs["key"].getField(name) for name in schema.key]
    same += [lake[OFFSET] < refs["before"]]
    row = F.struct(*(lake[quote(c.name)].alias(c.name) for c in schema.columns))
    return lake.join(F.broadcast(refs), same).select("move", "column", row.alias("row"))


def _fill_values(events: DataFrame, values: DataFrame, columns: list[str], schema: TableSchema) -> DataFrame:
    """Puts the found values into the moves' rows and takes their names from `unchanged`."""
    wrapped = [
        F.first(
            F.when(F.col("column") == name, F.struct(F.col(f"row.{quote(name)}").alias("value"))), ignorenulls=True
        ).alias(f"v{i}")
        for i, name in enumerate(columns)
    ]
    filled = F.collect_set("column").alias("filled")
    patch = values.groupBy(F.col("move").alias("offset")).agg(*wrapped, filled)
    joined = events.join(F.broadcast(patch), "offset", "left")
    number = {name: i for i, name in enumerate(columns)}
    fields = []
    for column in schema.columns:
        value = F.col(f"row.{quote(column.name)}")
        if (i := number.get(column.name)) is not None:
            value = F.when(F.col(f"v{i}").isNotNull(), F.col(f"v{i}.value")).otherwise(value)
        fields.append(value.alias(column.name))
    row = F.when(F.col("row").isNotNull(), F.struct(*fields))
    left = F.when(F.col("filled").isNull(), F.col("unchanged")).otherwise(F.array_except("unchanged", "filled"))
    patched = {"unchanged": left, "row": row}
    return joined.select(*(patched.get(name, F.col(name)).alias(name) for name in events.columns))
