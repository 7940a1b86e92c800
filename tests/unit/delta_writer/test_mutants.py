"""Deliberate mistakes in the writer: for each, the check of a small past that finds it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.compute as pc
import pytest

from dblog_core.delta_writer import statistics
from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.data_file import StoredFile
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.keys.key_index import KeyIndex
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import key_overlap, ordered_rewrite, rewrite
from dblog_core.delta_writer.rewriting.cluster_files import plan_cluster
from dblog_core.delta_writer.rewriting.join_files import join_files, plan_join
from dblog_core.delta_writer.rewriting.purge_files import plan_purge
from dblog_core.delta_writer.rewriting.rewrite import Rewrite, Rewritten, commit_rewritten
from dblog_core.delta_writer.upserting import upsert
from dblog_core.interfaces import Json
from dblog_core.storage import Bytes
from tests.unit.delta_writer.rivals import open_delta
from tests.unit.delta_writer.tables import APP, FIELDS, Table, fill_table, row

Patch = AbstractContextManager[object]
Past = Callable[[Table], None]
NONE = np.empty(0, np.int64)


def a_stale_index_is_believed() -> Patch:
    """What covers the files of an older version counts as whole."""
    covers = KeyIndex.covers

    def cover_all(self: KeyIndex, path: str, size: int) -> bool:
        return covers(self, path, size) or len(self) > 0

    return mock.patch.object(KeyIndex, "covers", cover_all)


def a_dead_entry_of_the_index_is_believed() -> Patch:
    """A row that was replaced counts as the key's."""
    return mock.patch.object(RowSet, "contains", lambda self, rows: np.zeros(len(rows), np.bool_))


def a_vector_is_not_joined_with_the_old_one() -> Patch:
    """It marks the rows of its own commit alone."""
    return mock.patch.object(RowSet, "with_rows", lambda self, rows: _grow(RowSet(), rows))


_grow = RowSet.with_rows


def a_row_number_is_wrong_after_a_join() -> Patch:
    """Rows are counted in the order of the old files, and stand in that of their keys."""
    index = OpenTable.index_file

    def index_as_read(self: OpenTable, file: StoredFile, shape: Any) -> None:
        assert file.keys is not None
        keys = file.keys.take(np.argsort([hash(str(key)) for key in file.keys.to_pylist()]))
        index(self, replace(file, keys=keys), shape)

    return mock.patch.object(OpenTable, "index_file", index_as_read)


def what_died_while_files_were_written_is_forgotten() -> Patch:
    """The new file lives whole, as it was planned."""
    return mock.patch.object(rewrite, "_find_died", return_value=rewrite.Died(NONE, NONE))


@contextlib.contextmanager
def old_row_numbers_are_marked_in_the_new_files() -> Iterator[None]:
    """Nobody looks where the rows that died have come to stand."""
    find_died = rewrite._find_died

    def keep_numbers(table: OpenTable, rewritten: Rewritten) -> Any:
        as_before = {path: np.arange(len(rows)) for path, rows in rewritten.places.items()}
        return find_died(table, replace(rewritten, places=as_before))

    with mock.patch.object(rewrite, "_find_died", keep_numbers):
        yield


def marks_stay_with_the_first_new_file() -> Patch:
    """Nobody looks in which of several files a row that died has come to stand."""

    def give_to_first(files: Sequence[StoredFile], died: rewrite.Died) -> Iterator[tuple[StoredFile, RowSet, int]]:
        for number, file in enumerate(files):
            yield file, RowSet().with_rows(died.within(0, file.count).rows) if number == 0 else RowSet(), 0

    return mock.patch.object(rewrite, "_dead_by_file", give_to_first)


@contextlib.contextmanager
def a_row_is_lost_between_two_parts() -> Iterator[None]:
    """The last row of each part belongs to none."""
    read = ordered_rewrite._Rows.read

    def read_short(self: Any, check: Any) -> Iterator[Any]:
        for part in read(self, check):
            yield replace(part, rows=part.rows.slice(0, len(part.rows) - 1)) if part.left else part

    with mock.patch.object(ordered_rewrite._Rows, "read", read_short):
        yield


