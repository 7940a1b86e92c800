"""Somebody else wrote to a lake table: what the merge can set right it does, and what it cannot it refuses by name."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import State, history_location, read_status
from dblog_core.lake_engine.history.history_table import Begin
from dblog_core.lake_engine.history.rebuild_start import find_past
from tests.spark.lakes import TestLake
from tests.spark.segments import table

pytestmark = pytest.mark.one_of(6)

ITEMS = table("items", id=pa.int64(), v=pa.string())
OTHER = table("other", id=pa.int64())
_MARK = "spark.databricks.delta.commitInfo.userMetadata"


@pytest.fixture
def stranger(spark: SparkSession) -> SparkSession:
    """A session that is not ours: its commits carry no mark."""
    session = spark.newSession()
    session.conf.unset(_MARK)
    session.conf.set(_MARK, "somebody")
    return session


def _items(lake: TestLake, first: int, last: int) -> None:
    for number in range(first, last + 1):
        lake.build.create(ITEMS, {"id": number, "v": "a"})
    lake.build.seal()
    lake.merge_well()


def _name(lake: TestLake) -> str:
    return f"delta.`{lake.table(ITEMS)}`"


def _refusal_of_next_merge(lake: TestLake) -> str:
    """The error of the table's next merge, which leaves the other table well."""
    lake.build.update(ITEMS, {"id": 1, "v": "next"})
    lake.build.create(OTHER, {"id": lake.build.offset})
    lake.build.seal()
    lake.merge()
    status = read_status(lake.location)
    assert status is not None and status.tables[str(OTHER.table)].state is not State.STOPPED
    assert status.tables[str(ITEMS.table)].state is State.STOPPED
    return str(status.tables[str(ITEMS.table)].error)


def test_rows_without_an_offset_or_with_one_that_cannot_be_give_way_to_ours(
    lake: TestLake, stranger: SparkSession
) -> None:
    _items(lake, 1, 6)
    # 8 lies within the next merge, above the row's own line in it.
    offsets = "CASE id WHEN 3 THEN 999999 WHEN 5 THEN 8 END"
    stranger.sql(f"UPDATE {_name(lake)} SET v = 'theirs', _dblog_offset = {offsets} WHERE id BETWEEN 2 AND 5")
    stranger.sql(f"INSERT INTO {_name(lake)} VALUES (50, 'theirs', NULL, NULL, NULL, NULL)")
    lake.build.update(ITEMS, {"id": 5, "v": "ours"})
    lake.build.update(ITEMS, {"id": 2, "v": "ours"})
    lake.build.update(ITEMS, {"id": 3, "v": "ours"})
    lake.build.delete(ITEMS, {"id": 4})
    lake.build.delete(ITEMS, {"id": 50})
    lake.build.seal()
    lake.merge_well()
    assert {r["id"]: r["v"] for r in lake.rows(ITEMS)} == {1: "a", 2: "ours", 3: "ours", 5: "ours", 6: "a"}


def test_a_full_dump_takes_rows_with_null_in_their_key_along(lake: TestLake, stranger: SparkSession) -> None:
    """No event can name such a row; the history never had it."""
    lake.history = True
    _items(lake, 1, 3)
    values = "(NULL, 'theirs', NULL, NULL, NULL, NULL), (NULL, 'theirs', 1, '', NULL, '')"
    stranger.sql(f"INSERT INTO {_name(lake)} VALUES {values}")
    lake.build.update(ITEMS, {"id": 2, "v": "ours"})
    lake.build.seal()
    lake.merge_well()
    assert sorted(str(r["id"]) for r in lake.rows(ITEMS)) == ["1", "2", "3", "None", "None"]
    since = lake.build.offset
    lake.build.chunk(ITEMS, [{"id": n, "v": "ours" if n == 2 else "a"} for n in (1, 2)], dump="full")
    lake.build.finished(ITEMS, "full", since=since, since_segment=lake.build.segment + 1)
    lake.build.seal()
    lake.merge_well()
    assert {r["id"]: r["v"] for r in lake.rows(ITEMS)} == {1: "a", 2: "ours"}


