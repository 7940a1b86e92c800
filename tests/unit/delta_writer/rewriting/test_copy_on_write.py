"""A table that takes no deletion vectors: touched files are written again, and any reader can read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer.rewriting import copy_on_write, rewrite
from dblog_core.delta_writer.rewriting.purge_files import purge_file
from dblog_core.delta_writer.upserting.upsert import upsert
from tests.unit.delta_writer.tables import (
    APP,
    OFFSET,
    Table,
    commit_of,
    fill_table,
    metadata,
    newest,
    row,
    schema_string,
    write_commit,
)


@pytest.fixture
def copied(tmp_path: Path) -> Table:
    return Table.create_at(tmp_path, vectors=False)


def added(table: Table, version: int) -> list[dict[str, object]]:
    return [action["add"] for action in commit_of(table.path, version) if "add" in action]


def test_readers_without_deletion_vectors_read_the_table(copied: Table) -> None:
    writer = fill_table(copied)
    copied.merge(writer, [row(3, "new", offset=2)], [row(70)])
    rows = DeltaTable(str(copied.path)).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda each: each["id"]) == sorted(copied.rows.values(), key=lambda each: each["id"])


def test_files_that_no_change_touches_stay(copied: Table) -> None:
    writer = fill_table(copied)
    before = set(writer.snapshot.files)
    copied.merge(writer, [row(200, offset=2)], [row(3)])
    assert len(before & set(writer.snapshot.files)) == 1
    copied.check()


def test_small_files_become_one_and_large_ones_stay_themselves(copied: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = fill_table(copied)
    copied.merge(writer, [row(key, "one file", offset=2) for key in (3, 70)])
    assert len(added(copied, newest(copied.path))) == 2, "the new rows, and what is left of two files"
    copied.check()
    monkeypatch.setattr(copy_on_write, "_SMALL", 1)
    copied.merge(writer, [row(key, "two files", offset=3) for key in (3, 71)])
    assert len(added(copied, newest(copied.path))) == 3
    copied.check()


def test_small_files_become_as_many_as_their_size_asks_for(copied: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = copied.writer()
    for first in range(0, 100, 25):
        copied.merge(writer, [row(key, offset=1) for key in range(first, first + 25)])
    size = max(live.size for live in writer.snapshot.files.values())
    monkeypatch.setattr(copy_on_write, "_TOGETHER", 2 * size + 1)
    copied.merge(writer, [row(key, "new", offset=2) for key in (3, 30, 60, 90)])
    assert len(added(copied, newest(copied.path))) == 3, "two of two files each, and the new rows"
    copied.check()


def test_keys_that_memory_has_no_room_for_are_read_from_the_copy(
    copied: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog_core.delta_writer.data_file.KEY_BYTES", 1)
    writer = fill_table(copied)
    for offset in range(2, 6):
        copied.merge(writer, [row(key, f"round {offset}", offset=offset) for key in (3, 55)], [row(offset * 10)])
        copied.check()


def test_what_is_left_of_a_large_file_becomes_several(copied: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblog_core.delta_writer.stored_rows._ROWS_AT_ONCE", 16)
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 1)
    monkeypatch.setattr(rewrite, "LARGEST_FILE", 1)
    writer = fill_table(copied)
    before = len(writer.snapshot.files)
    copied.merge(writer, [row(3, "new", offset=2)])
    assert len(added(copied, newest(copied.path))) > before
    copied.check()
    copied.merge(writer, [row(3, "newer", offset=3)], [row(4), row(70)])
    copied.check()


def test_vectors_of_before_stay_until_their_file_is_written_again(copied: Table) -> None:
    """Somebody switches them off, and on again."""
    table = Table.create_at(copied.lake / "switched")
    writer = fill_table(table)
    table.merge(writer, [row(3, "new", offset=2)], [row(70)])
    off = metadata(schema_string(table.fields), **{"delta.enableDeletionVectors": "false"})
    write_commit(table.path, 4, off)
    table.merge(writer, [row(4, "new", offset=5)])
    assert sum("deletionVector" in live.add for live in writer.snapshot.files.values()) == 1
    assert table.read() == table.model()
    assert purge_file(writer)
    assert not any("deletionVector" in live.add for live in writer.snapshot.files.values())
    assert table.read() == table.model()
    write_commit(table.path, newest(table.path) + 1, metadata(schema_string(table.fields)))
    table.merge(writer, [row(5, "new", offset=6)])
    assert sum("deletionVector" in live.add for live in writer.snapshot.files.values()) == 1
    assert table.read() == table.model()


def test_a_protocol_from_before_features_is_written(copied: Table) -> None:
    write_commit(copied.path, 1, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
    writer = copied.writer()
    copied.merge(writer, [row(key, offset=1) for key in range(20)])
    copied.merge(writer, [row(3, "new", offset=2)], [row(7)])
    copied.check()


def test_rows_keep_their_offsets_in_copies(copied: Table) -> None:
    writer = fill_table(copied)
    copied.merge(writer, [row(3, "newer", offset=50)])
    copied.merge(writer, [row(4, "beside it", offset=60)])
    done = upsert(writer, copied.changes([row(3, "dump", offset=20)], dump=True), APP, 5)
    assert done.older == 1
    assert next(each[OFFSET] for each in copied.read("id = 3")) == 50
