"""The history where a merge dies between its steps, or stops: every line is there, once."""

from __future__ import annotations

from typing import Any

import pytest

from dblog_core.errors import LakeError
from dblog_core.lake_engine.history.history_table import History
from dblog_core.lake_engine.merging import upsert_rows
from tests.fix_day import OfADay
from tests.spark.history_lines import ITEMS, history_rows, item
from tests.spark.lakes import Crash, TestLake

pytestmark = pytest.mark.one_of(8)

STEPS = ("recorded", "history shop.items", "truncated shop.items", "merged shop.items", "applied shop.items", "cut")


def test_a_crash_at_any_step_neither_loses_nor_repeats_a_line(lake_with_history: TestLake, of_a_day: OfADay) -> None:
    build = lake_with_history.build
    build.chunk(ITEMS, [item(i) for i in range(3)], dump="first")
    build.seal()
    lake_with_history.merge_well()
    expected = [(i + 1, "r", i, "v", "b") for i in range(3)]
    for step in of_a_day(STEPS, 3):
        since = build.offset
        segment = build.segment + 1
        if step.startswith("truncated"):
            build.truncate(ITEMS)
            expected.append((build.offset, "t", None, None, None))
            build.seal()  # with rows behind it, it is no step of its own
            lake_with_history.merge_until(step)
        expected.append((build.create(ITEMS, item(100 + since, step)), "c", 100 + since, step, "b"))
        first = build.chunk(ITEMS, [item(0), item(1, step), item(100 + since, step)], dump=step)
        if step.startswith("truncated"):
            expected.append((first, "r", 0, "v", "b"))
        expected.append((first + 1, "r", 1, step, "b"))
        build.seal()
        if not step.startswith("truncated"):
            lake_with_history.merge_until(step)
        build.update(ITEMS, item(0, "later"))  # what comes after the crash is compared with what came before
        build.update(ITEMS, item(0))
        expected += [(build.offset - 1, "u", 0, "later", "b"), (build.offset, "u", 0, "v", "b")]
        build.seal()
        lake_with_history.merge_well()
        assert segment < build.segment
        assert history_rows(lake_with_history, ITEMS) == expected, step


def test_a_crash_between_a_ghosts_line_and_its_delete_tells_it_once(
    lake_with_history: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = lake_with_history.build
    build.chunk(ITEMS, [item(0), item(1)], dump="first")
    build.seal()
    lake_with_history.merge_well()
    build.chunk(ITEMS, [item(0)], dump="full")
    build.finished(ITEMS, "full", since=2, since_segment=2)
    build.seal()
    with monkeypatch.context() as patched:
        take = History.append_ghosts

        def die(*arguments: Any) -> None:
            take(*arguments)
            raise Crash

        patched.setattr(History, "append_ghosts", die)
        with pytest.raises(Crash):
            lake_with_history.merge()
    assert len(lake_with_history.rows(ITEMS)) == 2
    lake_with_history.merge_well()
    assert lake_with_history.rows(ITEMS) == [item(0)]
    assert history_rows(lake_with_history, ITEMS)[2:] == [(build.offset, "d", 1, None, None)]


def test_a_table_that_stopped_after_its_history_goes_on_without_repeating_it(
    lake_with_history: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = lake_with_history.build
    build.create(ITEMS, item(1))
    build.seal()
    with monkeypatch.context() as patched:

        def fails(*_arguments: Any, **_more: Any) -> None:
            raise LakeError("the disk is full")

        patched.setattr(upsert_rows, "write", fails)
        (merged,) = lake_with_history.merge()
        assert merged.tables[0].error is not None
    build.chunk(ITEMS, [item(1), item(2)])
    build.seal()
    lake_with_history.merge_well()
    assert lake_with_history.rows(ITEMS) == [item(1), item(2)]
    assert history_rows(lake_with_history, ITEMS) == [(1, "c", 1, "v", "b"), (3, "r", 2, "v", "b")]
