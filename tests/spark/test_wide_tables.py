"""Tables of more columns than Delta keeps statistics of: those of the key and of the offset are always there."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable

from dblog_core.lake_engine.merging import deleted_rows
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableSchema
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

COLUMNS = {f"c{number}": pa.int32() for number in range(40)}
STATISTICS = "delta.dataSkippingStatsColumns"


def wide(name: str = "wide", **more: pa.DataType) -> TableSchema:
    """Its key stands behind forty other columns."""
    return table(name, key=("id", "raw"), **{**COLUMNS, "raw": pa.binary(), "id": pa.int64(), **more})


def row(number: int, value: int, **more: Any) -> Row:
    return {**dict.fromkeys(COLUMNS, value), "raw": b"k", "id": number, **more}


def properties(lake: TestLake, schema: TableSchema) -> dict[str, str]:
    detail = DeltaTable.forPath(lake.spark, str(lake.table(schema))).detail()
    return dict(detail.select("properties").collect()[0][0])


def bounded(lake: TestLake, schema: TableSchema) -> set[str]:
    """The columns of which the newest file has a lowest value."""
    version = log.version(lake.table(schema))
    data = (lake.table(schema) / "_delta_log" / f"{version:020d}.json").read() or b""
    added = [action["add"] for action in map(json.loads, data.splitlines()) if "add" in action]
    return set(json.loads(added[-1]["stats"])["minValues"])


def test_the_key_and_the_offset_have_statistics_wherever_they_stand(lake: TestLake) -> None:
    schema = wide()
    for number in range(3):
        lake.build.create(schema, row(number, number))
        lake.build.seal()
        lake.merge_well()
        assert bounded(lake, schema) >= {"id", "_dblog_offset", "c0", "c31"}
        assert "c32" not in bounded(lake, schema), "only what is needed costs something"
    lake.build.update(schema, row(1, 7))
    lake.build.delete(schema, row(2, 2))
    lake.build.seal()
    lake.merge_well()
    assert [(each["id"], each["c39"]) for each in lake.rows(schema)] == [(0, 0), (1, 7)]


def test_a_new_table_names_the_columns_with_statistics(lake: TestLake) -> None:
    schema = wide(**{"a `tick`, and a comma": pa.int32(), "a b": pa.string()})
    LakeTable(lake.table(schema), schema, app="made").prepare()
    named = properties(lake, schema)[STATISTICS].split(",")
    assert named == [*(f"`c{number}`" for number in range(32)), "`id`", "`_dblog_offset`"]


def test_a_table_from_before_is_given_them_by_its_next_merge(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = wide()
    with monkeypatch.context() as patch:
        patch.setattr("dblog_core.lake_engine.merging.lake_table.missing_statistics", lambda *_: {})
        lake.build.create(schema, row(1, 1))
        lake.build.seal()
        lake.merge_well()
        assert STATISTICS not in properties(lake, schema) and "id" not in bounded(lake, schema)
    lake.build.create(schema, row(2, 2))
    lake.build.seal()
    lake.merge_well()
    assert bounded(lake, schema) >= {"id", "_dblog_offset"}
    assert [each["id"] for each in lake.rows(schema)] == [1, 2]


def test_columns_that_somebody_has_named_stay(lake: TestLake) -> None:
    schema = wide()
    lake.build.create(schema, row(1, 1))
    lake.build.seal()
    lake.merge_well()
    lake.spark.sql(f"ALTER TABLE delta.`{lake.table(schema)}` SET TBLPROPERTIES ('{STATISTICS}' = 'c5')")
    lake.build.create(schema, row(2, 2))
    lake.build.seal()
    lake.merge_well()
    assert properties(lake, schema)[STATISTICS] == "c5" and bounded(lake, schema) == {"c5"}


def test_a_table_grows_wide_and_begins_anew(lake: TestLake) -> None:
    narrow = table("grows", id=pa.int64(), v=pa.int32())
    lake.build.create(narrow, {"id": 1, "v": 1})
    lake.build.seal()
    lake.merge_well()
    assert STATISTICS not in properties(lake, narrow)
    grown = table("grows", id=pa.int64(), **COLUMNS, v=pa.int32())
    lake.build.schema(grown)
    lake.build.create(grown, {"id": 2, "v": 2, **dict.fromkeys(COLUMNS, 2)})
    lake.build.seal()
    lake.merge_well()
    assert bounded(lake, grown) >= {"id", "_dblog_offset", "c30"}
    path = lake.table(grown)
    for number, shape in enumerate((narrow, grown, narrow), 1):
        made = LakeTable(path, shape, app="anew")
        made.replace([], number)
        names = lake.spark.read.format("delta").load(str(path)).columns
        assert names[: len(shape.columns)] == [c.name for c in shape.columns]
        assert (STATISTICS in properties(lake, shape)) == (shape is grown) and made.is_settled()


@pytest.mark.parametrize("drop", [True, False])
def test_columns_that_are_renamed_or_dropped_leave_the_list(lake: TestLake, drop: bool) -> None:
    schema = wide()
    lake.drop_columns = drop
    lake.build.create(schema, row(1, 1))
    lake.build.seal()
    lake.merge_well()
    renamed = table("wide", key=("id", "raw"), **{f"d{n}" if n else "first": pa.int32() for n in range(40)},
                    raw=pa.binary(), id=pa.int64())  # fmt: skip
    lake.build.schema(renamed)
    lake.build.create(renamed, {**{c.name: 2 for c in renamed.columns}, "raw": b"k", "id": 2})
    lake.build.seal()
    lake.merge_well()
    assert [each["id"] for each in lake.rows(renamed)] == [1, 2]
    lake.build.create(renamed, {**{c.name: 3 for c in renamed.columns}, "raw": b"k", "id": 3})
    lake.build.seal()
    lake.merge_well()
    assert bounded(lake, renamed) >= {"id", "_dblog_offset"}


def test_the_end_of_a_dump_looks_for_no_rows_that_cannot_be_there(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    read = deleted_rows._read_seen_keys

    def spy(*arguments: Any, **options: Any) -> Any:
        looked.append("looked")
        return read(*arguments, **options)

    monkeypatch.setattr(deleted_rows, "_read_seen_keys", spy)
    schema = wide()
    lake.build.create(schema, row(1, 0))
    since = lake.build.offset
    lake.build.chunk(schema, [row(1, 1), row(2, 1)])
    lake.build.finished(schema, "d1", since=since, since_segment=1)
    lake.build.seal()
    lake.merge_well()
    assert not looked and [each["id"] for each in lake.rows(schema)] == [1, 2]
