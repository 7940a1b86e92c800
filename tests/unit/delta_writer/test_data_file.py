"""The Parquet files of the lake: how their columns are stored decides what a scan of them costs."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dblog_core.delta_writer.data_file import store_rows
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.shape import shape_of
from dblog_core.lake.lake_status import lake_at
from tests.unit.delta_writer.tables import metadata, schema_string

_ROWS = 50_000


def test_a_column_of_many_values_has_a_small_dictionary_and_one_of_few_values_has_one(tmp_path: Path) -> None:
    dice = random.Random(1)
    columns = {
        "id": pa.array(range(_ROWS), pa.int64()),
        "note": pa.array([dice.randbytes(20).hex() for _ in range(_ROWS)]),
        "city": pa.array([f"city {number % 100}" for number in range(_ROWS)]),
    }
    fields = schema_string({"id": "long", "note": "string", "city": "string"})
    shape = shape_of(metadata(fields)["metaData"], "t")
    files = TableFiles.at(lake_at(str(tmp_path)))
    ((file, _),) = store_rows(files, pa.table(columns), shape, {}, uuid.uuid4)
    group = pq.ParquetFile(tmp_path / file.name).metadata.row_group(0)
    stored = {group.column(i).path_in_schema: group.column(i) for i in range(len(columns))}
    sizes = {
        name: column.data_page_offset - column.dictionary_page_offset
        for name, column in stored.items()
        if column.has_dictionary_page
    }
    assert max(sizes.values()) < 80_000, "compressed, with the page's head"
    # Of its many values most stand as they are, which takes about their own bytes.
    assert stored["note"].total_uncompressed_size > 0.9 * _ROWS * 40
    assert "PLAIN" in stored["note"].encodings
    assert sizes["city"] < 2_000 and stored["city"].total_uncompressed_size < 2 * _ROWS
