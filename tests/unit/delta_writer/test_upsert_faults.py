"""Whatever fails or stops at any step of a change, and in any order: no row is lost, none is there twice."""

from __future__ import annotations

import logging
import random
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.keys import key_index
from dblog_core.delta_writer.keys.key_runs import BLOCK
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import key_overlap, ordered_rewrite
from dblog_core.delta_writer.rewriting.cluster_files import plan_cluster
from dblog_core.delta_writer.rewriting.join_files import join_files, plan_join
from dblog_core.delta_writer.rewriting.purge_files import plan_purge
from dblog_core.delta_writer.rewriting.rewrite import Rewritten, commit_rewritten
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.errors import LakeError, StagingUnavailable
from dblog_core.storage.location import Location
from tests.unit.delta_writer.rivals import RIVALS, open_delta
from tests.unit.delta_writer.tables import (
    APP,
    FaultyStorage,
    Table,
    fill_table,
    newest,
    row,
)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("in_parts", [False, True], ids=["at once", "in parts"])
@pytest.mark.parametrize("dies", [False, True], ids=["the same process goes on", "a new one goes on"])
@pytest.mark.parametrize("vectors", [False, True], ids=["copies", "vectors"])
@pytest.mark.thorough
def test_a_fault_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, late: bool, dies: bool, in_parts: bool, vectors: bool
) -> None:
    """Each call of storage fails once: before it does anything, or with its answer lost."""
    base = Table.create_at(tmp_path / "0", vectors=vectors)
    fill_table(base)
    merged = FaultyStorage(base.lake)
    writer = base.writer(Location(merged, "table"))
    upsert(writer, base.changes([]), APP, 0)  # reads the log and the keys, so that the calls are those of the merge
    began = len(merged.calls)
    puts = [row(i, "ours", offset=5) for i in (3, 55, 700)]
    deletes = [row(10), row(60)]

    def changes(table: Table) -> Changes | list[Changes]:
        if in_parts:
            return [table.changes(puts[:1], deletes[:1]), table.changes(puts[1:], deletes[1:])]
        return table.changes(puts, deletes)

    upsert(writer, changes(base), APP, 3)
    calls = merged.calls[began:]
    assert [c.split()[0] for c in calls].count("create") == 3 + in_parts, (
        "a file of vectors or copies, one of rows, and the commit"
    )
    for number in range(1, len(calls) + 1):
        table = Table.create_at(tmp_path / f"{number}", vectors=vectors)
        fill_table(table)
        faulty = FaultyStorage(table.lake, late=late)
        writer = table.writer(Location(faulty, "table"))
        upsert(writer, table.changes([]), APP, 0)
        faulty.fail_at = len(faulty.calls) + number
        table.expect(puts, deletes)
        try:
            upsert(writer, changes(table), APP, 3)
        except StagingUnavailable:
            next_writer = table.writer() if dies else writer
            upsert(next_writer, changes(table), APP, 3)
        table.check()
        assert newest(table.path) == 3, calls[number - 1]
        after = table.writer() if dies else writer
        table.merges = 3
        table.merge(after, [row(3, "later", offset=6)], [row(55)])
        table.check()


def test_an_answer_that_is_lost_is_looked_up(table: Table) -> None:
    fill_table(table)
    faulty = FaultyStorage(table.lake, late=True)
    writer = table.writer(Location(faulty, "table"))
    create = faulty.create

    def lose(relative: str, data: Any) -> bool:
        done = create(relative, data)
        if relative.endswith("3.json"):
            raise StagingUnavailable("storage does not answer", where=relative)
        return done

    faulty.create = lose  # type: ignore[method-assign]
    done = table.merge(writer, [row(3, "ours", offset=5)])
    assert not done.already and done.updated == 1, "the commit was found to be ours"
    table.check()


