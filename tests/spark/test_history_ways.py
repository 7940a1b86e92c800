"""A history that is appended without Spark has the lines that Spark appends: both are compared, column by column."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from delta.tables import DeltaTable

from dblog_core.lake.lake_status import history_location
from dblog_core.model.schema import TableSchema
from spark_jobs.delta_tables import create_table
from spark_jobs.history.history_table import History
from spark_jobs.history.without_spark import Tables
from tests.spark.history_lines import ITEMS, item, lines
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table
from tests.spark.test_ways import ODD
from tests.spark.worlds import SHAPE, Source

pytestmark = pytest.mark.one_of(8)

EVENTS = table("events", key=(), what=pa.string(), n=pa.int64())


@pytest.fixture
def both_with_histories(both: tuple[TestLake, TestLake]) -> tuple[TestLake, TestLake]:
    for lake in both:
        lake.history = True
    return both


def lines_in_order(lake: TestLake, schema: TableSchema) -> list[Any]:
    """Every column of every line; NaN as text, which equals itself."""

    def comparable(value: Any) -> Any:
        return "NaN" if isinstance(value, float) and math.isnan(value) else value

    rows = [{name: comparable(value) for name, value in row.items()} for row in lines(lake, schema)]
    return sorted(rows, key=lambda row: (row["_dblog_offset"], [str(row[name]) for name in schema.key]))


def engines(lake: TestLake, schema: TableSchema) -> list[tuple[str, bool]]:
    """What each commit of the history was, and whether Spark made it."""
    path = str(history_location(lake.location, schema.table))
    commits = DeltaTable.forPath(lake.spark, path).history().orderBy("version").collect()
    return [(commit.operation, commit.engineInfo != "dblog") for commit in commits]


def compare(both: Sequence[TestLake], *schemas: TableSchema) -> None:
    counts = [[table.history for merged in lake.merge_well() for table in merged.tables] for lake in both]
    assert counts[0] == counts[1]
    for schema in schemas:
        assert lines_in_order(both[0], schema) == lines_in_order(both[1], schema)


def test_both_ways_tell_the_same_lines(both_with_histories: tuple[TestLake, TestLake], soak_seed: int) -> None:
    """Chunks, changes of key, values that the log left out, a TRUNCATE, and a dump that begins and one that ends."""
    source = Source(both_with_histories[0].build, random.Random(f"history ways {soak_seed}"), 30)
    source.add_unseen_rows(0.3)
    for _ in source.change_in_bursts(3):
        compare(both_with_histories, SHAPE)
    marking, merging = (engines(lake, SHAPE) for lake in both_with_histories)
    assert marking[0] == ("CREATE TABLE", False) and ("WRITE", False) in marking
    assert all(by_spark for _, by_spark in merging)
    # Ghosts alone are Spark's.
    assert marking.count(("WRITE", True)) <= 1


def test_values_are_compared_as_spark_compares_them(both_with_histories: tuple[TestLake, TestLake]) -> None:
    """A dump of rows that are equal, and of rows that are nearly so."""
    build = both_with_histories[0].build
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  # without a zone, as the column
    plain: Row = {
        "day": dt.date(1500, 2, 3), "code": "a", "amount": Decimal("1.5000"), "raw": b"\0", "at": moment,
        "since": moment.replace(tzinfo=dt.UTC), "ratio": math.nan, "flag": True,
    }  # fmt: skip
    nearly: list[Row] = [
        {}, {"ratio": -0.0}, {"ratio": 0.0}, {"ratio": 1.5}, {"ratio": None}, {"amount": Decimal("1.5001")},
        {"amount": None}, {"raw": b""}, {"raw": b"\0\0"}, {"at": moment + dt.timedelta(microseconds=1)},
        {"since": None}, {"flag": None}, {"flag": False}, {"ratio": math.inf}, {"ratio": 0.0, "raw": None},
    ]  # fmt: skip
    rows = [{**plain, **change, "code": f"{number}"} for number, change in enumerate(nearly)]
    build.chunk(ODD, rows, dump="first")
    build.seal()
    compare(both_with_histories, ODD)
    changed = [{**row, "ratio": 0.0 if row["ratio"] == 0.0 else row["ratio"]} for row in rows]
    following = [{**rows[(i + 1) % len(rows)], "code": row["code"]} for i, row in enumerate(rows)]
    build.chunk(ODD, changed, dump="second")
    build.chunk(ODD, following, dump="third")
    build.seal()
    compare(both_with_histories, ODD)
    told = [row for row in lines(both_with_histories[0], ODD) if row["_dblog_offset"] > len(rows)]
    # None of the second dump, and of the third one all but the pairs of zeros.
    assert 0 < len(told) < len(rows)
    assert {"WRITE", "CREATE TABLE"} == {
        name for name, by_spark in engines(both_with_histories[0], ODD) if not by_spark
    }


def test_a_table_without_a_key_is_told_in_both_ways(both_with_histories: tuple[TestLake, TestLake]) -> None:
    build = both_with_histories[0].build
    build.create(EVENTS, {"what": "a", "n": 1})
    build.line(EVENTS, "u", before={"what": "a", "n": 1}, after={"what": None, "n": 1}, unchanged=["what"])
    build.line(EVENTS, "d", before={"what": "a", "n": None})
    build.seal()
    compare(both_with_histories, EVENTS)
    build.truncate(EVENTS)
    build.seal()
    compare(both_with_histories, EVENTS)
    assert engines(both_with_histories[0], EVENTS) == [("CREATE TABLE", False), ("WRITE", False), ("WRITE", False)]


def test_a_history_goes_on_whichever_way_it_began(both_with_histories: tuple[TestLake, TestLake]) -> None:
    """The ways take turns, and a column is added in between."""
    build = both_with_histories[0].build
    wider = table("items", id=pa.int64(), v=pa.string(), big=pa.string(), n=pa.int32())
    for turn in range(4):
        for number, lake in enumerate(both_with_histories):
            lake.marks = (turn + number) % 2 == 0
        shape = wider if turn > 1 else ITEMS
        if turn == 2:
            build.schema(wider)
        rows = [{**item(key, f"{turn if key == 2 else 0}"), "n": turn if key == 3 else None} for key in range(4)]
        build.chunk(shape, [{c.name: row[c.name] for c in shape.columns} for row in rows], dump=f"d{turn}")
        build.seal()
        compare(both_with_histories, shape)
    for lake in both_with_histories:
        assert {by_spark for name, by_spark in engines(lake, wider) if name == "WRITE"} == {True, False}


def test_a_history_that_is_made_without_spark_is_what_delta_makes(
    lake_with_history: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_with_history.marks = True
    made = []
    for name, by_delta in (("ours", False), ("deltas", True)):
        if by_delta:
            monkeypatch.setattr(create_table, "has_default_properties", lambda spark: True)
        shape = table(name, **{column.name: column.type for column in ODD.columns}, key=ODD.key)
        lake = lake_with_history.merger()._lake
        history = lake.open_history(lake_with_history.spark, shape)
        history._prepare(None)
        detail = DeltaTable.forPath(lake_with_history.spark, str(history.path)).detail().collect()[0].asDict()
        properties = {n: v for n, v in detail["properties"].items() if n != "dblog.table"}
        columns = lake_with_history.spark.read.format("delta").load(str(history.path)).schema
        features = sorted(detail["tableFeatures"])
        protocol = (detail["minReaderVersion"], detail["minWriterVersion"])
        made.append((properties, columns, features, protocol, detail["format"], detail["partitionColumns"]))
        assert engines(lake_with_history, shape) == [("CREATE TABLE", by_delta)]
    assert made[0] == made[1]


def test_a_history_that_refuses_appends_of_ours_is_sparks(lake_with_history: TestLake) -> None:
    lake_with_history.marks = True
    build = lake_with_history.build
    build.create(ITEMS, item(1))
    build.seal()
    lake_with_history.merge_well()
    path = history_location(lake_with_history.location, ITEMS.table)
    lake_with_history.spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT some CHECK (_dblog_offset > 0)")
    build.create(ITEMS, item(2))
    build.seal()
    with mock.patch.object(Tables, "append", side_effect=AssertionError("not ours")):
        lake_with_history.merge_well()
    assert engines(lake_with_history, ITEMS)[-1] == ("WRITE", True)
    assert [row["id"] for row in lines_in_order(lake_with_history, ITEMS)] == [1, 2]


def test_a_history_that_is_altered_under_way_is_sparks(
    lake_with_history: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_with_history.marks = True
    build = lake_with_history.build
    build.create(ITEMS, item(1))
    build.seal()
    lake_with_history.merge_well()
    append = History._append

    def alter_first(history: History, told: Any, *more: Any) -> None:
        if isinstance(told, pa.Table):
            statement = f"ALTER TABLE delta.`{history.path}` SET TBLPROPERTIES ('somebody' = 'was here')"
            lake_with_history.spark.sql(statement)
        append(history, told, *more)

    monkeypatch.setattr(History, "_append", alter_first)
    build.create(ITEMS, item(2))
    build.seal()
    lake_with_history.merge_well()
    assert engines(lake_with_history, ITEMS)[-1] == ("WRITE", True)
    assert [row["id"] for row in lines_in_order(lake_with_history, ITEMS)] == [1, 2]
