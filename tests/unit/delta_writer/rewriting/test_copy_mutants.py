"""Deliberate mistakes in the copies of files: for each, the check of a small past that finds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.data_file import StoredFile
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import copy_on_write, touched_files
from dblog_core.delta_writer.rewriting.rewrite import Source
from dblog_core.delta_writer.upserting import draft, upsert
from tests.unit.delta_writer.tables import Table, fill_table, row
from tests.unit.delta_writer.test_mutants import Past, Patch, a_commit_overwrites_its_number


def a_copy_keeps_the_rows_that_go() -> Patch:
    """Of a table without vectors: its files are written again with all their rows."""
    copy = copy_on_write.copy_files

    def copy_whole(table: OpenTable, touched: Sequence[Source], copies: Any) -> list[StoredFile]:
        return copy(table, [replace(source, dead=RowSet()) for source in touched], copies)

    return mock.patch.object(touched_files, "copy_files", copy_whole)


def rows_of_a_copy_are_looked_for_where_they_stood() -> Patch:
    """The index takes each row of a copy for the one before it."""
    index = OpenTable.index_file

    def index_as_before(self: OpenTable, file: StoredFile, shape: Any) -> None:
        assert file.keys is not None
        numbers = np.roll(np.arange(len(file.keys)), 1)
        index(self, replace(file, keys=file.keys.take(numbers)), shape)

    return mock.patch.object(OpenTable, "index_file", index_as_before)


def a_copy_of_an_older_version_is_taken() -> Patch:
    """Whatever has gone from the files since."""

    def digest_paths(table: OpenTable, group: Sequence[Source]) -> bytes:
        return b"the same"

    return mock.patch.object(copy_on_write, "_digest", digest_paths)


def a_file_without_a_living_row_stays() -> Patch:
    """It is only removed where something of it is left."""
    take = touched_files.take_old_rows

    def take_left(*arguments: Any) -> Any:
        old = take(*arguments)
        return replace(old, touched=[touched for touched in old.touched if touched.has_left])

    return mock.patch.object(draft, "take_old_rows", take_left)


def rows_change_in_a_table_without_vectors(copied: Table) -> None:
    writer = fill_table(copied, 40)
    copied.merge(writer, [row(3, "new", offset=5), row(30, "new", offset=5)], [row(9)])
    copied.check()
    copied.merge(writer, [row(11, "newer", offset=6), row(3, "newer", offset=6)], [row(31)])
    copied.check()
    copied.merge(writer, [], [row(key) for key, *_ in sorted(copied.rows)])
    copied.check()


def another_changes_a_table_without_vectors_meanwhile(copied: Table) -> None:
    writer = fill_table(copied, 20)
    done: list[int] = []

    def commit_as_rival() -> None:
        if not done:
            done.append(1)
            copied.merge(copied.writer(), [row(4, "other", offset=5)], [row(6)])

    writer.check = commit_as_rival
    upsert.upsert(writer, copied.changes([row(5, "ours", offset=6)], [row(15)]), "another", 1)
    copied.expect([row(5, "ours", offset=6)], [row(15)])
    copied.check()


MUTANTS: list[tuple[Callable[[], Patch], Past]] = [
    (a_copy_keeps_the_rows_that_go, rows_change_in_a_table_without_vectors),
    (rows_of_a_copy_are_looked_for_where_they_stood, rows_change_in_a_table_without_vectors),
    (a_file_without_a_living_row_stays, rows_change_in_a_table_without_vectors),
    (a_copy_of_an_older_version_is_taken, another_changes_a_table_without_vectors_meanwhile),
    (a_commit_overwrites_its_number, another_changes_a_table_without_vectors_meanwhile),
]


@pytest.mark.parametrize("past", dict.fromkeys(past for _, past in MUTANTS))
def test_each_past_is_right_without_a_mistake(tmp_path: Path, past: Past) -> None:
    past(Table.create_at(tmp_path, vectors=False))


@pytest.mark.parametrize(("mutant", "past"), MUTANTS)
@pytest.mark.thorough
def test_each_mistake_is_found(tmp_path: Path, mutant: Callable[[], Patch], past: Past) -> None:
    table = Table.create_at(tmp_path, vectors=False)
    with mutant(), pytest.raises(AssertionError):
        past(table)