def test_a_log_that_was_cleaned_behind_a_stopped_process_is_not_gone_on_with(table: Table) -> None:
    """Its next version is free again: only the commit before it tells."""
    writer = fill_table(table)
    other = table.writer()
    for i in range(3):
        table.merge(other, [row(i, "meanwhile", offset=7 + i)])

    def clean() -> None:
        open_delta(table).create_checkpoint()
        for version in range(5):
            (table.path / "_delta_log" / f"{version:020d}.json").unlink()

    clean()
    table.merge(writer, [row(3, "after", offset=20)])
    assert writer.snapshot.version == 6 and newest(table.path) == 6
    assert table.read() == table.model()


def test_a_process_that_is_stopped_right_before_its_commit_says_that_it_was_lost(table: Table) -> None:
    writer = fill_table(table)

    def overtake() -> None:
        other = table.writer()
        for i in range(3):
            table.merges += 1
            upsert(other, table.changes([row(i, "meanwhile", offset=7 + i)]), "other", i)
            table.expect([row(i, "meanwhile", offset=7 + i)])
        open_delta(table).create_checkpoint()
        for version in range(5):
            (table.path / "_delta_log" / f"{version:020d}.json").unlink()

    writer.check = overtake
    with pytest.raises(LakeError, match="stopped for too long"):
        upsert(writer, table.changes([row(50, "lost", offset=20)]), APP, 3)
    assert table.read() == table.model()


def _damage_index(directory: Path, *, blocks: slice) -> None:
    """Has the entries of these blocks name other rows, in the file itself: who has mapped it sees that."""
    paths = list(directory.glob("*.run"))
    assert paths
    for path in paths:
        entries = np.memmap(path, np.uint64, "r+").reshape(-1, 2)
        entries[blocks.start * BLOCK : blocks.stop * BLOCK, 1] ^= np.uint64(1)


