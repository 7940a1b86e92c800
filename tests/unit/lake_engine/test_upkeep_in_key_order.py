"""Tables whose files share keys are put in the order of the key beside their merges, and no row changes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import cluster_files, key_overlap, ordered_rewrite
from dblog_core.delta_writer.rewriting.cluster_files import plan_cluster
from dblog_core.delta_writer.rewriting.key_overlap import KeyRange, Overlap, ends_of
from dblog_core.delta_writer.rewriting.ordered_rewrite import OrderedRewrite
from dblog_core.lake_engine.tasks import file_upkeep, upkeep
from dblog_core.lake_engine.tasks.upkeep import Upkeep
from tests.unit.delta_writer.tables import newest
from tests.unit.lake_engine.test_upkeep import NAME, World, marked_files, world

__all__ = ["world"]


TARGET = 3000  # bytes of a new file


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[OrderedRewrite]:
    """The rewrites that put files in order: of a few rows, as soon as two files share a key. None are joined."""
    planned: list[OrderedRewrite] = []

    def plan_small(table: OpenTable, **options: Any) -> OrderedRewrite | None:
        rewrite = plan_cluster(table, **options, target=TARGET)
        planned.extend([] if rewrite is None else [rewrite])
        return rewrite

    monkeypatch.setattr(key_overlap, "FILES", 1.2)
    # Files are so small that what each takes for itself counts most.
    monkeypatch.setattr(ordered_rewrite, "is_worth", lambda files, new_files, others: True)
    monkeypatch.setattr(upkeep, "plan_join", lambda table, at_least: None)
    monkeypatch.setattr(upkeep, "plan_cluster", plan_small)
    monkeypatch.setattr(cluster_files, "cluster_files", partial(cluster_files.cluster_files, target=TARGET))
    return planned


def overlap_of(world: World) -> Overlap:
    table = world.open()
    table.refresh()
    live_files = table.snapshot.files.values()
    ends = [ends_of(live.add["stats"], table.keys) for live in live_files]
    return Overlap([KeyRange(live.size, e) for live, e in zip(live_files, ends, strict=True)])


def finish(world: World) -> None:
    """Until the table's turn is over."""
    steps = 0
    while world.step() is not None:
        steps += 1
        assert steps < 40, "it does not end"


@pytest.mark.thorough
def test_files_that_share_keys_are_put_in_order_while_merges_continue(
    world: World, clusters: list[OrderedRewrite]
) -> None:
    world.merge_some(4)
    assert overlap_of(world).is_mixed(upkeep._TIMES) and world.step(wait=False) is None
    world.merge_some(2)
    for _ in range(3):
        world.step()
        world.merge_some(1)
    finish(world)
    assert clusters and world.operations().count("OPTIMIZE") > 0
    # Dead rows count here, and not in the plan.
    assert not overlap_of(world).is_mixed(1.5 * upkeep._TIMES)
    world.merge_some(2)
    world.check()


def test_a_maintenance_waits_until_its_files_are_in_order(world: World, clusters: list[OrderedRewrite]) -> None:
    world.upkeep = Upkeep(world.staging, 0)
    world.merge_some(6)
    before = overlap_of(world).files
    world.upkeep.ask({NAME: 1.0})
    assert world.step(wait=False) is None and world.upkeep.has_asked
    finish(world)
    assert clusters and not world.upkeep.has_asked and overlap_of(world).files < before
    assert not file_upkeep.cluster_all(world.open(), lambda: None), "it finds nothing left to put in order"
    world.check()


def test_a_turn_puts_only_so_much_in_order(
    world: World, clusters: list[OrderedRewrite], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "plan_purge", lambda table, share, among: None)
    monkeypatch.setattr(upkeep, "_Turn", partial(upkeep._Turn, most_ordered=1))
    monkeypatch.setattr(key_overlap.Overlap, "is_mixed", lambda overlap, times: True)
    world.merge_some(6)
    assert world.step() == NAME and len(clusters) == 1
    assert world.step() is None and len(clusters) == 1, "others have their turns"


def test_files_that_are_not_worth_it_end_neither_the_turn_nor_the_maintenance(
    world: World, clusters: list[OrderedRewrite], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OrderedRewrite, "carry_out", lambda self, check: None)
    monkeypatch.setattr(upkeep, "limit_of", lambda table: 1)  # what was not done counts for nothing
    world.merge_some(6)
    before = marked_files(world)
    world.upkeep.ask({NAME: 0.0})
    finish(world)
    assert len({rewrite.sources[0].live.path for rewrite in clusters}) == len(clusters) == 3
    assert not world.upkeep.has_asked and NAME in world.upkeep.purged
    assert before and not before & marked_files(world), "dead rows are left out all the same"


def test_a_maintenance_puts_only_so_much_in_order(
    world: World, clusters: list[OrderedRewrite], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merges wait for it."""
    monkeypatch.setattr(key_overlap.Overlap, "is_mixed", lambda overlap, times: True)
    monkeypatch.setattr(cluster_files, "limit_of", lambda table: 1)
    world.merge_some(6)
    before = newest(world.table.path)
    assert file_upkeep.cluster_all(world.open(), lambda: None)
    assert newest(world.table.path) == before + 1
    world.check()
