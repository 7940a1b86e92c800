"""Changes become one commit, exactly once: delta-rs reads what a model says after every step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from deltalake import WriterProperties, write_deltalake

from dblog_core.delta_writer import stored_rows
from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.upserting.upsert import upsert
from tests.unit.delta_writer.tables import (
    APP,
    OFFSET,
    Table,
    commit_of,
    fill_table,
    newest,
    row,
    write_commit,
)


def test_each_change_is_in_the_table_once(table: Table) -> None:
    writer = fill_table(table)
    puts = [row(i, "new", offset=2) for i in (3, 70, 500)]
    done = table.merge(writer, puts, [row(4), row(71), row(600)])
    assert (done.inserted, done.updated, done.deleted, done.absent) == (1, 2, 2, 1)
    table.check()


def test_a_commit_is_one_version_with_its_transaction(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(3, "new", offset=2)], [row(70)])
    actions = commit_of(table.path, 3)
    assert [a["txn"]["version"] for a in actions if "txn" in a] == [3]
    assert actions[0]["commitInfo"]["userMetadata"] == "dblog"
    assert actions[0]["commitInfo"]["isBlindAppend"] is False, "what it adds depends on the rows that it has found"
    assert actions[0]["commitInfo"]["operationMetrics"]["numTargetRowsUpdated"] == "1"
    added = 3 if table.vectors else 2  # what is left of both files becomes one file
    assert len([a for a in actions if "remove" in a]) == 2 and len([a for a in actions if "add" in a]) == added
    assert actions[0]["commitInfo"]["operationMetrics"]["numTargetRowsCopied"] == ("0" if table.vectors else "98")
    vectors = [p for p in table.path.iterdir() if p.name.startswith("deletion_vector")]
    assert len(vectors) == table.vectors, "both vectors lie in one file"


def test_the_same_merge_again_changes_nothing(table: Table) -> None:
    writer = fill_table(table)
    second_outcome = upsert(writer, table.changes([row(3, "again", offset=9)]), APP, 2)
    assert second_outcome.already and second_outcome.version == 2
    fresh = upsert(table.writer(), table.changes([row(3, "again", offset=9)]), APP, 1)
    assert fresh.already, "another process finds it in the log"
    table.check()


def test_an_empty_work_leaves_its_transaction(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, [], [row(1000)])
    assert writer.snapshot.txns == {APP: 3} and newest(table.path) == 3
    table.check()


def test_a_vector_grows_on_the_one_before(table: Table) -> None:
    """Mutant: vector not merged with the old one."""
    writer = fill_table(table)
    for i in range(0, 30, 3):
        table.merge(writer, [], [row(i)])
        table.check()
        table.merge(table.writer(), [row(i + 1, "by another process", offset=i)])
        table.check()
    assert len(table.rows) == 90


def test_parts_with_more_keys_than_memory_has_room_for_are_found_in_their_files(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog_core.delta_writer.data_file.KEY_BYTES", 1500)
    writer = fill_table(table)
    parts = [[row(i, "part", offset=2) for i in range(first, first + 100)] for first in (50, 150, 250)]
    done = upsert(writer, [table.changes(part) for part in parts], APP, 3)
    assert (done.inserted, done.updated) == (250, 50)
    for part in parts:
        table.expect(part)
    table.check()
    table.merges = 3
    table.merge(writer, [row(i, "later", offset=3) for i in range(0, 350, 7)], [row(i) for i in range(3, 350, 7)])
    table.check()
    assert len(table.rows) == 300


@pytest.mark.parametrize("loose", [0, 60, 1 << 40])
def test_the_places_of_old_rows_may_be_more_than_memory_has_room_for(
    table: Table, monkeypatch: pytest.MonkeyPatch, loose: int
) -> None:
    """Parts of the same files follow each other, some of whose places have been made bitmaps before."""
    monkeypatch.setattr("dblog_core.delta_writer.upserting.draft._LOOSE_PLACES", loose)
    writer = fill_table(table, 300)
    table.merge(writer, [row(7, "dead before", offset=2)])
    parts = [[row(i, f"part {first}", offset=9) for i in range(first, 300, 5)] for first in range(4)]
    done = upsert(writer, [table.changes(part) for part in parts], APP, 50)
    assert (done.inserted, done.updated) == (0, 240)
    for part in parts:
        table.expect(part)
    table.check()


def test_keys_beyond_those_of_a_file_do_not_have_it_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: a file whose highest key is the lowest of the changes is left out; bounds of an older version."""
    fill_table(table)  # keys 0 to 49 and 50 to 99
    read: list[str] = []

    def spy(
        files: TableFiles, live: LiveFile, shape: Shape, names: Sequence[str], **options: Any
    ) -> Iterator[tuple[int, pa.Table]]:
        read.append(live.path)
        return stored_rows.row_stretches(files, live, shape, names, **options)

    monkeypatch.setattr("dblog_core.delta_writer.open_table.row_stretches", spy)
    writer = table.writer()
    table.merge(writer, [row(i, "above", offset=2) for i in range(100, 120)])
    assert not read
    table.check()
    table.merge(writer, [row(99, "the highest", offset=3), row(130, offset=3)])
    assert len(read) == 1
    table.merge(writer, [], [row(0)])
    assert len(read) == 2, "each file is read once, when it may have a key"
    table.merge(writer, [row(i, "all", offset=4) for i in range(0, 140, 3)])
    assert len(read) == 2
    table.check()


