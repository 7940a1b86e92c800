"""Files are written again while others change the table: what dies meanwhile is dead in the new file, and stays so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import key_overlap, ordered_rewrite, rewrite
from dblog_core.delta_writer.rewriting.cluster_files import plan_cluster
from dblog_core.delta_writer.rewriting.join_files import plan_join
from dblog_core.delta_writer.rewriting.purge_files import dead_share, plan_purge, purge_file
from dblog_core.delta_writer.rewriting.rewrite import FileRewrite, Rewrite, Rewritten, commit_rewritten
from dblog_core.errors import LakeError, LeaseLost, StagingUnavailable
from dblog_core.storage.location import Location
from tests.unit.delta_writer.rivals import RIVALS
from tests.unit.delta_writer.tables import FaultyStorage, Table, commit_of, newest, row

PLANS: dict[str, Callable[[OpenTable], FileRewrite | None]] = {
    "join": plan_join,
    "purge": plan_purge,
    "cluster": partial(plan_cluster, target=1000),
}


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of the same keys are too many, and each order of them is worth it."""
    monkeypatch.setattr(key_overlap, "FILES", 1)
    monkeypatch.setattr(ordered_rewrite, "is_worth", lambda files, new_files, others: True)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create_at(tmp_path)


def keys_of_file(number: int) -> list[int]:
    return [k for k in range(179, -1, -1) if k // 3 % 3 == number]


def fill_files(table: Table, location: Location | None = None) -> OpenTable:
    """Three files of 60 rows with keys from everywhere, out of their order, a third of them dead."""
    writer = table.writer(location)
    for i in range(3):
        table.merge(writer, [row(k, offset=1) for k in keys_of_file(i)])
    table.merge(writer, [], [row(k) for k in range(0, 180, 3)])
    return writer


def plan(writer: OpenTable, kind: str) -> FileRewrite:
    planned = PLANS[kind](writer)
    assert planned is not None
    return planned


def carry_out(writer: OpenTable, kind: str) -> Rewritten:
    rewritten = plan(writer, kind).carry_out()
    assert rewritten is not None
    return rewritten


def change_on(table: Table, writer: OpenTable) -> None:
    """Updates, deletes and inserts in every file, in several commits."""
    table.merge(writer, [row(k, "meanwhile", offset=5) for k in range(1, 180, 9)])
    table.merge(writer, [row(k, "new", offset=6) for k in (300, 301)], [row(k) for k in range(2, 180, 12)])
    table.merge(writer, [row(k, "again", offset=7) for k in (1, 2, 10, 300)])


@pytest.mark.parametrize("kind", PLANS)
def test_what_changes_meanwhile_is_not_undone(table: Table, kind: str) -> None:
    writer = fill_files(table)
    rewritten = carry_out(writer, kind)
    change_on(table, writer)
    assert commit_rewritten(writer, rewritten)
    table.check()
    actions = [a.get("add") or a.get("remove") for a in commit_of(table.path, newest(table.path))]
    assert {a["dataChange"] for a in actions if a} == {False}
    # The index knows the new rows, the dead ones among them too.
    table.merge(writer, [row(k, "after", offset=8) for k in range(0, 320, 2)], [row(k) for k in range(1, 320, 6)])
    table.check()
    table.merge(table.writer(), [row(k, "by another", offset=9) for k in range(0, 320, 7)])
    table.check()


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("what", RIVALS)
@pytest.mark.parametrize("when", ["while it is written", "right before its commit"])
@pytest.mark.thorough
def test_whoever_commits_meanwhile_is_heard(table: Table, kind: str, what: str, when: str) -> None:
    writer = fill_files(table)
    rewritten = carry_out(writer, kind)
    commits: list[str] = []

    def commit_as_rival() -> None:
        if not commits:
            commits.append(what)
            RIVALS[what](table)

    if when == "while it is written":
        commit_as_rival()
    writer.check = commit_as_rival
    stays = what in ("appends", "checkpoints")  # delta-rs marks no rows: its deletes write files again
    assert commit_rewritten(writer, rewritten) == stays
    writer.check = lambda: None
    table.check()
    table.merge(writer, [row(k, "after", offset=8) for k in range(0, 180, 5)], [row(k) for k in range(1, 180, 5)])
    table.check()


def test_rows_that_all_die_meanwhile_leave_no_file(table: Table) -> None:
    writer = fill_files(table)
    rewritten = carry_out(writer, "join")
    table.merge(writer, [row(1000, offset=5)], [row(k) for k in range(180)])
    writer.refresh()
    assert not commit_rewritten(writer, rewritten), "its files are gone"
    for k in range(2):
        table.merge(writer, [row(2000 + k, offset=5)])
    rewritten = carry_out(writer, "join")
    kept = newest(table.path)
    DeltaTable(str(table.path)).delete("id = 2000")
    table.rows.pop((2000,))
    assert newest(table.path) == kept + 1
    table.check()
    commit_rewritten(writer, rewritten)
    table.check()


def test_a_new_file_of_dead_rows_alone_is_not_added(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that leaves a file without a living row in the table could bring it about."""
    writer = fill_files(table)
    rewritten = carry_out(writer, "join")
    all_rows = np.arange(rewritten.files[0].count)
    monkeypatch.setattr(rewrite, "_find_died", lambda table, rewritten: rewrite.Died(all_rows, all_rows))
    assert commit_rewritten(writer, rewritten)
    assert [a for a in commit_of(table.path, newest(table.path)) if "add" in a] == []
    assert table.read() == []


def test_a_row_that_has_come_back_stays(table: Table) -> None:
    """Somebody brings the table back to an older version: a row that was dead for the plan lives."""
    writer = fill_files(table)
    before = newest(table.path)
    table.merge(writer, [], [row(1), row(70)])
    rewritten = carry_out(writer, "join")
    DeltaTable(str(table.path)).restore(before)
    table.expect([row(1, offset=1), row(70, offset=1)])
    assert not commit_rewritten(writer, rewritten)
    table.check()


def test_where_a_new_file_was_vacuumed_all_is_planned_again(table: Table) -> None:
    writer = fill_files(table)
    rewritten = carry_out(writer, "join")
    (table.path / rewritten.files[0].name).unlink()
    assert not commit_rewritten(writer, rewritten)
    table.check()
    assert commit_rewritten(writer, carry_out(writer, "join"))
    table.check()


def test_who_has_lost_the_lake_commits_nothing(table: Table) -> None:
    writer = fill_files(table)
    rewritten = carry_out(writer, "purge")
    before = newest(table.path)

    def lose_lease() -> None:
        raise LeaseLost("another merge has taken the lake over")

    writer.check = lose_lease
    with pytest.raises(LeaseLost):
        commit_rewritten(writer, rewritten)
    assert newest(table.path) == before
    table.check()


def test_a_rewrite_ends_where_it_is_asked_to(table: Table) -> None:
    planned = plan(fill_files(table), "purge")

    def stop() -> None:
        raise LeaseLost("another merge has taken the lake over")

    files = sorted(path.name for path in table.path.iterdir())
    with pytest.raises(LeaseLost):
        planned.carry_out(stop)
    assert sorted(path.name for path in table.path.iterdir()) == files


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.thorough
def test_a_fault_at_any_step_leaves_the_table_right(tmp_path: Path, kind: str, late: bool) -> None:
    number = 0
    while True:
        number += 1
        table = Table.create_at(tmp_path / str(number))
        storage = FaultyStorage(table.lake, late=late)
        writer = fill_files(table, Location(storage, "table"))
        writer.refresh()
        calls = len(storage.calls)
        storage.fail_at = calls + number
        try:
            rewritten = carry_out(writer, kind)
            table.merge(table.writer(), [row(4, "meanwhile", offset=5)], [row(5), row(100)])
            assert commit_rewritten(writer, rewritten)
        except (StagingUnavailable, LakeError):
            table.rows = {(r["id"],): r for r in table.read()}
            assert len(table.rows) in (118, 120)
        table.check()
        is_through = storage.fail_at > len(storage.calls)
        storage.fail_at = 0
        table.merge(writer, [row(4, "after", offset=6), row(500, offset=6)], [row(7), row(170)])
        table.check()
        if is_through:
            assert number > 6
            return


def test_the_worst_file_is_purged_first_and_each_by_its_share(table: Table) -> None:
    writer = fill_files(table)
    table.merge(writer, [], [row(k) for k in keys_of_file(1)[:30]])
    shares = sorted(dead_share(writer, live) for live in writer.snapshot.files.values())
    assert shares[:2] == [20 / 60, 20 / 60] and shares[2] > 0.5
    assert dead_share(writer, plan(writer, "purge").sources[0].live) == shares[2]
    assert purge_file(writer, share=0.5)
    assert max(dead_share(writer, live) for live in writer.snapshot.files.values()) == 20 / 60
    assert not purge_file(writer, share=0.5)
    while purge_file(writer):
        table.check()
    assert all(live.vector is None for live in writer.snapshot.files.values())
    assert len(writer.snapshot.files) == 3


def test_a_file_that_is_too_large_for_memory_becomes_several(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblog_core.delta_writer.stored_rows._ROWS_AT_ONCE", 7)
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 1)
    monkeypatch.setattr(rewrite, "LARGEST_FILE", 1)
    monkeypatch.setattr("dblog_core.delta_writer.data_file.KEY_BYTES", 1)
    writer = fill_files(table)
    rewritten = carry_out(writer, "purge")
    assert len(rewritten.files) == 9 and sum(file.count for file in rewritten.files) == 40
    assert all(file.keys is None for file in rewritten.files)
    change_on(table, writer)
    assert commit_rewritten(writer, rewritten)
    table.check()
    table.merge(writer, [row(k, "after", offset=8) for k in range(0, 180, 4)])
    table.check()


def test_a_file_of_many_stretches_keeps_its_order(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of a row group, and row groups of the new file, are smaller than the file."""
    monkeypatch.setattr("dblog_core.delta_writer.stored_rows._ROWS_AT_ONCE", 7)
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 500)
    writer = fill_files(table)
    rewritten = carry_out(writer, "purge")
    change_on(table, writer)
    assert commit_rewritten(writer, rewritten)
    table.check()
    name = rewritten.files[0].name
    (added,) = [a["add"] for a in commit_of(table.path, newest(table.path)) if "add" in a]
    assert added["path"] == name and '"numRecords":40' in added["stats"]
    for k in (4, 50, 55):
        assert [r["id"] for r in table.read(f"id = {k}")] == ([k] if (k,) in table.rows else [])
    table.merge(writer, [row(k, "after", offset=8) for k in range(0, 180, 4)])
    table.check()


def test_rows_that_take_too_much_memory_keep_their_order(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = fill_files(table)
    monkeypatch.setattr(rewrite, "_ORDERED_BYTES", 3000)
    rewritten = carry_out(writer, "join")
    assert rewritten.files[0].keys is not None
    keys = rewritten.files[0].keys["id"].to_pylist()
    assert len(keys) == 120 and keys != sorted(keys)
    change_on(table, writer)
    assert commit_rewritten(writer, rewritten)
    table.check()
    table.merge(writer, [row(k, "after", offset=8) for k in range(0, 320, 2)], [row(k) for k in range(1, 320, 6)])
    table.check()


def test_what_cannot_be_sorted_is_an_error_of_the_lake(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    planned = plan(fill_files(table), "join")
    monkeypatch.setattr(Rewrite, "_read_ordered", fail)
    with pytest.raises(LakeError, match="offset overflow"):
        planned.carry_out()
