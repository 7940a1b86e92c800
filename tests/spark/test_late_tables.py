"""Merges that do not wait for a slow table, over real tables: judged at every cut by another reader of Delta."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from dblog_core.lake.lake_status import read_status
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.late_tables import LateTables, Shares
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.lake_engine.merging.table_merge import Share, TableMerge
from tests.spark.faulty_runs import NAMES, Model, judge
from tests.spark.lakes import Crash, TestLake
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.one_of(4)

QUICK, SLOW = (f"shop.{name}" for name in NAMES)
BURSTS = 6


class SlowTable:
    """Holds the merges of the one table up; `fate`: what becomes of the one that is held."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._let_go = threading.Event()
        self._let_go.set()
        self._quick_is_in = threading.Event()
        self.fate = "goes on"
        apply = TableMerge.apply

        def wait_and_apply(merge: TableMerge, share: Share) -> Applied | None:
            work = share.work
            if work.table == SLOW:
                assert self._let_go.wait(PATIENCE_SECONDS), "it was never let go"
                if self.fate == "dies":
                    raise Crash
            applied = apply(merge, share)
            if work.table == SLOW and self.fate == "dies after its commit":
                raise Crash
            if work.table == QUICK:
                self._quick_is_in.set()
            return applied

        patch.setattr(TableMerge, "apply", wait_and_apply)
        # The merge ends without the slow table as soon as the quick one is in.
        run = LateTables.run

        def run_until_quick_is_in(late: LateTables, *args: Any, **more: Any) -> Shares:
            return run(late, *args, **{**more, "has_news": self._quick_is_in.is_set})

        patch.setattr(LateTables, "run", run_until_quick_is_in)
        patch.setattr(LateTables, "have_arrived", lambda late: self._quick_is_in.is_set())

    def hold(self) -> None:
        self.fate = "goes on"
        self._let_go.clear()

    def let_go(self, fate: str = "goes on") -> None:
        self.fate = fate
        self._let_go.set()

    def merge(self, merger: Merger, upto: int) -> bool:
        """One merge; whether the slow table is late in it."""
        self._quick_is_in.clear()
        merged = merger.run_round(retry_stopped=False, upto=upto, patience=0.0)
        assert merged is None or not [t.error for t in merged.tables if t.error]
        return merged is not None and SLOW in merged.late


@pytest.mark.in_turn("history")
@pytest.mark.parametrize("history", [False, True])
def test_what_a_slow_table_brings_in_later_is_right_at_every_cut(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch, soak_seed: int, history: bool
) -> None:
    dice = random.Random(f"late {soak_seed}")
    lake.history = history
    model = Model(lake, dice, plain=False)
    slow = SlowTable(monkeypatch)
    merger = lake.merger()
    was_late = 0
    for burst in range(BURSTS):
        model.change(None)
        if dice.random() < 0.7 or not burst:
            slow.hold()
        before = read_status(lake.location)
        late = slow.merge(merger, lake.build.segment)
        after = read_status(lake.location)
        assert after is not None and (before is None or after.segment > before.segment)
        assert after.tables[QUICK].offset == after.offset
        was_late += late
        fate = dice.choice(("goes on", "goes on", "stays", "dies", "dies after its commit"))
        if fate != "stays":
            slow.let_go(fate)
        if fate.startswith("dies"):
            merger.close()
            slow.let_go()
            merger = lake.merger()
    slow.let_go()
    while merger.settle() is not None:
        pass
    merger.close()
    assert was_late
    lake.merge_well()
    judge(lake, model, 0, with_late_tables=True)
