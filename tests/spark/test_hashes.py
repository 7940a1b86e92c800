"""Row hashes in Spark, and in Arrow: of the same rows, put through the real chunk path, those of the sources."""

from __future__ import annotations

import math
import struct
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import keys_of
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.wiring import open_source
from spark_jobs.delta_tables.column_types import quote, row_shape
from spark_jobs.verifying.row_hashes import row_hash
from tests.contract import every_type
from tests.fix_servers import Database
from tests.plain_hashes import row_hash as defined
from tests.spark.segments import table


def in_spark(spark: SparkSession, schema: TableSchema, file: str) -> list[int]:
    """The hashes of a file's rows, in its order."""
    rows = spark.read.schema(row_shape(schema)).parquet(file).coalesce(1)
    hashed = rows.select(row_hash(rows, schema, lambda name: F.col(quote(name))).alias(HASH))
    return [int(row[HASH]) for row in hashed.collect()]


def in_arrow(schema: TableSchema, file: str) -> list[int]:
    """The same without Spark."""
    rows = pq.read_table(file).combine_chunks()
    arrays = {c.name: pa.concat_arrays(rows[c.name].cast(c.type).chunks) for c in schema.columns}
    return [int(value) for value in hash_rows(arrays, schema)]


@pytest.mark.one_of(2)
def test_source_and_spark_hash_rows_of_every_type_alike(
    spark: SparkSession, database: Database, source_config: Config, tmp_path: Path
) -> None:
    every_type.make(database)
    source = open_source(source_config.source)
    source.prepare()
    with closing(source.open_reader()) as reader:
        schema = reader.schema(TableName(database.schema, "a"))
        chunk = reader.read(schema, after=None, upto=None, limit=1000)
        rows = reader.hashes(schema, after=None, upto=None, limit=1000).rows
    staging = Staging(str(tmp_path / "staging"), source="shop")
    file = staging.write_chunk("d", "c", chunk.rows)
    assert in_spark(spark, schema, staging.storage.url(file.path)) == rows.column(HASH).to_pylist()
    assert in_arrow(schema, staging.storage.url(file.path)) == rows.column(HASH).to_pylist()
    assert keys_of(rows, schema) == keys_of(chunk.rows, schema)
    assert rows.num_rows >= 4


FLOATS = table("t", key=("id",), id=pa.int64(), d=pa.float64(), f=pa.float32())


def test_floats_of_every_order_have_one_hash(spark: SparkSession, tmp_path: Path) -> None:
    """At the ends of the windows, where a logarithm would go wrong, and one step beside them."""
    ends = [2.0**n for n in range(-1074, 1024)]
    values = [v for end in ends for v in (math.nextafter(end, 0), end, math.nextafter(end, math.inf))]
    values += [v * -1.1 for v in ends] + [0.0, -0.0, math.nan, math.inf, -math.inf, math.pi, 1 / 3]
    small = [struct.unpack("<f", struct.pack("<f", v))[0] if abs(v) < 3e38 or v - v else -v for v in values]
    rows = [{"id": n, "d": d, "f": f} for n, (d, f) in enumerate(zip(values, small, strict=True))]
    float_table = pa.Table.from_pylist(rows, schema=FLOATS.arrow)
    pq.write_table(float_table, tmp_path / "floats.parquet")
    hashes_in_spark = in_spark(spark, FLOATS, str(tmp_path / "floats.parquet"))
    assert hashes_in_spark == [defined(FLOATS, row) for row in float_table.to_pylist()]
    assert in_arrow(FLOATS, str(tmp_path / "floats.parquet")) == hashes_in_spark


def test_a_session_that_prints_values_in_another_way_makes_no_hash(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, 1.0, 1.0)], ["id", "d", "f"])
    for name, other in (("spark.sql.ansi.enabled", "false"), ("spark.sql.session.timeZone", "Asia/Tokyo")):
        before = spark.conf.get(name)
        try:
            spark.conf.set(name, other)
            with pytest.raises(LakeError, match=name):
                row_hash(rows, FLOATS, F.col)
        finally:
            spark.conf.set(name, str(before))
    row_hash(rows, FLOATS, F.col)
