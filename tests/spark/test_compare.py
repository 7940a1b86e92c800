"""The judge itself: it sees every kind of difference, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dblog_core.lake import lake_at
from spark_jobs.compare import compare
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

T = table("t", key=("id", "b"), id=pa.int64(), b=pa.binary(), x=pa.float64(), n=pa.string())


def _source(path: Path, rows: list[Row]) -> list[Path]:
    pq.write_table(pa.Table.from_pylist(rows, schema=T.arrow), path)
    return [path]


def test_every_difference_is_found_with_its_key(lake: TestLake, tmp_path: Path) -> None:
    rows: list[Row] = [{"id": i, "b": b"\xff\x00", "x": float("nan") if i else None, "n": None} for i in range(5)]
    for row in rows:
        lake.build.create(T, row)
    lake.build.seal()
    lake.merge_well()
    path = lake.table(T)
    assert compare(lake.spark, T, _source(tmp_path / "a.parquet", rows), path).equal
    others = [rows[0] | {"x": 0.0}, *rows[2:], rows[0] | {"id": 9}]
    found = compare(lake.spark, T, _source(tmp_path / "b.parquet", others), path)
    assert (found.rows, found.missing, found.extra, found.different) == (5, 1, 1, 1)
    assert sorted(found.examples, key=lambda e: e["kind"]) == [
        {"key": [0, "/wA="], "kind": "different", "columns": ["x"]},
        {"key": [1, "/wA="], "kind": "extra"},
        {"key": [9, "/wA="], "kind": "missing"},
    ]
    assert compare(lake.spark, T, _source(tmp_path / "c.parquet", rows), lake_at(str(tmp_path / "none"))).missing == 5
