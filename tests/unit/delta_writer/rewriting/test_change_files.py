"""The change data feed of a table has exactly what changes did, also where files are written again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer.rewriting import change_files, copy_on_write
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.rewriting.update_rows import update_older, update_rows
from dblog_core.delta_writer.upserting.upsert import remove_rows, upsert
from tests.unit.delta_writer.rivals import RIVALS
from tests.unit.delta_writer.tables import (
    APP,
    OFFSET,
    Row,
    Table,
    commit_of,
    metadata,
    newest,
    protocol,
    row,
    schema_string,
    write_commit,
)

NAMES = ("id", "note", OFFSET)


def open_feed(table: Table, **more: str) -> Table:
    conf = {"delta.enableDeletionVectors": str(table.vectors).lower(), "delta.enableChangeDataFeed": "true", **more}
    about = metadata(schema_string(table.fields, mapped=table.mapped), **conf)
    about["metaData"]["partitionColumns"] = list(table.partitions)
    reader = ["columnMapping"] if table.mapped else []
    write_commit(table.path, 1, protocol("changeDataFeed", reader=reader, vectors=table.vectors), about)
    return table


@pytest.fixture
def copied(tmp_path: Path) -> Table:
    return open_feed(Table.create_at(tmp_path, vectors=False))


def read_feed(table: Table, version: int) -> Counter[tuple[Any, ...]]:
    """The changes of one version, as delta-rs reads them; those of a table with a column mapping by their files."""
    if table.mapped:
        paths = [table.path / action["cdc"]["path"] for action in commit_of(table.path, version) if "cdc" in action]
        names = {f"col-{i}": name for i, name in enumerate(table.fields)}
        feed = pa.concat_tables(
            [pq.read_table(path).rename_columns({"_change_type": "_change_type", **names}) for path in paths]
        )
    else:
        feed = pa.table(DeltaTable(str(table.path)).load_cdf(starting_version=version, ending_version=version))
    columns = (feed[name].to_pylist() for name in ("_change_type", *NAMES))
    return Counter(zip(*columns, strict=True))


def images(kind: str, *rows: Row) -> Counter[tuple[Any, ...]]:
    return Counter((kind, *(each[name] for name in NAMES)) for each in rows)


def updates(table: Table, *rows: Row) -> Counter[tuple[Any, ...]]:
    """`rows`: the new ones, before the model has them."""
    before = [table.rows[table.key(each)] for each in rows]
    return images("update_preimage", *before) + images("update_postimage", *rows)


def check_changed(table: Table, version: int, changes: Counter[tuple[Any, ...]]) -> None:
    assert read_feed(table, version) == changes
    table.check()


def names_changes(table: Table, version: int) -> bool:
    return any("cdc" in action for action in commit_of(table.path, version))


@pytest.mark.parametrize("form", ["plain", "mapped", "partitions"])
def test_updates_inserts_and_deletes_are_told_apart(tmp_path: Path, form: str) -> None:
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "99"}
    options: dict[str, Any] = {"mapped": form == "mapped", "partitions": ("note",) if form == "partitions" else ()}
    table = open_feed(Table.create_at(tmp_path, vectors=False, **options), **(mapping if form == "mapped" else {}))
    writer = table.writer()
    table.merge(writer, [row(key, "ab"[key % 2], offset=1) for key in range(40)])
    assert not names_changes(table, 2), "readers derive it from new files"
    new = [row(3, "a", offset=2), row(4, "a", offset=2)]
    changes = updates(table, *new) + images("delete", table.rows[(7,)]) + images("insert", row(100, "b", offset=2))
    table.merge(writer, [*new, row(100, "b", offset=2)], [row(7), row(500)])
    check_changed(table, 3, changes)
    assert join_files(writer) > 1
    assert not names_changes(table, newest(table.path))
    assert form == "mapped" or not read_feed(table, newest(table.path)), "no row has changed"


def test_a_file_that_goes_whole_is_in_the_feed_of_a_commit_that_copies_another(copied: Table) -> None:
    writer = copied.writer()
    copied.merge(writer, [row(key, offset=1) for key in range(3)])
    copied.merge(writer, [row(key, offset=2) for key in range(10, 20)])
    deleted = [copied.rows[(key,)] for key in (0, 1, 2, 11)]
    copied.merge(writer, [], [row(key) for key in (0, 1, 2, 11)])
    check_changed(copied, 4, images("delete", *deleted))


def test_rows_that_go_by_a_truncate_are_deletes_and_those_behind_it_inserts(copied: Table) -> None:
    writer = copied.writer()
    copied.merge(writer, [row(key, offset=key) for key in range(10)])
    old = [values for values in copied.rows.values() if values[OFFSET] < 5]
    for values in old:
        del copied.rows[copied.key(values)]
    upsert(writer, copied.changes([row(3, "again", offset=20), row(8, "new", offset=21)]), APP, 9, below=5)
    changes = images("delete", *old) + images("insert", row(3, "again", offset=20))
    changes += updates(copied, row(8, "new", offset=21))
    copied.expect([row(3, "again", offset=20), row(8, "new", offset=21)])
    check_changed(copied, 3, changes)
    deleted = copied.rows.pop((5,))
    assert remove_rows(writer, APP, 10, below=6) is not None
    check_changed(copied, 4, images("delete", deleted))


def test_many_changes_come_in_several_files(copied: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_files, "_FILE_BYTES", 100)
    monkeypatch.setattr("dblog_core.delta_writer.stored_rows._ROWS_AT_ONCE", 4)
    monkeypatch.setattr(copy_on_write, "_SMALL", 1)
    writer = copied.writer()
    for first in (0, 20):
        copied.merge(writer, [row(key, offset=1) for key in range(first, first + 20)])
    new = [row(key, "new", offset=2) for key in range(0, 40, 3)]
    changes = updates(copied, *new) + images("insert", row(99, offset=2))
    copied.merge(writer, [*new, row(99, offset=2)])
    check_changed(copied, 4, changes)
    assert sum("cdc" in action for action in commit_of(copied.path, 4)) > 5


@pytest.mark.parametrize("vectors", [True, False])
def test_rows_that_get_other_values_are_updates(tmp_path: Path, vectors: bool) -> None:
    table = open_feed(Table.create_at(tmp_path, vectors=vectors))
    writer = table.writer()
    table.merge(writer, [row(key, offset=key) for key in range(20)])
    table.merge(writer, [row(1, "newer", offset=30)], [row(2)])
    new = [{**values, "note": "filled"} for values in table.rows.values() if values[OFFSET] < 9]
    changes = updates(table, *new)
    update_rows(table.writer(), update_older(OFFSET, 9, {"note": pa.scalar("filled")}), "app", 9)
    table.expect(new)
    check_changed(table, newest(table.path), changes)


@pytest.mark.parametrize("name", RIVALS)
def test_another_program_that_is_faster_leaves_the_feed_exact(copied: Table, name: str) -> None:
    writer = copied.writer()
    copied.merge(writer, [row(key, offset=1) for key in range(180)])
    pending = [RIVALS[name]]

    def check() -> None:
        if pending:
            pending.pop()(copied)

    writer.check = check
    puts = [row(key, "new", offset=5) for key in (3, 500, 10_000)]
    deletes = [row(key) for key in (4, 8, 12)]
    copied.merges += 1
    upsert(writer, copied.changes(puts, deletes), APP, copied.merges)
    changed = [each for each in puts if copied.key(each) in copied.rows]
    deleted = [copied.rows[copied.key(each)] for each in deletes if copied.key(each) in copied.rows]
    changes = updates(copied, *changed) + images("delete", *deleted)
    changes += images("insert", *(each for each in puts if each not in changed))
    copied.expect(puts, deletes)
    assert not pending and copied.read() == copied.model()
    feed = read_feed(copied, newest(copied.path))
    assert feed == changes and np.all([count == 1 for count in feed.values()])
