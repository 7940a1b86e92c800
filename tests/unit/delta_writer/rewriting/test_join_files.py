"""Small files become one: the rows stay, the dead ones go, and the index knows the new places."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.upserting.upsert import upsert
from tests.unit.delta_writer.tables import APP, Table, commit_of, newest, row, write_commit


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create_at(tmp_path)


def fill_files(table: Table, files: int = 5) -> OpenTable:
    writer = table.writer()
    for i in range(files):
        table.merge(writer, [row(k, offset=i) for k in range(i * 20 + 19, i * 20 - 1, -1)])
    table.merge(writer, [], [row(k) for k in range(0, files * 20, 3)])
    return writer


def test_rows_stay_and_the_dead_ones_go(table: Table) -> None:
    writer = fill_files(table)
    assert join_files(writer) == 5
    assert len(writer.snapshot.files) == 1 and next(iter(writer.snapshot.files.values())).vector is None
    actions = [a.get("add") or a.get("remove") for a in commit_of(table.path, newest(table.path))]
    assert [a["dataChange"] for a in actions if a] == [False] * 6
    table.check()


def test_the_index_knows_the_new_rows(table: Table) -> None:
    """Mutant: wrong row number after a join of files."""
    writer = fill_files(table)
    join_files(writer)
    for k in range(1, 100, 10):
        table.merge(writer, [row(k, "after", offset=50)], [row(k + 1)])
        table.check()
    join_files(writer)
    table.merge(writer, [row(k, "again", offset=60) for k in range(0, 120, 7)])
    table.check()


def test_no_file_is_read_for_the_index_after_a_join(table: Table) -> None:
    writer = fill_files(table)
    join_files(writer)
    shape = writer.refresh()
    files = writer.snapshot.files
    index = writer._index
    assert index is not None and all(index.covers(path, f.size) for path, f in files.items())
    assert shape.names == list(table.fields)


def test_files_are_joined_as_in_an_lsm(table: Table) -> None:
    """A large file waits until there is as much in small ones."""
    writer = table.writer()
    table.merge(writer, [row(k, f"{k:064}" * 4) for k in range(3000)])
    for i in range(4):
        table.merge(writer, [row(10_000 + i)])
    assert join_files(writer) == 4 and len(writer.snapshot.files) == 2
    assert join_files(writer) == 2, "two are always worth it"
    assert join_files(writer) == 0
    table.check()


def test_only_small_files_are_joined(table: Table) -> None:
    writer = fill_files(table)
    assert join_files(writer, below=100) == 0
    assert join_files(writer, at_least=6) == 0
    assert join_files(writer, together=2500) in (2, 3, 4)
    table.check()


def test_files_whose_rows_are_all_dead_leave_none(table: Table) -> None:
    writer = table.writer()
    for i in range(3):
        table.merge(writer, [row(i), row(i + 10)])
    DeltaTable(str(table.path)).delete("true")
    table.rows.clear()
    assert join_files(writer) == 0
    table.check()


def test_a_file_without_rows_is_joined_too(table: Table) -> None:
    writer = fill_files(table, 1)
    for name in ("none", "more"):
        pq.write_table(table.arrow([]), table.path / f"{name}.parquet")
        size = (table.path / f"{name}.parquet").stat().st_size
        add = {
            "path": f"{name}.parquet",
            "size": size,
            "partitionValues": {},
            "modificationTime": 0,
            "dataChange": True,
        }
        write_commit(table.path, newest(table.path) + 1, {"add": {**add, "dataChange": True}})
    table.merge(writer, [row(1, "new", offset=9)])
    assert join_files(writer) == 4 and len(writer.snapshot.files) == 1
    table.check()


def test_whoever_commits_in_between_is_heard(table: Table) -> None:
    writer = fill_files(table)
    commits: list[str] = []

    def between() -> None:
        if not commits:
            commits.append("delete")
            DeltaTable(str(table.path)).delete("id % 20 = 5")
            table.rows = {key: row_values for key, row_values in table.rows.items() if key[0] % 20 != 5}

    writer.check = between
    assert join_files(writer) > 0
    table.check()
    write_deltalake(str(table.path), table.arrow([row(5000)]), mode="append")
    table.expect([row(5000)])
    writer.check = lambda: None
    table.merge(writer, [row(5000, "ours", offset=9)])
    assert join_files(writer) > 0
    table.check()


def test_who_is_overtaken_each_time_gives_up(table: Table) -> None:
    writer = fill_files(table)
    other = table.writer()

    def between() -> None:
        table.merges += 1
        upsert(other, table.changes([row(table.merges, "other", offset=99)]), APP, table.merges)
        table.expect([row(table.merges, "other", offset=99)])

    writer.check = between
    assert join_files(writer) == 0
    table.check()
