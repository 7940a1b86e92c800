"""Keys, names and types of a table's columns, where a change is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.errors import LakeError
from tests.unit.delta_writer.tables import (
    APP,
    FIELDS,
    OFFSET,
    Row,
    Table,
    commit_of,
    fill_table,
    row,
    write_commit,
)


class TestKeys:
    """Keys that are not one integer are found by their hash."""

    def test_text_decimals_and_several_columns(self, tmp_path: Path) -> None:
        kinds = {"shop": "string", "number": "decimal(20,4)", "day": "date", "tag": "binary"}
        import datetime as dt
        from decimal import Decimal

        fields = {**kinds, "note": "string", OFFSET: "long"}
        table = Table.create_at(tmp_path, fields=fields, keys=tuple(kinds))

        def one(i: int, note: str) -> Row:
            day = dt.date(1970, 1, 1) + dt.timedelta(days=i % 5 - 2)
            shop = ["", "a", "ab", "a" * 30, "ä€😀"][i % 5]
            number = (Decimal(i) / 4 - 100).quantize(Decimal("0.0001"))
            return {
                "shop": shop,
                "number": number,
                "day": day,
                "tag": bytes([i % 3] * (i % 4)),
                "note": note,
                OFFSET: 1,
            }

        writer = table.writer()
        table.merge(writer, [one(i, "first") for i in range(500)])
        table.merge(writer, [one(i, "second") for i in range(0, 600, 7)], [one(i, "") for i in range(1, 500, 7)])
        table.check()
        table.merge(table.writer(), [one(i, "third") for i in range(0, 600, 5)])
        table.check()

    def test_a_key_without_a_value_is_refused(self, table: Table) -> None:
        writer = fill_table(table)
        changes = table.changes([{"id": None, "note": "x", OFFSET: 1, "amount": None}])
        with pytest.raises(LakeError, match="no value in id"):
            upsert(writer, changes, APP, 3)

    def test_two_changes_of_a_key_are_a_defect(self, table: Table) -> None:
        writer = fill_table(table)
        with pytest.raises(LakeError, match="two changes"):
            upsert(writer, table.changes([row(1, "a"), row(1, "b")]), APP, 3)

    def test_rows_of_others_without_a_key_stay(self, table: Table) -> None:
        write_deltalake(str(table.path), table.arrow([{"id": None, "note": "foreign"}]), mode="append")
        writer = fill_table(table)
        table.expect([{"id": None, "note": "foreign"}])
        table.merge(writer, [row(0, "new", offset=4)])
        table.check()


def test_names_are_the_tables_and_files_have_the_physical_ones(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path, mapped=True)
    writer = fill_table(table)
    table.merge(writer, [row(3, "new", offset=2)], [row(70)])
    table.check()
    added = [a["add"] for a in commit_of(table.path, 3) if "add" in a]
    new = next(a for a in added if "deletionVector" not in a)
    assert set(json.loads(new["stats"])["minValues"]) == {"col-0", "col-1", "col-3"}
    file_schema = pq.read_schema(table.path / new["path"])
    assert file_schema.names == ["col-0", "col-1", "col-2", "col-3"]
    assert [file_schema.field(i).metadata[b"PARQUET:field_id"] for i in range(4)] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "from disk"])
def test_a_name_that_becomes_that_of_another_column_is_another_key(tmp_path: Path, saved: bool) -> None:
    """Mutant: stale index believed."""
    table = Table.create_at(tmp_path, mapped=True, fields={**FIELDS, "other": "long"})
    writer = table.writer(index=tmp_path / "index")
    table.merge(writer, [row(i, offset=1, other=99 - i) for i in range(10)])
    writer.save()
    changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
    text = changed["metaData"]["schemaString"]
    swapped = text.replace('"id"', '"was"').replace('"other"', '"id"').replace('"was"', '"other"')
    changed["metaData"]["schemaString"] = swapped
    write_commit(table.path, 2, changed)
    table.rows = {
        (row_before["other"],): {**row_before, "id": row_before["other"], "other": row_before["id"]}
        for row_before in table.rows.values()
    }
    writer = table.writer(index=tmp_path / "index") if saved else writer
    table.merges = 2
    done = table.merge(writer, [row(95, "changed", offset=2)], [row(99), row(5)])
    assert (done.updated, done.deleted, done.absent) == (1, 1, 1)
    table.check()


def test_a_column_that_takes_no_null_gets_none(table: Table) -> None:
    writer = fill_table(table)
    changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
    shape = json.loads(changed["metaData"]["schemaString"])
    shape["fields"][1]["nullable"] = False
    changed["metaData"]["schemaString"] = json.dumps(shape)
    write_commit(table.path, 3, changed)
    with pytest.raises(LakeError, match="column note takes no NULL"):
        upsert(writer, table.changes([{**row(3, offset=5), "note": None}]), APP, 3)
    table.merges = 3
    table.merge(writer, [], [row(3)])  # a deleted row needs no value
    table.check()


@pytest.mark.parametrize(("codec", "name"), [("snappy", "SNAPPY"), ("GZIP", "GZIP"), ("uncompressed", "UNCOMPRESSED")])
def test_the_table_says_how_files_are_compressed(table: Table, codec: str, name: str) -> None:
    writer = fill_table(table)
    changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
    changed["metaData"]["configuration"]["delta.parquet.compression.codec"] = codec
    write_commit(table.path, 3, changed)
    table.merges = 3
    table.merge(writer, [row(3, "new", offset=5)])
    new = next(a["add"]["path"] for a in commit_of(table.path, 4) if "add" in a and "deletionVector" not in a["add"])
    assert pq.ParquetFile(table.path / new).metadata.row_group(0).column(0).compression == name
    table.check()


def test_a_key_column_that_somebody_drops_stops_the_table(table: Table) -> None:
    writer = fill_table(table)
    changed = json.loads(json.dumps(next(a for a in commit_of(table.path, 0) if "metaData" in a)))
    shape = json.loads(changed["metaData"]["schemaString"])
    shape["fields"] = [f for f in shape["fields"] if f["name"] != "id"]
    changed["metaData"]["schemaString"] = json.dumps(shape)
    write_commit(table.path, 3, changed)
    with pytest.raises(LakeError, match="no longer has the column id"):
        upsert(writer, table.changes([row(3, offset=5)]), APP, 3)


def test_wrong_rows_are_told_by_their_columns(table: Table) -> None:
    writer = fill_table(table)
    changes = table.changes([row(3)])
    wrong = Changes(changes.rows.drop_columns(["note"]), changes.deleted, changes.guarded)
    with pytest.raises(LakeError, match="note"):
        upsert(writer, wrong, APP, 3)
    text = changes.rows.set_column(2, "amount", pa.array(["many"]))
    with pytest.raises(LakeError, match="amount"):
        upsert(writer, Changes(text, np.array([False]), np.array([False])), APP, 3)
    table.check()