def rows_of_one_first_column_are_split() -> Patch:
    """Files end wherever they are large enough."""

    def split(values: Any, pieces: int) -> Any:
        return np.unique(np.arange(pieces + 1) * len(values) // pieces)

    return mock.patch.object(ordered_rewrite, "_piece_edges", split)


def rows_are_ordered_by_the_first_column_alone() -> Patch:
    """Of a key of two."""
    sort = pc.sort_indices
    return mock.patch.object(pc, "sort_indices", lambda keys, sort_keys: sort(keys, sort_keys=sort_keys[:1]))


def statistics_are_too_tight() -> Patch:
    """A long text is its first characters."""
    return mock.patch.object(statistics, "_upper", lambda text: text[:32])


def statistics_of_the_last_part_count() -> Patch:
    """Of a file that was written in parts."""
    return mock.patch.object(statistics, "_join_ends", lambda one, other: other)


def a_commit_has_no_transaction() -> Patch:
    """A merge that is tried again finds no trace of the first try."""
    commit = OpenTable.commit

    def commit_bare(self: OpenTable, operation: str, metrics: dict[str, int], actions: list[Json]) -> bool:
        return commit(self, operation, metrics, [action for action in actions if "txn" not in action])

    return mock.patch.object(OpenTable, "commit", commit_bare)


def the_wrong_version_of_a_key_is_deleted() -> Patch:
    """The first row that the index knows, dead or alive, and not the live one."""
    find_rows = OpenTable.find_rows

    def find_first(self: OpenTable, *arguments: Any, **more: Any) -> Any:
        living, dead = find_rows(self, *arguments, **more)
        return [replace(hit, rows=np.zeros_like(hit.rows)) for hit in living], dead

    return mock.patch.object(OpenTable, "find_rows", find_first)


def the_plan_of_before_is_committed() -> Patch:
    """Another's commit is not read: the same rows are marked in the next version."""
    refresh = OpenTable.refresh

    def refresh_once(self: OpenTable) -> Any:
        if self.snapshot.version < 0:
            return refresh(self)
        names = (self.files.root / "_delta_log").names()
        newest = max(int(name[:20]) for name in names if name.endswith(".json"))
        object.__setattr__(self.snapshot, "version", newest)
        return self.snapshot.shape(str(self.files))

    return mock.patch.object(OpenTable, "refresh", refresh_once)


def a_commit_overwrites_its_number() -> Patch:
    """As a client does that is not told to create the object alone: a writer that was paused, over its successor."""
    create = TableFiles.create

    def put(self: TableFiles, path: str, data: Bytes) -> bool:
        if not path.startswith("_delta_log/"):
            return create(self, path, data)
        (self.root / path).replace(data)
        return True

    return mock.patch.object(TableFiles, "create", put)


def others_append_keys_of_the_table(table: Table) -> None:
    writer = fill_table(table, 20)
    open_delta(table).delete("id = 7")
    table.rows.pop((7,))
    table.merge(table.writer(), [row(7, "again", offset=3)])
    table.merge(writer, [row(7, "ours", offset=5)])
    table.check()


def a_key_changes_again_and_again(table: Table) -> None:
    writer = fill_table(table, 20)
    for offset in range(2, 6):
        table.merge(writer, [row(k, f"round {offset}", offset=offset) for k in (13, 15)], [row(offset)])
        table.check()


def a_deleted_key_is_born_again(table: Table) -> None:
    writer = fill_table(table, 20)
    table.merge(writer, [], [row(3)])
    done = table.merge(writer, [row(3, "born", offset=5)])
    assert (done.inserted, done.updated) == (1, 0)


def files_are_joined_and_changed(table: Table) -> None:
    writer = table.writer()
    for i in range(3):
        table.merge(writer, [row(k, offset=1) for k in range(i * 20 + 19, i * 20 - 1, -1)], [row(1000 + i)])
    table.merge(writer, [], [row(2), row(25), row(50)])
    join_files(writer)
    table.merge(writer, [row(k, "after", offset=5) for k in (5, 31, 58)], [row(40)])
    table.check()


def rows_die_while_files_are_joined(table: Table) -> None:
    writer = table.writer()
    for i in range(3):
        table.merge(writer, [row(k, offset=1) for k in range(i * 20 + 19, i * 20 - 1, -1)])
    table.merge(writer, [], [row(2), row(25), row(50)])
    _rewrite_beside(table, writer, plan_join)


def rows_die_while_a_file_is_purged(table: Table) -> None:
    writer = fill_table(table, 40)
    table.merge(writer, [], [row(k) for k in range(0, 20, 2)])
    _rewrite_beside(table, writer, plan_purge)


def _rewrite_beside(table: Table, writer: OpenTable, plan: Callable[[OpenTable], Rewrite | None]) -> None:
    planned = plan(writer)
    assert planned is not None
    rewritten = planned.carry_out()
    table.merge(writer, [row(3, "meanwhile", offset=4)], [row(9)])
    assert commit_rewritten(writer, rewritten)
    table.check()


def fill_mixed_files(table: Table) -> OpenTable:
    """Four files of all keys."""
    writer = table.writer()
    for i in range(4):
        table.merge(writer, [row(k, long_text(k), offset=1) for k in range(i, 240, 4)])
    return writer


def long_text(number: int) -> str:
    return hashlib.sha512(str(number).encode()).hexdigest()


@contextlib.contextmanager
def small_clusters() -> Iterator[Callable[[OpenTable], Rewrite | Any]]:
    """The plan of files that are put in order, of some 60 rows each."""
    with (
        mock.patch.object(key_overlap, "FILES", 1),
        mock.patch.object(ordered_rewrite, "is_worth", return_value=True),
    ):
        yield partial(plan_cluster, target=5000)


def rows_die_while_files_are_put_in_order(table: Table) -> None:
    writer = fill_mixed_files(table)
    with small_clusters() as plan:
        planned = plan(writer)
        rewritten = planned.carry_out()
    assert rewritten is not None and len(rewritten.files) > 2
    table.merge(writer, [row(3, "meanwhile", offset=4), row(230, "meanwhile", offset=4)], [row(9), row(120)])
    assert commit_rewritten(writer, rewritten)
    table.check()


def rows_are_asked_for_after_files_were_put_in_order(table: Table) -> None:
    writer = fill_mixed_files(table)
    with small_clusters() as plan:
        rewritten = plan(writer).carry_out()
    assert rewritten is not None and commit_rewritten(writer, rewritten)
    for k in (0, 1, 59, 120, 239):
        assert len(table.read(f"id = {k}")) == 1


def rows_of_a_key_of_two_columns_are_put_in_order(table: Table) -> None:
    """Few rows of one first column stand in one file, in the order of the second."""
    table = Table.create_at(table.lake / "two", fields={"shop": "long", **FIELDS}, keys=("shop", "id"))
    writer = table.writer()
    for i in range(4):
        table.merge(writer, [row(k, long_text(k), shop=k // 7) for k in range(i, 700, 4)])
    with small_clusters() as plan:
        rewritten = plan(writer).carry_out()
    assert rewritten is not None and commit_rewritten(writer, rewritten)
    table.check()
    assert len(rewritten.files) > 2
    keys = [
        list(zip(*file.keys.to_pydict().values(), strict=True)) for file in rewritten.files if file.keys is not None
    ]
    assert [key for file in keys for key in file] == sorted(table.rows)
    shops = [{key[0] for key in file} for file in keys]
    assert sum(map(len, shops)) == len(set().union(*shops))


def the_table_is_restored_while_files_are_joined(table: Table) -> None:
    writer = fill_table(table, 40)
    version = writer.snapshot.version
    table.merge(writer, [], [row(3)])
    planned = plan_join(writer)
    assert planned is not None
    rewritten = planned.carry_out()
    open_delta(table).restore(version)
    table.expect([row(3, offset=1)])
    commit_rewritten(writer, rewritten)
    table.check()


def a_merge_is_tried_again(table: Table) -> None:
    writer = fill_table(table, 10)
    puts = [row(3, "once", offset=5)]
    upsert.upsert(writer, table.changes(puts), APP, 3)
    assert upsert.upsert(table.writer(), table.changes(puts), APP, 3).already


def rows_are_asked_for_by_long_texts(table: Table) -> None:
    table.merge(table.writer(), [row(1, "x" * 40)])
    assert len(table.read(f"note = '{'x' * 40}'")) == 1


def rows_are_asked_for_that_stood_in_the_first_part(table: Table) -> None:
    """Of a file that was purged in parts."""
    writer = fill_table(table, 40)
    table.merge(writer, [], [row(k) for k in range(0, 20, 2)])
    with (
        mock.patch("dblog_core.delta_writer.stored_rows._ROWS_AT_ONCE", 5),
        mock.patch.object(rewrite, "_GROUP_BYTES", 1),
    ):
        _rewrite_beside(table, writer, plan_purge)
    assert len(table.read("id = 1")) == 1


def another_commits_between_plan_and_commit(table: Table) -> None:
    writer = fill_table(table, 20)
    done: list[int] = []

    def commit_as_rival() -> None:
        if not done:
            done.append(1)
            table.merge(table.writer(), [row(4, "other", offset=5), row(6, "other", offset=5)])

    writer.check = commit_as_rival
    table.merges += 1
    number = table.merges + 1
    upsert.upsert(writer, table.changes([row(4, "ours", offset=6)]), "another", number)
    table.expect([row(4, "ours", offset=6)])
    table.check()


MUTANTS: list[tuple[Callable[[], Patch], Past]] = [
    (a_stale_index_is_believed, others_append_keys_of_the_table),
    (a_dead_entry_of_the_index_is_believed, a_deleted_key_is_born_again),
    (a_vector_is_not_joined_with_the_old_one, a_key_changes_again_and_again),
    (a_row_number_is_wrong_after_a_join, files_are_joined_and_changed),
    (what_died_while_files_were_written_is_forgotten, rows_die_while_files_are_joined),
    (what_died_while_files_were_written_is_forgotten, rows_die_while_a_file_is_purged),
    (old_row_numbers_are_marked_in_the_new_files, rows_die_while_files_are_joined),
    (old_row_numbers_are_marked_in_the_new_files, rows_die_while_a_file_is_purged),
    (what_died_while_files_were_written_is_forgotten, the_table_is_restored_while_files_are_joined),
    (marks_stay_with_the_first_new_file, rows_die_while_files_are_put_in_order),
    (what_died_while_files_were_written_is_forgotten, rows_die_while_files_are_put_in_order),
    (old_row_numbers_are_marked_in_the_new_files, rows_die_while_files_are_put_in_order),
    (a_row_is_lost_between_two_parts, rows_die_while_files_are_put_in_order),
    (statistics_of_the_last_part_count, rows_are_asked_for_after_files_were_put_in_order),
    (rows_of_one_first_column_are_split, rows_of_a_key_of_two_columns_are_put_in_order),
    (rows_are_ordered_by_the_first_column_alone, rows_of_a_key_of_two_columns_are_put_in_order),
    (statistics_are_too_tight, rows_are_asked_for_by_long_texts),
    (statistics_of_the_last_part_count, rows_are_asked_for_that_stood_in_the_first_part),
    (a_commit_has_no_transaction, a_merge_is_tried_again),
    (the_wrong_version_of_a_key_is_deleted, a_key_changes_again_and_again),
    (the_plan_of_before_is_committed, another_commits_between_plan_and_commit),
    (a_commit_overwrites_its_number, another_commits_between_plan_and_commit),
]


@pytest.mark.parametrize("past", dict.fromkeys(past for _, past in MUTANTS))
def test_each_past_is_right_without_a_mistake(tmp_path: Path, past: Past) -> None:
    past(Table.create_at(tmp_path))


@pytest.mark.parametrize(("mutant", "past"), MUTANTS)
@pytest.mark.thorough
def test_each_mistake_is_found(tmp_path: Path, mutant: Callable[[], Patch], past: Past) -> None:
    table = Table.create_at(tmp_path)
    with mutant(), pytest.raises(AssertionError):
        past(table)