def test_a_truncate_and_a_full_dump_take_their_rows_along(lake: TestLake, stranger: SparkSession) -> None:
    build = lake.build
    _items(lake, 1, 2)
    stranger.sql(f"INSERT INTO {_name(lake)} VALUES (50, 'x', NULL, NULL, NULL, NULL), (51, 'x', 999999, '', NULL, '')")
    since = build.offset
    build.chunk(ITEMS, [{"id": 1, "v": "a"}, {"id": 2, "v": "a"}], dump="full")
    build.finished(ITEMS, "full", since=since, since_segment=build.segment + 1)
    build.seal()
    lake.merge_well()
    assert [r["id"] for r in lake.rows(ITEMS)] == [1, 2]
    stranger.sql(f"INSERT INTO {_name(lake)} VALUES (50, 'x', NULL, NULL, NULL, NULL), (51, 'x', 999999, '', NULL, '')")
    build.truncate(ITEMS)
    build.create(ITEMS, {"id": 7, "v": "a"})
    build.seal()
    lake.merge_well()
    assert [r["id"] for r in lake.rows(ITEMS)] == [7]


def test_their_optimize_and_vacuum_stop_nothing(lake: TestLake, stranger: SparkSession) -> None:
    _items(lake, 1, 3)
    _items(lake, 4, 6)
    stranger.sql(f"OPTIMIZE {_name(lake)}")
    lake.build.update(ITEMS, {"id": 1, "v": "b"})
    lake.build.seal()
    lake.merge_well()
    assert [r["v"] for r in lake.rows(ITEMS)] == ["b", "a", "a", "a", "a", "a"]
    # A merge knows of no commit that was not its own, so nothing was rewritten but the one row.
    assert [r["_dblog_offset"] for r in lake.rows(ITEMS, provenance=True)] == [7, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("ALTER TABLE {} ADD COLUMNS (extra INT)", "extra"),
        ("ALTER TABLE {} SET TBLPROPERTIES ('dblog.key' = '[\"v\"]')", "key"),
        ("ALTER TABLE {} UNSET TBLPROPERTIES ('dblog.key')", "has not made"),
        ("ALTER TABLE {} RENAME COLUMN _dblog_offset TO renamed", "_dblog_offset"),
    ],
)
def test_a_shape_or_key_that_they_changed_stops_the_table_by_name(
    lake: TestLake, stranger: SparkSession, change: str, error: str
) -> None:
    _items(lake, 1, 2)
    if "RENAME" in change:
        stranger.sql(f"ALTER TABLE {_name(lake)} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    stranger.sql(change.format(_name(lake)))
    assert error in _refusal_of_next_merge(lake)


def test_a_table_that_was_removed_is_refused_and_one_that_was_put_back_is_dumped(lake: TestLake) -> None:
    _items(lake, 1, 2)
    path = lake.table(ITEMS).local
    assert path is not None
    shutil.copytree(path, backup := path.with_name("backup"))
    _items(lake, 3, 4)
    shutil.rmtree(path)
    assert "is gone" in _refusal_of_next_merge(lake) and not path.exists()
    backup.rename(path)
    lake.merge_well()
    status = read_status(lake.location)
    assert status is not None and "it ends at version 1" in str(status.tables[str(ITEMS.table)].damage)
    assert status.tables[str(ITEMS.table)].state is State.INCOMPLETE and lake.dumps.asked == [(str(ITEMS.table), [])]


def test_days_that_a_stranger_wrote_in_the_older_calendar_stop_the_table_until_they_are_written_again(
    lake: TestLake, stranger: SparkSession
) -> None:
    """In such a file 1500-01-01 is the number of another day: its key would not be found, and its values would be other
    days."""
    days = table("days", day=pa.date32(), other=pa.date32(), n=pa.int64(), key=("day",))
    old = [dt.date(1500, 1, number) for number in (1, 2, 3, 4)]
    for day in old:
        lake.build.create(days, {"day": day, "other": day, "n": 1})
    lake.build.seal()
    lake.merge_well()
    stranger.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    stranger.sql(f"UPDATE delta.`{lake.table(days)}` SET n = n")
    path = Path(str(lake.table(days)))
    keys = [pq.read_metadata(file).metadata or {} for file in path.glob("*.parquet")]
    assert any(b"org.apache.spark.legacyDateTime" in key for key in keys)
    lake.build.update(days, {"day": old[0], "other": None, "n": 2}, unchanged=["other"])
    lake.build.update(days, {"day": old[1], "other": old[0], "n": 2})
    lake.build.delete(days, {"day": old[2]})
    lake.build.chunk(days, [{"day": old[3], "other": old[3], "n": 1}])
    lake.build.seal()
    ((applied,),) = [merged.tables for merged in lake.merge()]
    assert "its times are of another calendar" in str(applied.error)
    stranger.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")
    stranger.sql(f"UPDATE delta.`{lake.table(days)}` SET n = n")
    lake.merge_well()
    assert [tuple(each.values()) for each in lake.rows(days)] == [
        (old[0], old[0], 2),
        (old[1], old[0], 2),
        (old[3], old[3], 1),
    ]


def test_a_restore_by_hand_is_told_and_the_dump_that_it_causes_heals_it(lake: TestLake, stranger: SparkSession) -> None:
    """It takes back an update and an insert, and brings back a row that was deleted."""
    _items(lake, 1, 4)
    lake.build.update(ITEMS, {"id": 1, "v": "new"})
    lake.build.delete(ITEMS, {"id": 2})
    _items(lake, 9, 9)
    stranger.sql(f"RESTORE TABLE {_name(lake)} TO VERSION AS OF 1")
    _items(lake, 10, 10)
    status = read_status(lake.location)
    assert status is not None and status.tables[str(ITEMS.table)].state is State.INCOMPLETE
    assert "(RESTORE, " in str(status.tables[str(ITEMS.table)].damage)
    assert lake.dumps.asked == [(str(ITEMS.table), [])]
    since = lake.build.offset
    truth = {1: "new", 3: "a", 4: "a", 9: "a", 10: "a"}
    lake.build.chunk(ITEMS, [{"id": number, "v": value} for number, value in truth.items()], dump="dump1")
    lake.build.finished(ITEMS, "dump1", since=since, since_segment=lake.build.segment + 1)
    lake.build.seal()
    lake.merge_well()
    assert {row["id"]: row["v"] for row in lake.rows(ITEMS)} == truth
    status = read_status(lake.location)
    assert status is not None and status.tables[str(ITEMS.table)].state is State.OK


def test_a_history_that_somebody_has_restored_begins_again_and_no_rebuild_takes_it(
    lake: TestLake, stranger: SparkSession
) -> None:
    lake.history = True
    _items(lake, 1, 4)
    _items(lake, 5, 6)
    history = history_location(lake.location, ITEMS.table)
    stranger.sql(f"RESTORE TABLE delta.`{history}` TO VERSION AS OF 1")
    status = read_status(lake.location)
    assert status is not None
    opened = lake.merger()._lake.open_history(ITEMS)
    with pytest.raises(LakeError, match=r"may lack lines: .*RESTORE"):
        find_past(opened, ITEMS, status.tables[str(ITEMS.table)])
    before = lake.build.offset
    _items(lake, 7, 7)
    assert opened.begin() == Begin(before, whole=False)
    assert [row["id"] for row in lake.rows(ITEMS)] == list(range(1, 8))
    _items(lake, 8, 8)
    assert opened.begin() == Begin(before, whole=False), "it goes on"