def test_bounds_are_those_of_the_newest_version(table: Table) -> None:
    """A writer may state the bounds of the living rows alone, and a RESTORE has dead rows live again."""
    writer = fill_table(table)
    table.merge(writer, [], [row(i) for i in range(90, 100)])
    added = [a["add"] for a in commit_of(table.path, 3) if "add" in a]
    before = [a["add"] for a in commit_of(table.path, 2) if "add" in a]
    assert len(added) == len(before) == 1
    statistics = json.loads(added[0]["stats"])
    statistics["maxValues"]["id"] = 89
    tight = {**added[0], "stats": json.dumps(statistics)}
    fresh = table.writer()
    write_commit(table.path, 4, {"remove": removed(added[0])}, {"add": tight})
    table.merges = 9
    table.merge(fresh, [row(200, offset=5)])
    write_commit(table.path, newest(table.path) + 1, {"remove": removed(tight)}, {"add": before[0]})
    for i in range(90, 100):
        table.expect([row(i, offset=1)])
    table.check()
    table.merge(fresh, [row(95, "again", offset=6)])
    table.check()


def removed(add: dict[str, Any]) -> dict[str, Any]:
    unchanged = {name: add[name] for name in ("path", "size", "partitionValues", "deletionVector") if name in add}
    return {**unchanged, "dataChange": True, "extendedFileMetadata": True, "deletionTimestamp": 0}


def test_a_file_without_a_live_row_is_gone(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, [], [row(i) for i in range(50)])
    assert len(writer.snapshot.files) == 1
    table.check()


def test_a_dump_row_loses_against_a_newer_one(table: Table) -> None:
    """Mutant: delete of the wrong version of a key."""
    writer = fill_table(table)
    table.merge(writer, [row(1, "newer", offset=50), row(2, "same", offset=20)])
    puts = [row(i, "dump", offset=20) for i in (1, 2, 3, 200)]
    done = upsert(writer, table.changes(puts, [row(1, offset=20), row(60, offset=20)][1:], dump=True), APP, 4)
    assert (done.older, done.updated, done.inserted, done.deleted) == (2, 1, 1, 1)
    table.expect([puts[2], puts[3]], [row(60)])
    table.check()


def test_a_dead_row_is_no_row_of_its_key(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(1, "newer", offset=50)], [row(2)])
    table.merge(writer, [], [row(1)])
    done = upsert(writer, table.changes([row(1, "dump", offset=20), row(2, "dump", offset=20)], dump=True), APP, 5)
    assert (done.inserted, done.updated, done.older) == (2, 0, 0)
    table.expect([row(1, "dump", offset=20), row(2, "dump", offset=20)])
    table.check()
    second_outcome = upsert(writer, table.changes([], [row(70), row(70 + 1)]), APP, 6)
    assert (second_outcome.deleted, second_outcome.absent) == (2, 0)
    third_outcome = upsert(writer, table.changes([], [row(70)]), APP, 7)
    assert (third_outcome.deleted, third_outcome.absent) == (0, 1)