def _count_warnings(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(r.levelno == logging.WARNING and text in r.getMessage() for r in caplog.records)


def _fill_saved_table(table: Table, index: Path) -> OpenTable:
    writer = fill_table(table, 6 * BLOCK, index=index)
    writer.save()
    return writer


@pytest.mark.parametrize("moment", ["before it is opened", "after it was saved", "after it was opened"])
def test_a_merge_makes_a_damaged_index_anew(
    table: Table, tmp_path: Path, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its entries name the neighbours of the rows: who believed them would mark rows that live."""
    index = tmp_path / "index"
    writer = _fill_saved_table(table, index)
    if moment != "after it was saved":
        writer = table.writer(index=index)
    if moment == "after it was opened":
        table.merge(writer, [], [row(-5)])  # looked up in the first block
    _damage_index(index, blocks=slice(1, 6))
    middle = 3 * BLOCK
    table.merge(writer, [row(middle, "ours", offset=5), row(middle + 7, "ours", offset=5)], [row(middle + 20)])
    table.check()
    assert _count_warnings(caplog, "the index of keys is damaged") == 1
    table.merge(writer, [row(i, "later", offset=6) for i in range(0, 6 * BLOCK, 9)], [row(middle + 2)])
    assert _count_warnings(caplog, "damaged") == 1, "the new index is whole"
    table.check()
    writer.save()
    table.merge(table.writer(index=index), [row(middle, "a new process", offset=7)], [row(middle + 3)])
    assert _count_warnings(caplog, "damaged") == 1, "it has taken the place of the damaged one"
    table.check()


def test_damage_that_only_the_join_of_runs_meets_does_not_fail_the_merge(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are committed by then. The index that is saved still has the damage, and the next look-up meets it."""
    index = tmp_path / "index"
    writer = _fill_saved_table(table, index)
    _damage_index(index, blocks=slice(0, 1))
    new_keys = range(6 * BLOCK, 12 * BLOCK)  # above all others: looked up in the last block
    table.merge(writer, [row(i, "ours", offset=5) for i in new_keys])
    assert _count_warnings(caplog, "the index of keys is made again") == 1
    assert _count_warnings(caplog, "is damaged") == 0
    table.check()
    table.merge(writer, [row(4, "later", offset=6), row(8 * BLOCK, "later", offset=6)], [row(10)])
    assert _count_warnings(caplog, "the index of keys is damaged") == 1
    table.check()


def test_an_index_that_the_disk_has_no_room_for_is_not_made(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_table(table, 6 * BLOCK)
    puts = [row(5, "new", offset=9)]
    monkeypatch.setattr(key_index, "_LEFT_FREE", 1 << 62)
    writer = table.writer(index=tmp_path / "a" / "b", index_memory=1_000)
    with pytest.raises(LakeError, match=r"it needs [\d,]+T, and [\d,]+[GT] are free") as error_info:
        upsert(writer, table.changes(puts), APP, 50)
    assert error_info.value.where == str(tmp_path) and not (tmp_path / "a").exists()
    assert "DBLOG_CACHE_DIR" in error_info.value.fix
    table.check()
    in_memory = table.writer(index=tmp_path / "a" / "b", index_memory=6 * BLOCK * 16)
    assert upsert(in_memory, table.changes([row(6, "new", offset=9)]), APP, 51).updated == 1
    monkeypatch.undo()
    assert upsert(writer, table.changes(puts), APP, 52).updated == 1, "there is room again"


@pytest.mark.thorough
@pytest.mark.parametrize("soak_round", range(1))
def test_whatever_happens_in_any_order_the_rows_are_right(
    tmp_path: Path, soak_seed: int, soak_round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random batches, rivals at any point, restarts with and without the saved index, files written again meanwhile."""
    monkeypatch.setattr(key_overlap, "FILES", 0.5)  # files that share keys at all are put in order
    monkeypatch.setattr(ordered_rewrite, "is_worth", lambda files, new_files, others: True)
    dice = random.Random(soak_seed)
    forms: list[dict[str, Any]] = [{}, {}, {"partitions": ("amount",)}, {"partitions": ("note",)}, {"tracked": True}]
    table = Table.create_at(tmp_path, mapped=dice.random() < 0.3, vectors=dice.random() < 0.6, **dice.choice(forms))
    is_ours_alone = table.mapped or table.tracked  # delta-rs can no more
    rivals = ["checkpoints"] if is_ours_alone else [name for name in RIVALS if name != "widens"]
    writer = table.writer(index=tmp_path / "index")
    index = tmp_path / "index"
    table.merge(writer, [row(i, offset=1) for i in range(800)])
    offset = 10
    rewritten: Rewritten | None = None
    for number in range(20):
        offset += 10
        count = dice.choice([3, 40, 400])
        keys = dice.sample([*range(1000), 10_000], count)
        deleted_keys = {key for key in keys if dice.random() < 0.3}
        amount = dice.choice([None, Decimal("0.5000"), Decimal("-12.0000")])
        puts = [row(key, f"round {number}", offset=offset, amount=amount) for key in keys if key not in deleted_keys]
        what = dice.choice([None, None, *rivals])
        # The model keeps one row a key: a rival's append of one that is there is another test's.
        if what == "appends" and (10_000,) in table.rows:
            what = None
        done: list[str] = []

        def between(what: str | None = what, done: list[str] = done) -> None:
            if what and not done:
                done.append(what)
                RIVALS[what](table)

        writer.check = between
        table.merge(writer, puts, [row(key) for key in sorted(deleted_keys)])
        writer.check = lambda: None
        table.check()
        if dice.random() < 0.3:
            join_files(writer, below=dice.choice([1 << 12, 1 << 20]))
            table.check()
        if rewritten is not None and dice.random() < 0.6:
            commit_rewritten(writer, rewritten)
            rewritten = None
            table.check()
        if rewritten is None and dice.random() < 0.6:
            chosen = dice.choice([plan_join, plan_purge, partial(plan_cluster, target=1000)])(writer)
            rewritten = None if chosen is None else chosen.carry_out()
        fate = dice.random()
        if fate < 0.15:
            writer = table.writer()
        elif fate < 0.3:
            writer.save()
            writer = table.writer(index=index)
