"""The log says of each file how many of its dead rows were replaced: any other may have been deleted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.commit import removal
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.join_files import plan_join
from dblog_core.delta_writer.rewriting.purge_files import plan_purge, purge_file
from dblog_core.delta_writer.rewriting.rewrite import commit_rewritten
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.delta_writer.vectors import count_replaced, tag_replaced, vector_file
from tests.unit.delta_writer.rivals import open_delta
from tests.unit.delta_writer.tables import APP, Table, commit_of, fill_table, newest, row, write_commit

Counts = list[tuple[int, int]]
"""Of each file the rows that were replaced, and those that may have been deleted."""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create_at(tmp_path)


def counts(table: Table, writer: OpenTable | None = None) -> Counts:
    """In the order of the files; as a new process reads them, and as the `writer` has them."""
    new = table.writer()
    new.refresh()
    files = sorted(new.snapshot.files.values(), key=lambda live: live.add["stats"])
    read = {live.path: (live.replaced_count, live.deleted_count) for live in files}
    if writer is not None:
        assert {path: (live.replaced_count, live.deleted_count) for path, live in writer.snapshot.files.items()} == read
    return [read[live.path] for live in files if live.vector is not None]


def updates(*keys: int, offset: int = 5) -> list[dict[str, Any]]:
    return [row(k, "new", offset=offset) for k in keys]


def test_marks_of_many_commits_and_processes_add_up(table: Table) -> None:
    """Keys 0 to 49 are in the first file, the others in the second one."""
    writer = fill_table(table)
    table.merge(writer, updates(1, 2, 3, 60))
    assert sorted(counts(table, writer)) == [(1, 0), (3, 0)]
    table.merge(writer, updates(4, 200), [row(5), row(70), row(71), row(500)])
    assert sorted(counts(table, writer)) == [(1, 2), (4, 1)]
    other = table.writer()
    table.merge(other, updates(6, 61, offset=6), [row(7)])
    assert sorted(counts(table, other)) == [(2, 2), (5, 2)]
    table.check()


def test_a_key_that_moves_was_deleted_and_one_that_comes_back_at_once_was_replaced(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, [row(300, "was 3"), row(4, "was deleted, and inserted again", offset=6)], [row(3)])
    assert counts(table, writer) == [(1, 1)]


def test_old_versions_of_a_row_count_as_deleted_with_it(table: Table) -> None:
    """So they leave the files together. The key of two updates is 1; others are only updated."""
    writer = fill_table(table)
    table.merge(writer, updates(1, 2, 60))
    table.merge(writer, updates(1, 3, offset=6))
    assert sorted(counts(table, writer)) == [(1, 0), (1, 0), (3, 0)]
    before = {live.path for live in writer.snapshot.files.values() if live.deleted_count}
    table.merge(table.writer(), updates(90, offset=7), [row(1)])
    writer.refresh()
    # The file of the second update has a living row too: key 3.
    assert sorted(counts(table, writer)) == [(0, 1), (0, 1), (2, 0), (2, 1)] and not before
    table.check()
    actions = commit_of(table.path, newest(table.path))
    removed = {action["remove"]["path"] for action in actions if "remove" in action}
    tagged = [action["add"] for action in actions if "add" in action and not action["add"]["dataChange"]]
    assert len(tagged) == 2 and not removed & {add["path"] for add in tagged}
    (updated,) = [
        path for path, live in writer.snapshot.files.items() if live.replaced_count and not live.deleted_count
    ]
    while purge_file(writer, only_deleted=True):
        table.check()
    assert counts(table, writer) == [(2, 0)] and updated in writer.snapshot.files
    stored = [r["id"] for path in table.path.glob("*.parquet") if path.name in writer.snapshot.files
              for r in pq.read_table(path, columns=["id"]).to_pylist()]  # fmt: skip
    assert 1 not in stored and stored.count(60) == 2


def test_a_key_that_is_deleted_again_and_again_ends_to_add_actions(table: Table) -> None:
    """Each row that was replaced is counted as deleted once."""
    writer = fill_table(table)
    table.merge(writer, updates(1, 2, 3))
    adds = []
    for offset in range(6, 12):
        table.merge(writer, updates(1, 50 + offset, offset=offset))
        table.merge(writer, [], [row(1)])
        actions = commit_of(table.path, newest(table.path))
        adds.append(sum("add" in action and not action["add"]["dataChange"] for action in actions))
        table.check()
    assert adds[0] > 0 and adds[3:] == [0, 0, 0]


def test_parts_of_one_commit_add_up(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, updates(1))
    upsert(writer, [table.changes(updates(2, 3), [row(4)]), table.changes(updates(5), [row(6)])], APP, 4)
    assert counts(table, writer) == [(4, 2)]


def test_a_row_of_a_dump_that_loses_marks_nothing(table: Table) -> None:
    writer = fill_table(table)
    puts = [row(1, "older", offset=0), row(2, "newer", offset=9)]
    upsert(writer, table.changes(puts, [row(3, offset=0)], dump=True), APP, 3)
    assert counts(table, writer) == [(1, 0)]


def test_a_row_that_waits_for_a_dump_may_have_been_deleted(table: Table) -> None:
    """Its new row keeps a value that nobody has: no row of its key is left."""
    writer = fill_table(table)
    changes = table.changes(updates(1, 2))
    kept = {"note": np.array([True, True])}
    origins = table.arrow([row(1), row(900)]).select(["id"])
    whole = Changes(changes.rows, changes.deleted, changes.guarded, unchanged_toast=kept, origins=origins)
    assert upsert(writer, whole, APP, 3).withheld == 1
    assert counts(table, writer) == [(1, 1)]


def test_a_plan_on_the_marks_of_another_adds_up(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, updates(1))
    rival = table.writer()

    def between() -> None:
        writer.check = lambda: None
        upsert(rival, table.changes(updates(2, 3, offset=6), [row(10)]), "rival", 1)

    writer.check = between
    upsert(writer, table.changes(updates(3, 4, offset=7), [row(11)]), APP, 4)
    # The rival's new row of key 3 is the one in its own file.
    assert sorted(counts(table, writer)) == [(1, 0), (4, 2)]


@pytest.mark.parametrize(("step", "expected"), [(2, (2, 2)), (-1, (0, 1))], ids=["grows", "shrinks"])
def test_what_another_program_marks_may_have_been_deleted(table: Table, step: int, expected: tuple[int, int]) -> None:
    """It copies our tags, as Spark does. Where it takes marks away, nobody knows which ones are left."""
    writer = fill_table(table)
    table.merge(writer, updates(1, 2))
    (live,) = [live for live in writer.snapshot.files.values() if live.vector]
    assert live.vector is not None
    foreign = table.writer()
    foreign.refresh()
    rows = foreign.dead_rows(live).rows()
    rows = np.concatenate([rows, [40, 41]]) if step > 0 else rows[:step]
    change_vector(foreign, live.path, rows)
    assert counts(table) == [expected]
    writer.refresh()
    table.merge(writer, updates(5), [row(6)])
    assert counts(table, writer) == [(expected[0] + 1, expected[1] + 1)]


def change_vector(writer: OpenTable, path: str, rows: Any) -> None:
    """A commit by which the file has a vector of these rows, and all else that it had."""
    live = writer.snapshot.files[path]
    file = vector_file([RowSet().with_rows(np.asarray(rows))], writer.new_id())
    writer.files.create_new(file.name, file.data)
    added = {**live.add, "deletionVector": file.descriptors[0]}
    assert writer.commit("DELETE", {}, [removal(live, now_ms=0, data_change=True), {"add": added}])


@pytest.mark.parametrize("tag", ["x", "-1", "", None, "1.0", "7"])
def test_a_tag_that_says_no_count_of_them_counts_nothing(tag: str | None) -> None:
    assert count_replaced({"deletionVector": {"cardinality": 6}, "tags": {"dblog.replaced": tag}}) == 0


def test_tags_of_others_stay() -> None:
    add: dict[str, Any] = {"tags": {"other": "1", "dblog.replaced": "3"}}
    tag_replaced(add, 4)
    assert add == {"tags": {"other": "1", "dblog.replaced": "4"}}
    tag_replaced(add, 0)
    assert add == {"tags": {"other": "1"}}
    tag_replaced(add := {"tags": {"dblog.replaced": "3"}}, 0)
    assert add == {}


def test_a_checkpoint_keeps_the_counts(table: Table) -> None:
    """Without the commits before it, as Delta cleans them away."""
    writer = fill_table(table)
    table.merge(writer, updates(1, 2, 60), [row(5)])
    before = counts(table, writer)
    open_delta(table).create_checkpoint()
    for version in range(newest(table.path) + 1):
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()
    assert sorted(counts(table)) == sorted(before) == [(1, 0), (2, 1)]
    table.merge(table.writer(), updates(3), [row(6)])
    assert sorted(counts(table)) == [(1, 0), (3, 2)]


@pytest.mark.parametrize("plan", [plan_join, plan_purge])
@pytest.mark.parametrize(("deletes", "expected"), [([], (2, 0)), ([7], (0, 3))], ids=["updates", "deletes"])
def test_rows_that_die_while_a_file_is_written_again_are_counted(
    table: Table, plan: Any, deletes: Sequence[int], expected: tuple[int, int]
) -> None:
    """Of rows of one source of which some were deleted nobody knows which ones."""
    writer = fill_table(table)
    table.merge(writer, updates(*range(30, 48)), [row(49)])
    planned = plan(writer)
    assert planned is not None
    rewritten = planned.carry_out()
    table.merge(writer, updates(1, 2, offset=7), [row(k) for k in deletes])
    assert commit_rewritten(writer, rewritten)
    assert counts(table, writer) == [expected]
    table.check()


def test_files_of_which_a_row_was_deleted_are_purged_and_no_others(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, updates(1, 2, 3), [row(60)])
    (replaced,) = [path for path, live in writer.snapshot.files.items() if live.replaced_count]
    assert purge_file(writer, only_deleted=True) and not purge_file(writer, only_deleted=True)
    assert counts(table, writer) == [(3, 0)] and replaced in writer.snapshot.files
    table.check()
    assert purge_file(writer) and counts(table, writer) == []
    table.check()


def test_marks_of_a_table_from_before_the_counts_may_have_been_deleted(table: Table) -> None:
    writer = fill_table(table)
    table.merge(writer, updates(1, 2), [row(60)])
    commit = commit_of(table.path, newest(table.path))
    for action in commit:
        action.get("add", {}).pop("tags", None)
    write_commit(table.path, newest(table.path), *commit)
    assert sorted(counts(table)) == [(0, 1), (0, 2)]
