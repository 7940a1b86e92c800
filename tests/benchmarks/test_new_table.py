"""The first rows of a table: a dump merged beside Spark's own write of its files, and a whole merge from its start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_merge import SHAPE, add_lines
from tests.spark.lakes import TestLake
from tests.spark.segments import SegmentBuilder

SPARK = "Spark's read and write"
_CHUNK = 50_000
_SEGMENT = 200_000
_LINES = 100_000
_FIRST = 300_000
"""Rows of the log and rows of the dump that a first merge takes."""


def _rows(first: int, count: int) -> pa.RecordBatch:
    return make_rows(np.arange(first, first + count, dtype=np.int64))


def make_rows(numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows of these keys, in their order."""
    keys = pa.array(numbers)
    text = keys.cast(pa.string())
    hundredth = pa.array(numbers % 100).cast(pa.string())

    def join(*parts: pa.Array | str) -> pa.Array:
        return pc.binary_join_element_wise(*parts, "")

    values = {
        "id": keys,
        "customer_id": pa.array((numbers * 7919 % 1_000_003).astype(np.int32)),
        "amount": pa.array(numbers % 1_000_000).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        "name": join("name ", text),
        "email": join("user.", text),
        "city": join("city ", hundredth),
        "created": pa.array(numbers * 98_765 % 10**14).cast(pa.timestamp("us")),
        "updated": pa.array(numbers * 61_000_000 % 10**14).cast(pa.timestamp("us", tz="UTC")),
        "attrs": join('{"n": ', hundredth, "}"),
        "active": pa.array((numbers % 2).astype(np.int8)),
        "score": pa.array(numbers / 7),
        "note": join("leave it with the neighbours if nobody opens; order ", text),
    }
    return pa.RecordBatch.from_arrays([values[column.name] for column in SHAPE.columns], schema=SHAPE.arrow)


def _add_chunk(build: SegmentBuilder, rows: pa.RecordBatch) -> None:
    first = build.next(len(rows))
    file = build.staging.write_chunk("d1/0", f"{first}", rows)
    name = str(SHAPE.table)
    place = (first, (), f"p{first}", first * 1_000_000)
    chunk = ChunkRef(
        name, SHAPE.fingerprint, "d1", "d1/0", first, file.path, file.rows, file.bytes, file.checksum, *place
    )
    build._chunks.append(chunk)


def _stage(path: Path, *, dumped: int, logged: int = 0) -> Staging:
    """Rows of the log first, and then those of a dump, in segments."""
    staging = Staging(str(path), source="shop")
    build = SegmentBuilder(staging)
    build._know(SHAPE)
    for first in range(dumped, dumped + logged, _LINES):
        add_lines(build, SHAPE, "c", _rows(first, min(_LINES, dumped + logged - first)))
        build.seal()
    for segment in range(0, dumped, _SEGMENT):
        end = min(segment + _SEGMENT, dumped)
        for first in range(segment, end, _CHUNK):
            _add_chunk(build, _rows(first, min(_CHUNK, end - first)))
        build.seal()
    return staging


@pytest.fixture
def staged_dump(tmp_path: Path, scale: Scale) -> Iterator[Staging]:
    yield _stage(tmp_path / "staging", dumped=scale.lake_rows)
    shutil.rmtree(tmp_path)


@pytest.mark.timeout(3600)
def test_dump_into_a_new_table(
    spark: SparkSession, staged_dump: Staging, tmp_path: Path, scale: Scale, results: Results
) -> None:
    files = [staged_dump.storage.url(chunk.path) for manifest in staged_dump.manifests() for chunk in manifest.chunks]

    def merge(number: int) -> float:
        lake = TestLake(spark, staged_dump, tmp_path / f"lake{number}")
        began = time.monotonic()
        merged = lake.merge_well()
        seconds = time.monotonic() - began
        assert sum(table.inserted for each in merged for table in each.tables) == scale.lake_rows
        shutil.rmtree(lake.path)
        return seconds

    def write(number: int) -> float:
        path = tmp_path / f"plain{number}"
        began = time.monotonic()
        spark.read.parquet(*files).write.format("delta").save(str(path))
        seconds = time.monotonic() - began
        shutil.rmtree(path)
        return seconds

    series: dict[str, list[float]] = {OURS: [], SPARK: []}
    for number in range(-1, scale.rounds):  # round -1 warms both
        rates = {OURS: scale.lake_rows / merge(number), SPARK: scale.lake_rows / write(number)}
        if number >= 0:
            for who, rounds in series.items():
                rounds.append(rates[who])
    title = f"merge of {scale.lake_rows:,} dumped rows into a new table"
    results.add(Figure("new_table", "Lake", title, "rows/s", series, (Bar(0.5, SPARK),)))


CONFIG = """
[source]
name = "shop"
kind = "mysql"
host = "127.0.0.1"
user = "dblog"
password = "not asked"
database = "shop"
tables = ["shop.*"]
server_id = 7

[staging]
path = "{path}/staging"

[lake]
path = "{path}/lake"

[state]
url = "sqlite:///{path}/state.db"
"""


@pytest.mark.timeout(1800)
def test_first_merge_from_its_start(tmp_path: Path, scale: Scale, results: Results) -> None:
    _stage(tmp_path / "staging", dumped=_FIRST, logged=_FIRST)
    file = tmp_path / "shop.toml"
    file.write_text(CONFIG.format(path=tmp_path))
    rounds = []
    for _ in range(-1, scale.rounds):  # the first one has the files in no cache
        shutil.rmtree(tmp_path / "lake", ignore_errors=True)
        (tmp_path / "state.db").unlink(missing_ok=True)
        command = [Path(sys.executable).parent / "dblog", "--config", file, "merge", "--once"]
        began = time.monotonic()
        subprocess.run(command, check=True, env=os.environ, capture_output=True)
        rounds.append(time.monotonic() - began)
    title = (
        f"`dblog merge --once` of {_FIRST:,} rows of the log and {_FIRST:,} dumped ones, a new table, with its start"
    )
    results.add(Figure("first_merge", "Lake", title, "s", {OURS: rounds[1:]}, (Bar(12, at_most=True),)))