def test_a_dump_row_that_says_nothing_new_is_left_out(table: Table) -> None:
    table.fields["score"] = "double"
    table = Table.create_at(table.lake / "other", fields=table.fields)
    writer = table.writer()
    nan = float("nan")
    table.merge(writer, [row(1, offset=1, score=-0.0), row(2, offset=1, score=nan), row(3, offset=1, note="")])
    puts = [row(1, offset=9, score=0.0), row(2, offset=9, score=nan), row(3, offset=9, note="x"), row(4, offset=9)]
    changes = table.changes(puts, dump=True)
    same = Changes(changes.rows, changes.deleted, changes.guarded, same=("id", "note", "amount", "score"))
    done = upsert(writer, same, APP, 2)
    assert (done.unchanged, done.updated, done.inserted) == (2, 1, 1)
    assert [r[OFFSET] for r in table.read()] == [1, 1, 9, 9]


def test_rows_without_an_offset_are_older_than_any(table: Table) -> None:
    writer = fill_table(table)
    write_deltalake(str(table.path), table.arrow([{"id": 900, "note": "foreign"}]), mode="append")
    done = upsert(writer, table.changes([row(900, "dump", offset=1)], dump=True), APP, 3)
    assert done.updated == 1
    table.expect([row(900, "dump", offset=1)])
    table.check()


def test_keys_that_somebody_doubled_are_one_again_after_their_next_change(table: Table) -> None:
    """Mutant: stale index believed."""
    writer = fill_table(table)
    for _ in range(2):
        write_deltalake(str(table.path), table.arrow([row(5, "twin"), row(6, "twin"), row(7, "twin")]), mode="append")
    assert len(table.read()) == 106
    table.merge(writer, [row(5, "one", offset=3)], [row(6)])
    table.rows.pop((7,))
    assert [r for r in table.read() if r["id"] != 7] == table.model()
    done = upsert(writer, table.changes([row(7, "dump", offset=9)], dump=True), APP, 4)
    assert done.updated == 1
    table.expect([row(7, "dump", offset=9)])
    table.check()


def test_a_doubled_key_with_a_newer_row_is_left_to_it(table: Table) -> None:
    writer = fill_table(table)
    write_deltalake(str(table.path), table.arrow([row(5, "twin", offset=90)]), mode="append")
    done = upsert(writer, table.changes([row(5, "dump", offset=50)], dump=True), APP, 3)
    assert done.older == 1 and len(table.read("id = 5")) == 2


def test_a_file_that_tells_of_too_few_rows_loses_none(table: Table) -> None:
    for stated_rows, deleted_count in ((1, 2), (2, 3)):
        table = Table.create_at(table.lake / str(stated_rows))
        writer = table.writer()
        table.merge(writer, [row(i, offset=1) for i in range(4)])
        actions = commit_of(table.path, 1)
        added = next(a["add"] for a in actions if "add" in a)
        added["stats"] = json.dumps({"numRecords": stated_rows})
        write_commit(table.path, 1, *actions)
        table.merge(table.writer(), [], [row(i) for i in range(deleted_count)])
        assert len(table.read()) == 4 - deleted_count
        new = next(a["add"] for a in commit_of(table.path, 2) if "add" in a)
        assert json.loads(new["stats"])["numRecords"] == 4


def test_a_table_that_was_put_in_the_place_of_another_is_read_anew(table: Table) -> None:
    writer = fill_table(table)
    shutil.rmtree(table.path)
    other = Table.create_at(table.lake)
    others = other.writer()
    for i in range(4):
        other.merge(others, [row(i, "of the other", offset=1)])
    other.merges = 10
    other.merge(writer, [row(2, "ours", offset=9), row(70, "ours", offset=9)])
    other.check()


def test_rows_of_later_row_groups_are_found_where_they_stand(table: Table) -> None:
    """Mutant: wrong row number."""
    rows = [row(i, offset=1) for i in range(100)]
    groups_of_ten = WriterProperties(max_row_group_size=10)
    write_deltalake(str(table.path), table.arrow(rows), mode="append", writer_properties=groups_of_ten)
    table.expect(rows)
    writer = table.writer()
    table.merge(writer, [row(i, "new", offset=2) for i in (5, 55, 95)], [row(15), row(77)])
    table.check()
    table.merge(writer, [], [row(55), row(54), row(99)])
    table.check()
    assert (join_files(writer) > 0) == table.vectors, "copies of small files are one file"
    table.check()
    table.merge(writer, [row(56, "after the join", offset=3)], [row(98)])
    table.check()
