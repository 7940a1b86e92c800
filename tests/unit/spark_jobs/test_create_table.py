"""A table that is made without Spark is one to every reader, and is made once."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.delta_tables.column_types import lake_shape
from spark_jobs.delta_tables.create_table import create_table
from spark_jobs.merging.mark_and_append import OpenTables, has_rows_upto
from tests.spark.segments import table
from tests.unit.delta_writer.tables import Table, commit_of, newest
from tests.unit.spark_jobs.test_mark_and_append import folded_row, write
from tests.unit.spark_jobs.world_lake import SHAPE, Lake

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


def test_a_table_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    place = Table(tmp_path).location()
    assert create_table(place, lake_shape(EVERY), PROPERTIES)
    before = commit_of(tmp_path / "table", 0)
    assert not create_table(place, lake_shape(SHAPE), {})
    assert commit_of(tmp_path / "table", 0) == before and newest(tmp_path / "table") == 0


def test_a_table_has_rows_up_to_the_lowest_offset_of_its_files(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("offsets"))
    assert not has_rows_upto(lake.open(), 10**12), "it is empty"
    write(lake, folded_row("a", 1, offset=50), folded_row("b", 1, offset=70))
    write(lake, folded_row("c", 1, offset=60))
    assert not has_rows_upto(lake.open(), 49)
    assert has_rows_upto(lake.open(), 50)
