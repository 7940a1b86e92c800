"""The history: every change once, in order, and nothing for a dump's row that did not change."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from dblog_core.delta_writer.altering.altered_table import Described
from dblog_core.lake.lake_status import history_location, read_status
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tables.column_types import history_shape
from spark_jobs.views import scd2
from tests.spark.history_lines import ITEMS, history_rows, item, lines
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.spark.test_ways import ODD
from tests.spark.worlds import SHAPE, Source
from tests.spark.worlds_history import Expected

pytestmark = pytest.mark.one_of(8)

EVENTS = table("events", key=(), what=pa.string(), n=pa.int64())
WORLDS = 60


def test_every_change_is_told_with_where_it_comes_from(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    build.create(ITEMS, item(1))
    build.line(ITEMS, "u", before=item(1), after=item(1, "w"))
    build.line(ITEMS, "d", before=item(1, "w"))
    build.create(ITEMS, item(2))
    build.move(ITEMS, {"id": 2}, item(3))
    build.seal()
    (merged,) = lake_with_history.merge_well()
    assert merged.tables[0].history == 6
    first, *_, deleted, born = sorted(lines(lake_with_history, ITEMS), key=lambda row: row["_dblog_offset"])
    when = first.pop("_dblog_commit_time")
    assert when.timestamp() == 1
    assert first == {
        **item(1), "_dblog_op": "c", "_dblog_offset": 1, "_dblog_position": "p1", "_dblog_origin": "log",
        "_dblog_transaction": "t1", "_dblog_unchanged": None, "_dblog_moved_from": None,
    }  # fmt: skip
    assert (deleted["_dblog_op"], deleted["id"], deleted["_dblog_unchanged"]) == ("d", 2, ["v", "big"])
    assert (born["_dblog_op"], born["id"], born["_dblog_moved_from"]) == ("c", 3, {"id": 2})
    # Staged with the key alone, whatever stands beside it.
    assert history_rows(lake_with_history, ITEMS)[2] == (3, "d", 1, None, None)
    assert lake_with_history.merge_well() == []


def test_a_row_of_a_dump_is_told_only_where_it_changes_something(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    build.chunk(ITEMS, [item(1), item(2), item(3)])
    build.seal()
    lake_with_history.merge_well()
    build.update(ITEMS, item(2, "later"))
    build.delete(ITEMS, {"id": 3})
    changed = build.chunk(ITEMS, [item(1), item(2, "later"), item(3), item(4, None), item(1, "new")], evicted=[3])
    build.delete(ITEMS, {"id": 3}, origin="dump")
    build.delete(ITEMS, {"id": 3}, origin="dump")
    build.seal()
    lake_with_history.merge_well()
    assert history_rows(lake_with_history, ITEMS) == [
        (1, "r", 1, "v", "b"), (2, "r", 2, "v", "b"), (3, "r", 3, "v", "b"),
        (4, "u", 2, "later", "b"), (5, "d", 3, None, None),
        (changed + 2, "r", 3, "v", "b"), (changed + 4, "r", 1, "new", "b"), (changed + 5, "d", 3, None, None),
    ]  # fmt: skip
    refreshed = [row for row in lines(lake_with_history, ITEMS) if row["_dblog_op"] == "r"]
    assert {row["_dblog_origin"] for row in refreshed} == {"dump"}
    assert {row["_dblog_transaction"] for row in refreshed} == {None}


def test_values_that_the_log_left_out_are_filled_in_where_they_are_known(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    build.create(ITEMS, item(1, big="one"))
    build.seal()
    lake_with_history.merge_well()
    build.update(ITEMS, item(1, "lake", None), unchanged=["big"])
    build.create(ITEMS, item(2, big="two"))
    build.update(ITEMS, item(2, "span", None), unchanged=["big"])
    build.update(ITEMS, item(7, "nobody", None), unchanged=["big"])
    build.move(ITEMS, {"id": 1}, item(5, "moved", None), unchanged=["big"])
    build.seal()
    lake_with_history.merge_well()
    by_value = {row["v"]: (row["big"], row["_dblog_unchanged"]) for row in lines(lake_with_history, ITEMS)}
    assert by_value["lake"] == ("one", None) and by_value["span"] == ("two", None)
    assert by_value["nobody"] == (None, ["big"]) and by_value["moved"] == ("one", None)
    # Its row waits for a dump: it lives, so a dump that says that it is gone tells something.
    build.delete(ITEMS, {"id": 7}, origin="dump")
    build.seal()
    lake_with_history.merge_well()
    assert history_rows(lake_with_history, ITEMS)[-1][:3] == (build.offset, "d", 7)


def test_a_truncate_is_one_line_and_what_follows_is_new(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    build.chunk(ITEMS, [item(1), item(2)])
    build.seal()
    lake_with_history.merge_well()
    build.update(ITEMS, item(1, "w"))
    build.truncate(ITEMS)
    build.chunk(ITEMS, [item(2)], dump="d2")
    build.truncate(ITEMS)
    build.create(ITEMS, item(1, "x"))
    build.seal()
    lake_with_history.merge_well()
    assert history_rows(lake_with_history, ITEMS)[2:] == [
        (3, "u", 1, "w", "b"), (4, "t", None, None, None), (5, "r", 2, "v", "b"), (6, "t", None, None, None),
        (7, "c", 1, "x", "b"),
    ]  # fmt: skip
    assert lake_with_history.rows(ITEMS) == [item(1, "x")]


def test_a_ghost_is_a_delete_of_the_dump_that_shows_it(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    build.chunk(ITEMS, [item(i) for i in range(4)], dump="first")
    build.seal()
    lake_with_history.merge_well()
    since = build.offset
    build.create(ITEMS, item(9))
    build.chunk(ITEMS, [item(0), item(2)], dump="full")
    build.finished(ITEMS, "full", since=since, since_segment=2)
    ended = build.offset
    build.seal()
    lake_with_history.merge_well()
    assert [r["id"] for r in lake_with_history.rows(ITEMS)] == [0, 2, 9]
    assert history_rows(lake_with_history, ITEMS)[4:] == [
        (since + 1, "c", 9, "v", "b"), (ended, "d", 1, None, None), (ended, "d", 3, None, None),
    ]  # fmt: skip


def test_a_table_without_a_key_has_its_history_alone(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    build.create(EVENTS, {"what": "a", "n": 1})
    build.create(ITEMS, item(1))
    build.create(EVENTS, {"what": "a", "n": 1})
    build.line(EVENTS, "u", before={"what": "a", "n": 1}, after={"what": "b", "n": 1})
    build.seal()
    lake_with_history.merge_well()
    build.truncate(EVENTS)
    build.seal()
    lake_with_history.merge_well()
    assert history_rows(lake_with_history, EVENTS) == [
        (1, "c", "a", 1),
        (3, "c", "a", 1),
        (4, "u", "b", 1),
        (5, "t", None, None),
    ]
    assert log.version(lake_with_history.table(EVENTS)) is None
    status = read_status(lake_with_history.location)
    assert status is not None and status.tables["shop.events"].state == "ok"
    assert set(lake_with_history.cuts()[-1]["tables"]) == {"shop.items"}


def test_added_columns_are_followed_and_a_history_may_begin_late(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    wider = table("items", id=pa.int64(), v=pa.string(), big=pa.string(), n=pa.decimal128(5, 2))
    lake_with_history.history = False
    build.create(ITEMS, item(1))
    build.seal()
    lake_with_history.merge_well()
    lake_with_history.history = True
    build.update(ITEMS, item(1, "kept"))
    build.seal()
    lake_with_history.merge_well()
    build.update(ITEMS, item(1, "old"))
    build.schema(wider)
    build.chunk(wider, [{**item(1, "old"), "n": None}, {**item(2), "n": None}])
    build.seal()
    lake_with_history.merge_well()
    assert history_rows(lake_with_history, wider) == [
        (2, "u", 1, "kept", "b", None), (3, "u", 1, "old", "b", None), (6, "r", 2, "v", "b", None),
    ]  # fmt: skip


def test_versions_end_with_the_next_change_a_delete_a_new_key_or_a_truncate(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    build.create(ITEMS, item(1))  # 1
    build.create(ITEMS, item(2))  # 2
    build.update(ITEMS, item(1, "w"))  # 3
    build.move(ITEMS, {"id": 2}, item(3))  # 4, 5
    build.delete(ITEMS, {"id": 1})  # 6
    build.create(ITEMS, item(1, "again"))  # 7
    build.seal()
    lake_with_history.merge_well()
    build.truncate(ITEMS)  # 8
    build.create(ITEMS, item(3, "after"))  # 9
    build.truncate(ITEMS)  # 10
    build.create(ITEMS, item(1, "last"))  # 11
    build.seal()
    lake_with_history.merge_well()
    expected = [
        (1, "v", 1, 3, False), (1, "w", 3, 6, False), (1, "again", 7, 8, False), (1, "last", 11, None, True),
        (2, "v", 2, 4, False), (3, "v", 5, 8, False), (3, "after", 9, 10, False),
    ]  # fmt: skip
    assert versions(scd2(lake_with_history.spark, lake_with_history.location, "shop.items")) == expected
    lines = lake_with_history.spark.read.format("delta").load(
        str(history_location(lake_with_history.location, ITEMS.table))
    )
    lines.createOrReplaceTempView("items__history")
    manual = Path(__file__).parents[2] / "docs" / "lake.md"
    statement = manual.read_text().partition("<!-- scd2 -->\n```sql\n")[2].partition("```")[0]
    named = statement.replace("delta.`/lake/shop/items__history`", "items__history")
    assert versions(lake_with_history.spark.sql(named)) == expected


def versions(versions_frame: DataFrame) -> list[tuple[Any, ...]]:
    """Key, value, the seconds between which it was valid, and whether it still is."""
    rows = versions_frame.orderBy("id", "valid_from").collect()
    ends = [(r.valid_from.timestamp(), r.valid_to and r.valid_to.timestamp()) for r in rows]
    return [(r.id, r.v, begin, end, r.is_current) for r, (begin, end) in zip(rows, ends, strict=True)]


@pytest.mark.one_of(10)
def test_the_history_is_what_a_reader_of_the_lines_would_have_kept(lake_with_history: TestLake) -> None:
    dice = random.Random(0)
    source = Source(lake_with_history.build, dice, WORLDS)
    expected = Expected()
    source.add_unseen_rows(0.3)
    for burst in range(2):
        for number in range(3):
            for world in range(WORLDS):
                for _ in range(dice.randrange(3)):
                    source.change(world)
            if dice.random() < 0.7:
                source.dump_chunk()
            if burst == 1 and number == 1:
                source.truncate()
            lake_with_history.build.seal(partial=dice.choice((0, 1)) if number < 2 else 0)
        for merged in lake_with_history.merge_well(max_rows=dice.choice((100, 10_000))):
            expected.read(source.lines, merged.offset)
    history_lines = sorted(lines(lake_with_history, SHAPE), key=lambda row: row["_dblog_offset"])
    assert [expected.as_told(row) for row in history_lines] == expected.lines
    assert expected.left_out, "no refresh was equal to what was there: the test shows nothing"


def test_a_dropped_column_keeps_its_values_where_its_name_is_taken_within_the_same_merge(
    lake_with_history: TestLake,
) -> None:
    """By an added column of another type, and again by one that is renamed."""
    build = lake_with_history.build
    first = table("t", id=pa.int64(), x=pa.string(), y=pa.int64())
    second = table("t", id=pa.int64(), x=pa.int64(), y=pa.int64())
    third = table("t", id=pa.int64(), x=pa.int64())
    build.create(first, {"id": 1, "x": "merged", "y": 10})
    build.seal()
    lake_with_history.merge_well()
    build.create(first, {"id": 2, "x": "staged", "y": 20})
    build.line(first, "d", before={"id": 1, "x": None, "y": None})
    build.schema(second, filled={"x": None})
    first_offset = build.offset
    build.create(second, {"id": 3, "x": 7, "y": 30})
    build.truncate(second)
    build.schema(third, renamed={"x": "y"})
    two = build.offset
    build.create(third, {"id": 4, "x": 40})
    build.seal()
    lake_with_history.merge_until("history shop.t")
    lake_with_history.merge_well()
    names = ("id", "x", f"x_until_{first_offset}", f"x_until_{two}")
    rows = sorted(lines(lake_with_history, third), key=lambda row: row["_dblog_offset"])
    assert [(row["_dblog_op"], *(row[name] for name in names)) for row in rows] == [
        ("c", 1, 10, "merged", None), ("c", 2, 20, "staged", None), ("d", 1, None, None, None),
        ("c", 3, 30, None, 7), ("t", None, None, None, None), ("c", 4, 40, None, None),
    ]  # fmt: skip
    assert lake_with_history.rows(third) == [{"id": 4, "x": 40}]


def test_a_row_is_erased_from_a_history_as_the_page_on_privacy_says(lake_with_history: TestLake) -> None:
    """By somebody else's statements: merges go on, and no file that is left has the row."""
    build = lake_with_history.build
    path = history_location(lake_with_history.location, ITEMS.table)
    for key in (1, 2):
        build.create(ITEMS, item(key, f"secret of {key}"))
    build.update(ITEMS, item(1, "another secret of 1"))
    build.seal()
    lake_with_history.merge_well()
    build.delete(ITEMS, {"id": 1})
    build.seal()
    lake_with_history.merge_well()
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    text = page.partition("### Erasing from a history")[2].partition("```sql")[2].partition("```")[0]
    statements = text.replace("LAKE/shop/orders__history", str(path)).replace("4711", "1").split(";")
    session = lake_with_history.spark.newSession()
    for statement in filter(None, map(str.strip, statements)):
        session.sql(statement)
    build.create(ITEMS, item(3))
    build.seal()
    lake_with_history.merge_well()
    assert [(op, key) for _, op, key, *_ in history_rows(lake_with_history, ITEMS)] == [("c", 2), ("c", 3)]
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    assert path.local is not None
    left = b"".join(repr(pq.read_table(file).to_pylist()).encode() for file in path.local.glob("*.parquet"))
    assert b"secret of 2" in left and b"secret of 1" not in left


def test_a_history_is_made_as_delta_makes_it(lake_with_history: TestLake) -> None:
    """With the columns, the properties and the features that Delta gives a table of the same form."""
    spark = lake_with_history.spark
    ours = table("ours", **{column.name: column.type for column in ODD.columns}, key=ODD.key)
    history = lake_with_history.merger()._lake.open_history(ours)
    history._prepare(None)
    properties = Described.of(history._table.snapshot.metadata).properties
    deltas = lake_with_history.path / "deltas"
    builder = (
        DeltaTable.create(spark).location(str(deltas)).addColumns(StructType.fromJson(history_shape(ours).json_value()))
    )
    for name, value in properties.items():
        builder = builder.property(name, value)
    builder.execute()
    made = []
    for path in (str(history.path), str(deltas)):
        detail = DeltaTable.forPath(spark, path).detail().collect()[0].asDict()
        columns = spark.read.format("delta").load(path).schema
        protocol = (detail["minReaderVersion"], detail["minWriterVersion"], sorted(detail["tableFeatures"]))
        made.append((detail["properties"], columns, protocol, detail["format"], detail["partitionColumns"]))
    assert made[0] == made[1]
