"""A table that is made without Spark is one to every reader, and is made once."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.delta_writer.append import AppendedTable
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.tables.column_types import lake_shape
from dblog_core.lake_engine.tables.create_table import create_table
from dblog_core.model.schema import TableSchema
from tests.duckdb_reader import read_delta
from tests.spark.segments import table
from tests.unit.delta_writer.tables import Table, commit_of, newest
from tests.unit.lake_engine.world_lake import SHAPE

PROPERTIES = {"delta.enableDeletionVectors": "true", "dblog.key": '["id"]'}
EVERY = table(
    "every",
    id=pa.int64(),
    d=pa.decimal128(38, 10),
    day=pa.date32(),
    at=pa.timestamp("us"),
    since=pa.timestamp("us", tz="UTC"),
    raw=pa.binary(),
    flag=pa.bool_(),
    f=pa.float32(),
    **{"großer name": pa.int8()},
)


def test_readers_see_the_columns_and_the_properties(tmp_path: Path) -> None:
    place = Table(tmp_path).location()
    assert create_table(place, lake_shape(EVERY), PROPERTIES)
    opened = DeltaTable(str(tmp_path / "table"))
    names = [field.name for field in opened.schema().fields]
    assert names == [f.name for f in lake_shape(EVERY)]
    assert opened.metadata().configuration == PROPERTIES
    shape = OpenTables().table(place, EVERY, lambda: None).refresh()
    assert [column.type for column in shape][: len(EVERY.columns)] == [c.type for c in EVERY.columns]


PLAIN = table("plain", id=pa.int64(), v=pa.string())
MAPPED = table("mapped", **{"id": pa.int64(), "a b": pa.string()})


@pytest.mark.parametrize(
    ("schema", "properties", "version", "features"),
    [
        (PLAIN, {}, 1, set()),
        (PLAIN, {"delta.enableDeletionVectors": "false", "delta.appendOnly": "true"}, 1, set()),
        (PLAIN, {"delta.enableDeletionVectors": "true"}, 3, {"deletionVectors"}),
        (MAPPED, {"delta.columnMapping.mode": "name"}, 2, {"columnMapping"}),
        (EVERY, {"delta.columnMapping.mode": "name"}, 3, {"columnMapping", "timestampNtz"}),
    ],
)
def test_a_table_has_no_feature_that_it_does_not_need(
    tmp_path: Path, schema: TableSchema, properties: dict[str, str], version: int, features: set[str]
) -> None:
    place = Table(tmp_path).location()
    assert create_table(place, lake_shape(schema), properties)
    (protocol,) = (action["protocol"] for action in commit_of(tmp_path / "table", 0) if "protocol" in action)
    assert protocol["minReaderVersion"] == version
    assert set(protocol.get("readerFeatures", ())) == (features if version == 3 else set())
    if features:
        assert set(protocol["writerFeatures"]) == {*features, "appendOnly", "invariants"}
    else:
        assert protocol == {"minReaderVersion": 1, "minWriterVersion": 2}
    opened = AppendedTable(place, order="_dblog_offset", mark="dblog")
    values = {"id": 1, "_dblog_offset": 7}
    row = pa.table({f.name: pa.array([values.get(f.name)], f.type) for f in opened.refresh()})
    opened.append(row, "app", 7)
    read = pa.table(QueryBuilder().register("t", DeltaTable(str(tmp_path / "table"))).execute("SELECT * FROM t"))
    assert read.num_rows == 1 and read.column_names == [f.name for f in lake_shape(schema)]
    assert read_delta(tmp_path / "table").column_names == read.column_names
    if version < 3:  # which the simplest readers know
        assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 1


def test_a_table_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    place = Table(tmp_path).location()
    assert create_table(place, lake_shape(EVERY), PROPERTIES)
    before = commit_of(tmp_path / "table", 0)
    assert not create_table(place, lake_shape(SHAPE), {})
    assert commit_of(tmp_path / "table", 0) == before and newest(tmp_path / "table") == 0


def test_a_table_that_maps_its_columns_leaves_those_of_other_tables_alone(tmp_path: Path) -> None:
    """The columns of provenance are the same objects in the shape of every table."""
    before = orjson.dumps(lake_shape(PLAIN).json_value()).decode()
    assert create_table(Table(tmp_path / "mapped").location(), lake_shape(MAPPED), {"delta.columnMapping.mode": "name"})
    assert orjson.dumps(lake_shape(PLAIN).json_value()).decode() == before and "columnMapping" not in before
