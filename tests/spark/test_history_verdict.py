"""The last lines of a history beside the table: every damaged line is found, and a sound history raises no alarm."""

from __future__ import annotations

import random

import pytest

from dblog_core.lake.lake_status import history_location
from dblog_core.model.schema import TableSchema
from dblog_core.verify.judge import bucketed_rows, hashed_rows, history_comparison
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.report import Differences, HistoryReport
from tests.spark.asked import ask_well
from tests.spark.history_lines import ITEMS, item
from tests.spark.lakes import TestLake
from tests.spark.worlds import SHAPE, Source

pytestmark = pytest.mark.one_of(8)


def verdict(lake: TestLake, schema: TableSchema = ITEMS) -> HistoryReport:
    return Judge(lake.staging, lake.location).compare_history(schema)


def damage(lake: TestLake, *statements: str) -> None:
    """Somebody changes lines, which the table's property forbids."""
    table = f"delta.`{history_location(lake.location, ITEMS.table)}`"
    lake.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    for statement in statements:
        lake.spark.sql(statement.replace("{}", table))


def fill(lake: TestLake) -> None:
    """Keys 1 to 6, of which 2 is changed and 3 is deleted."""
    for key in range(1, 7):
        lake.build.create(ITEMS, item(key))
    lake.build.update(ITEMS, item(2, "new", None), unchanged=["big"])
    lake.build.delete(ITEMS, {"id": 3})
    lake.build.seal()
    lake.merge_well()


def test_each_damaged_line_is_found_and_a_reset_writes_right_ones(lake_with_history: TestLake) -> None:
    lake = lake_with_history
    fill(lake)
    assert verdict(lake) == HistoryReport()
    damage(
        lake,
        "UPDATE {} SET v = 'wrong' WHERE id = 1",
        "DELETE FROM {} WHERE id = 2 AND _dblog_op = 'u'",
        "DELETE FROM {} WHERE id = 3 AND _dblog_op = 'd'",
        "DELETE FROM {} WHERE id = 4",
        "UPDATE {} SET _dblog_op = 'd' WHERE id = 5",
    )
    found = verdict(lake)
    assert found == HistoryReport(Differences((4, 5), (3,), ((1, ("v",)), (2, ("v",)))))

    ask_well(lake, "reset", {"table": str(ITEMS.table)}, dumps=lake.dumps)
    assert verdict(lake).not_compared == "the table lacks rows or values: it waits for dump dump1"
    since = lake.build.offset
    rows = [item(1), item(2, "new"), *map(item, (4, 5, 6))]
    lake.build.chunk(ITEMS, rows, dump="dump1")
    lake.build.finished(ITEMS, "dump1", since=since, since_segment=lake.build.segment + 1)
    lake.build.seal()
    lake.merge_well()
    assert verdict(lake) == HistoryReport()


@pytest.mark.one_of(10)
def test_a_sound_history_raises_no_alarm(lake_with_history: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a table of which rows wait for a dump, though nobody asks then; few rows are compared at once."""
    monkeypatch.setattr(bucketed_rows, "BUCKET_ROWS", 7)
    monkeypatch.setattr(bucketed_rows, "PART_ROWS", 5)
    monkeypatch.setattr(hashed_rows, "IMAGE_BYTES", 100)
    monkeypatch.setattr(history_comparison, "explain_not_comparable", lambda _: None)
    dice = random.Random(3)
    source = Source(lake_with_history.build, dice, 40)
    source.add_unseen_rows(0.3)
    for burst in range(3):
        for number in range(3):
            for world in range(40):
                for _ in range(dice.randrange(3)):
                    source.change(world)
            if dice.random() < 0.7:
                source.dump_chunk()
            if burst == 1 and number == 1:
                source.truncate()
            lake_with_history.build.seal()
        lake_with_history.merge_well()
        found = verdict(lake_with_history, SHAPE)
        assert found == HistoryReport(), (burst, found)


def test_lines_of_a_merge_that_is_not_over_are_no_difference(lake_with_history: TestLake) -> None:
    """They are appended before the table takes them."""
    lake = lake_with_history
    fill(lake)
    lake.build.update(ITEMS, item(1, "next"))
    lake.build.delete(ITEMS, {"id": 4})
    lake.build.create(ITEMS, item(7))
    lake.build.seal()
    for step in ("history shop.items", "applied shop.items"):
        lake.merge_until(step)
        assert verdict(lake) == HistoryReport(), step
    lake.merge_well()
    assert verdict(lake) == HistoryReport()


def test_a_history_that_began_late_is_compared_in_the_keys_that_it_has(lake: TestLake) -> None:
    fill(lake)
    lake.history = True
    lake.build.update(ITEMS, item(1, "told"))
    lake.build.delete(ITEMS, {"id": 4})
    lake.build.seal()
    lake.merge_well()
    assert verdict(lake) == HistoryReport(), "2, 5 and 6 have no line"
    damage(lake, "UPDATE {} SET v = 'wrong' WHERE id = 1")
    assert verdict(lake) == HistoryReport(Differences(different=((1, ("v",)),)))
    lake.history = False
    lake.build.update(ITEMS, item(5, "not told"))
    lake.build.seal()
    lake.merge_well()
    assert verdict(lake) == HistoryReport(not_compared="the last merge of the table did not write its history")
