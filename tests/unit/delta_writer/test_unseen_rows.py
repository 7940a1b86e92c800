"""Rows that a reading of the table has not met go with the changes in one version: those that the changes leave, and
that are not newer than the reading."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.rewriting.unseen_rows import Reading
from dblog_core.delta_writer.upserting.draft import Draft
from dblog_core.delta_writer.upserting.upsert import remove_rows, upsert
from dblog_core.delta_writer.upserting.upsert_apart import commit_planned, plan_keys
from dblog_core.rows.disk_spool import SpooledTables
from tests.unit.delta_writer.rivals import RIVALS
from tests.unit.delta_writer.tables import APP, OFFSET, Table, check_log, commit_of, fill_table, newest, row


class Dump:
    """A reading of the keys from `low` to `high`, and what it was told: the keys that go."""

    def __init__(self, seen: Sequence[int], *, upto: int, low: int = 0, high: int = 1 << 30) -> None:
        self.seen = seen
        self.upto = upto
        self.low, self.high = low, high
        self.told: list[int] = []
        self.reads = 0

    def reading(self) -> Reading:
        def is_wanted(rows: pa.Table) -> Flags:
            keys = np.asarray(rows["id"])
            return np.asarray((keys >= self.low) & (keys <= self.high))

        return Reading(self._read, self.upto, is_wanted, self._tell)

    def _read(self) -> Iterator[pa.Table]:
        self.reads += 1
        for begin in range(0, len(self.seen), 7):
            yield pa.table({"id": pa.array(self.seen[begin : begin + 7], pa.int64())})

    def _tell(self, keys: SpooledTables) -> None:
        self.told = sorted(key for part in keys for key in part["id"].to_pylist())

    def take(self, table: Table) -> list[int]:
        """Removes from the model what goes; those keys."""
        gone = [
            key
            for (key,), values in table.rows.items()
            if key not in self.seen and values[OFFSET] <= self.upto and self.low <= key <= self.high
        ]
        for key in gone:
            del table.rows[key,]
        return sorted(gone)


def commit_apart(table: Table, changes: Sequence[Changes], number: int, dumps: Sequence[Dump]) -> int:
    """As processes do that plan some keys each."""
    opened = table.writer()
    shape = opened.refresh()
    plans = [plan_keys(opened, part, shape)[0] for part in changes]
    done = commit_planned(opened, plans, APP, number, readings=[dump.reading() for dump in dumps])
    assert done is not None
    return done.emptied


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("is_apart", [False, True], ids=["one process", "several"])
def test_rows_go_that_the_changes_leave_and_no_reading_has_met(
    table: Table, soak_seed: int, number: int, is_apart: bool
) -> None:
    dice = random.Random(f"{soak_seed}/{number}/{table.vectors}")
    writer = fill_table(table)
    gone = replaced = 0
    for merge in range(3, 18):
        dumps = []
        for _ in range(dice.choice((1, 1, 2))):
            low = dice.choice((0, dice.randrange(100)))
            seen = [key for key in range(130) if dice.random() < 0.9]
            dumps.append(Dump(seen, upto=dice.randrange(merge * 10), low=low, high=low + dice.choice((30, 200))))
        keys = dice.sample(range(130), 12)
        puts = [row(key, f"{merge}", offset=merge * 10) for key in keys[:8]]
        deletes = [row(key, offset=merge * 10) for key in keys[8:]]
        before = dict(table.rows)
        table.expect(puts, deletes)
        replaced += sum(key not in dumps[0].seen and (key,) in before for key in keys[:8])
        expected = [dump.take(table) for dump in dumps]
        changes = table.changes(puts, deletes)
        parts = [changes.take(np.arange(12)[part::2]) for part in range(2)]
        if is_apart:
            emptied = commit_apart(table, parts, merge, dumps)
        else:
            emptied = upsert(writer, parts, APP, merge, readings=[dump.reading() for dump in dumps]).emptied
        assert emptied == sum(map(len, expected))
        assert [dump.told for dump in dumps] == expected
        assert newest(table.path) == merge
        gone += emptied
        table.check()
    assert gone and replaced


@pytest.mark.parametrize("rival", RIVALS)
def test_they_are_looked_for_again_on_what_another_has_committed(table: Table, rival: str) -> None:
    writer = fill_table(table)

    def between() -> None:
        writer.check = lambda: None
        RIVALS[rival](table)

    writer.check = between
    dump = Dump(range(0, 100, 2), upto=8)
    puts = [row(5, "ours", offset=9)]
    upsert(writer, table.changes(puts), APP, 3, readings=[dump.reading()])
    table.expect(puts)
    assert dump.told == dump.take(table)
    assert table.read() == table.model()
    check_log(table.path, vectors=table.vectors)


def test_who_dies_before_the_commit_has_told_of_them_and_removed_none(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = fill_table(table)
    before = table.model()
    dump = Dump(range(99), upto=8)
    monkeypatch.setattr(type(writer), "commit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        upsert(writer, table.changes([row(5, "new", offset=9)]), APP, 3, readings=[dump.reading()])
    assert dump.told == [99] and table.read() == before


def test_a_table_whose_rows_are_all_newer_is_not_searched(table: Table) -> None:
    writer = table.writer()
    table.merge(writer, [row(key, offset=5) for key in range(10)])
    dump = Dump([], upto=4)
    upsert(writer, table.changes([row(1, "new", offset=6)]), APP, 2, readings=[dump.reading()])
    table.expect([row(1, "new", offset=6)])
    table.check()
    assert dump.reads == 0 and dump.told == []
    assert remove_rows(writer, f"{APP}:gone", 7, readings=[dump.reading()]) is None


def test_without_a_change_they_go_alone_and_once(table: Table) -> None:
    writer = fill_table(table)
    dump = Dump(range(10, 100), upto=8)
    done = remove_rows(writer, f"{APP}:gone", 9, readings=[dump.reading()])
    assert done is not None and done.deleted == len(dump.take(table)) == 10
    table.check()
    assert remove_rows(writer, f"{APP}:gone", 9, readings=[dump.reading()]) is None
    (info,) = [action["commitInfo"] for action in commit_of(table.path, newest(table.path)) if "commitInfo" in action]
    assert info["operation"] == "DELETE" and info["operationMetrics"]["numDeletedRows"] == "10"


def test_all_marks_count_as_deletes_then(tmp_path: Path) -> None:
    """Nobody has looked where former rows of these keys are."""
    table = Table.create_at(tmp_path)
    writer = fill_table(table)
    table.merge(writer, [row(key, "new", offset=9) for key in (1, 60)])
    assert sum(live.replaced_count for live in writer.snapshot.files.values()) == 2
    dump = Dump([key for key in range(100) if key != 4], upto=8)
    upsert(writer, table.changes([row(2, "new", offset=10)]), APP, 4, readings=[dump.reading()])
    table.expect([row(2, "new", offset=10)])
    assert dump.take(table) == dump.told == [4]
    assert sum(live.replaced_count for live in writer.snapshot.files.values()) == 1
    assert sum(live.deleted_count for live in writer.snapshot.files.values()) == 3
    table.check()


def test_a_row_that_changes_have_replaced_is_told_if_the_draft_is_not_asked(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of this page's model."""
    monkeypatch.setattr(Draft, "_dead_rows", lambda self, table, file: table.dead_rows(file))
    writer = fill_table(table)
    dump = Dump(range(99), upto=8)
    upsert(writer, table.changes([row(99, "new", offset=9)]), APP, 3, readings=[dump.reading()])
    table.expect([row(99, "new", offset=9)])
    assert dump.take(table) == [] and dump.told == [99]
