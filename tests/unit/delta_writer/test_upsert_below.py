"""A TRUNCATE and the changes behind it are one version: older rows go, whatever their keys are, and have no values."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from dblog_core.delta_writer import stored_rows
from dblog_core.delta_writer.bitmaps import Rows
from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import older_rows
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.upserting.upsert import upsert
from tests.unit.delta_writer.rivals import RIVALS, open_delta
from tests.unit.delta_writer.tables import APP, OFFSET, Row, Table, check_log, commit_of, fill_table, newest, row


def keeping(table: Table, puts: Sequence[Row], deletes: Sequence[Row] = (), *, origins: Sequence[int] = ()) -> Changes:
    """Changes of which every put keeps the value of `note`: that of its own key, or of these."""
    changes = table.changes(puts, deletes)
    mask = np.arange(len(changes.rows)) < len(puts)
    keys = None if not origins else pa.table({"id": pa.array(origins, pa.int64())})
    return replace(changes, unchanged_toast={"note": mask}, origins=keys)


def forget_older(table: Table, below: int) -> int:
    """What goes from the model, and how many rows that are."""
    before = len(table.rows)
    table.rows = {key: r for key, r in table.rows.items() if r[OFFSET] is None or r[OFFSET] >= below}
    return before - len(table.rows)


def rows_at(table: Table, version: int) -> list[Row]:
    delta = DeltaTable(str(table.path), version=version)
    rows = pa.table(QueryBuilder().register("t", delta).execute("select * from t")).to_pylist()
    return sorted(rows, key=lambda r: repr(table.key(r)))


def test_what_was_there_and_what_comes_change_places_in_one_version(table: Table) -> None:
    writer = fill_table(table)
    before = table.model()
    puts = [row(k, "new", offset=10) for k in (3, 60, 500)]
    done = upsert(writer, table.changes(puts, [row(4, offset=11), row(600, offset=12)]), APP, 3, below=9)
    assert (done.deleted, done.emptied, done.inserted, done.updated, done.absent) == (100, 100, 3, 0, 2)
    table.rows.clear()
    table.expect(puts)
    table.check()
    assert newest(table.path) == 3 and rows_at(table, 2) == before
    actions = commit_of(table.path, 3)
    assert len([a for a in actions if "add" in a]) == 1, "files without a living row need no vector"
    counts = actions[0]["commitInfo"]["operationMetrics"]
    assert counts["numTargetRowsDeleted"] == counts["numTargetRowsNotMatchedBySourceDeleted"] == "100"
    assert counts["numTargetRowsMatchedDeleted"] == counts["numTargetRowsUpdated"] == "0"
    assert upsert(table.writer(), table.changes(puts), APP, 3, below=9).already
    table.merges = 3
    table.merge(writer, [row(3, "later", offset=13)], [row(500)])
    table.check()


def test_rows_that_are_newer_than_the_truncate_stay_and_are_changed(table: Table) -> None:
    """The table is ahead of the work: an earlier merge of it was committed, and failed behind that."""
    writer = fill_table(table)
    table.merge(writer, [row(k, "ahead", offset=20) for k in (5, 6, 70, 71)], [row(8)])
    changes = table.changes([row(5, "newer", offset=21), row(70, "older", offset=15)], [row(6, offset=22)])
    done = upsert(writer, replace(changes, guarded=np.full(3, True)), APP, 4, below=9)
    assert (done.deleted, done.emptied, done.updated, done.inserted, done.older) == (96, 95, 1, 0, 1)
    forget_older(table, 9)
    table.expect([row(5, "newer", offset=21)], [row(6)])
    assert sorted(table.rows) == [(5,), (70,), (71,)]
    table.check()


@pytest.mark.parametrize("origins", [(), (3, 60, 70)], ids=["its own", "another key's"])
def test_a_value_from_before_the_truncate_is_nobodys(table: Table, origins: Sequence[int]) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(70, "newer than the truncate", offset=20)])
    withheld: list[Rows] = []
    puts = [row(k, None, offset=21) for k in (3, 60, 70)]
    done = upsert(writer, keeping(table, puts, origins=origins), APP, 4, below=9, withhold=withheld.append)
    assert (done.withheld, done.inserted, done.updated) == (2, 0, 1)
    assert [w.tolist() for w in withheld] == [[0, 1]]
    table.rows = {(70,): row(70, "newer than the truncate", offset=21)}
    table.check()


def test_rows_without_an_order_are_anothers_and_stay(table: Table) -> None:
    writer = fill_table(table)
    write_deltalake(str(table.path), table.arrow([row(k, "foreign", offset=None) for k in (900, 901)]), mode="append")  # type: ignore[arg-type]
    done = upsert(writer, table.changes([row(900, "ours", offset=10)]), APP, 3, below=9)
    assert (done.deleted, done.updated, done.inserted) == (100, 1, 0)
    table.rows = {(900,): row(900, "ours", offset=10), (901,): row(901, "foreign", offset=None)}  # type: ignore[arg-type]
    table.check()


def test_a_truncate_without_older_rows_changes_no_more_than_the_changes_do(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(3, "new", offset=5)])
    done = upsert(writer, table.changes([row(3, "newer", offset=6)]), APP, 4, below=1)
    assert (done.deleted, done.emptied, done.updated) == (0, 0, 1)
    table.expect([row(3, "newer", offset=6)])
    table.check()


@pytest.mark.parametrize(("below", "count"), [(10, 130), (14, 154)])
def test_only_files_of_both_kinds_of_rows_are_read(
    table: Table, monkeypatch: pytest.MonkeyPatch, below: int, count: int
) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(k, "mixed", offset=5 + k % 10) for k in range(200, 260)])
    table.merge(writer, [row(k, "newer", offset=50) for k in range(300, 360)])
    read: list[tuple[str, ...]] = []

    def spy(
        files: TableFiles, live: LiveFile, shape: Shape, names: Sequence[str], **options: Any
    ) -> Iterator[tuple[int, pa.Table]]:
        read.append(tuple(names))
        return stored_rows.row_stretches(files, live, shape, names, **options)

    monkeypatch.setattr(older_rows, "row_stretches", spy)
    done = upsert(writer, table.changes([row(1000, offset=60)]), APP, 5, below=below)
    assert done.emptied == forget_older(table, below) == count
    assert read == [(OFFSET,)]
    table.expect([row(1000, offset=60)])
    table.check()


def test_all_marks_count_as_deletes_but_those_of_rows_that_the_changes_replace(tmp_path: Path) -> None:
    """Old versions of the rows that go are in files that stay: they leave them with the next maintenance."""
    table = Table.create_at(tmp_path)
    writer = fill_table(table)
    table.merge(writer, [row(k, "ahead", offset=20) for k in range(0, 50, 2)])
    table.merge(writer, [row(k, "ahead", offset=21) for k in range(0, 10, 2)])
    replaced = [live.replaced_count for live in writer.snapshot.files.values()]
    assert sorted(replaced) == [0, 0, 5, 25]
    upsert(writer, table.changes([row(20, "newer", offset=22)]), APP, 5, below=9)
    left = {live.replaced_count: live.deleted_count for live in writer.snapshot.files.values()}
    assert left == {0: 0, 1: 5}, "the file of keys 0 to 8 has no mark, and that of the others has five old ones"
    forget_older(table, 9)
    table.expect([row(20, "newer", offset=22)])
    table.check()
    fresh = table.writer()
    fresh.refresh()
    assert {live.path: live.replaced_count for live in fresh.snapshot.files.values()} == {
        live.path: live.replaced_count for live in writer.snapshot.files.values()
    }


def test_a_file_of_which_nothing_goes_has_its_marks_counted_as_deletes(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    writer = table.writer()
    table.merge(writer, [row(k, offset=1) for k in range(10)])
    table.merge(writer, [row(k, offset=20) for k in range(20, 40)])
    table.merge(writer, [row(k, "newer", offset=21) for k in range(20, 30)])
    upsert(writer, table.changes([row(50, offset=22)]), APP, 4, below=9)
    assert sorted((live.replaced_count, live.deleted_count) for live in writer.snapshot.files.values()) == [
        (0, 0),
        (0, 0),
        (0, 10),
    ]
    forget_older(table, 9)
    table.expect([row(50, offset=22)])
    table.check()


@pytest.mark.parametrize("rival", RIVALS)
def test_it_is_planned_again_on_what_another_has_committed(table: Table, rival: str) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(k, "ahead", offset=20) for k in (5, 70)])

    def between() -> None:
        writer.check = lambda: None
        RIVALS[rival](table)

    writer.check = between
    puts = [row(5, "ours", offset=21), row(300, "ours", offset=22)]
    upsert(writer, table.changes(puts), APP, 4, below=9)
    forget_older(table, 9)
    table.expect(puts)
    assert table.read() == table.model()
    check_log(table.path, vectors=table.vectors)


class World:
    """A table whose log has TRUNCATEs in the midst, and a model of what a reader of the lines has."""

    def __init__(self, table: Table, dice: random.Random) -> None:
        self.table = table
        self.dice = dice
        self.offset = 0

    def next(self) -> int:
        self.offset += 1
        return self.offset

    def merge(self, writer: OpenTable) -> set[int]:
        """Lines of one work, the last change of each key, and what the table should be behind it. Returns the keys
        that are withheld."""
        last: dict[int, tuple[str, Row, int]] = {}
        truncate: int | None = None
        merged = self.offset
        for _ in range(self.dice.randrange(1, 40)):
            key = self.dice.randrange(40)
            kind = self.dice.choice(("put", "put", "keep", "delete", "dump"))
            if self.dice.random() < 0.04:
                truncate = self.next()
                last.clear()
            elif kind == "delete":
                last[key] = "delete", row(key, offset=self.next()), key
            elif kind == "keep" and key not in last:  # also of a row that no line has told of
                last[key] = "keep", row(key, "", offset=self.next()), key
            elif kind == "dump" and key not in last:  # of a moment before
                stale = self.dice.randrange(max(1, merged - 10), merged + 2)
                last[key] = "dump", row(key, f"dump {stale}", offset=stale), key
            else:
                last[key] = "put", row(key, f"line {self.next()}", offset=self.offset), key
        return self._commit(writer, list(last.values()), truncate)

    def _commit(self, writer: OpenTable, last: list[tuple[str, Row, int]], truncate: int | None) -> set[int]:
        self.dice.shuffle(last)
        last.sort(key=lambda change: change[0] == "delete")
        kinds = [kind for kind, _, _ in last]
        puts = [line for kind, line, _ in last if kind != "delete"]
        changes = self.table.changes(puts, [line for kind, line, _ in last if kind == "delete"])
        changes = replace(
            changes,
            guarded=np.array([kind == "dump" for kind in kinds]),
            unchanged_toast={"note": np.array([kind == "keep" for kind in kinds])},
        )
        withheld: list[int] = []
        halves = [changes.take(np.arange(len(last))[i::2]) for i in range(2)]
        numbers = np.concatenate([np.arange(len(last))[i::2] for i in range(2)])
        before = dict(self.table.rows)
        if truncate is not None:
            forget_older(self.table, truncate)
        stayed = dict(self.table.rows)
        unknown = self._expect(last)
        self.table.merges += 1
        done = upsert(
            writer,
            [half for half in halves if len(half.rows)],
            APP,
            self.table.merges,
            below=truncate,
            withhold=lambda at: withheld.extend(last[number][2] for number in numbers[at].tolist()),
        )
        assert set(withheld) == unknown
        assert done.emptied == len(before) - len(stayed)
        assert done.deleted - done.emptied == len(set(stayed) - set(self.table.rows))
        assert done.inserted == len(set(self.table.rows) - set(stayed))
        return unknown

    def _expect(self, last: list[tuple[str, Row, int]]) -> set[int]:
        rows = self.table.rows
        unknown: set[int] = set()
        for kind, line, key in last:
            have = rows.get((key,))
            if kind == "delete":
                rows.pop((key,), None)
            elif kind == "keep" and have is None:
                unknown.add(key)
            elif kind == "keep":
                rows[(key,)] = {**line, "note": have["note"]}  # type: ignore[index]
            elif kind == "put" or have is None or have[OFFSET] < line[OFFSET]:
                rows[(key,)] = dict(line)
        return unknown


@pytest.mark.parametrize("number", range(3))
def test_no_version_is_empty_and_each_is_what_a_reader_of_the_lines_has(
    table: Table, soak_seed: int, number: int
) -> None:
    dice = random.Random(f"{soak_seed}/{number}/{table.vectors}")
    world = World(table, dice)
    writer = table.writer()
    states = {0: table.model()}
    truncated = withheld = 0
    for _ in range(40):
        if dice.random() < 0.2:
            open_delta(table).optimize.compact()
        if dice.random() < 0.2:
            writer = table.writer()
        for version in range(len(states), newest(table.path) + 1):
            states[version] = table.model()
        before = world.offset
        withheld += len(world.merge(writer))
        states[len(states)] = [dict(r) for r in table.model()]
        truncated += any(r[OFFSET] <= before for r in states[len(states) - 2]) and not any(
            r[OFFSET] <= before for r in states[len(states) - 1]
        )
        table.check()
    assert newest(table.path) == len(states) - 1
    for version, state in states.items():
        assert rows_at(table, version) == state, version
    assert truncated and withheld


def test_statistics_that_say_nothing_have_the_file_read(table: Table) -> None:
    writer = fill_table(table)
    adds = [dict(live.add) for live in writer.snapshot.files.values()]
    lines = []
    for add in adds:
        statistics = json.loads(add["stats"])
        statistics["maxValues"].pop(OFFSET)
        lines.append({"add": {**add, "stats": json.dumps(statistics), "dataChange": False}})
    path = table.path / "_delta_log" / f"{newest(table.path) + 1:020d}.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done: Any = upsert(writer, table.changes([row(3, "new", offset=10)]), APP, 3, below=9)
    assert (done.deleted, done.inserted) == (100, 1)
    table.rows = {(3,): row(3, "new", offset=10)}
    assert table.read() == table.model()
