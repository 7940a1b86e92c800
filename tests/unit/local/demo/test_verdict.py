"""The demo's judge: it sees every kind of difference, and none where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from dblog_core.lake.lake_status import lake_at
from dblog_core.local.demo.verdict import compare_rows, read_lake
from tests.spark.segments import table

T = table(
    "t",
    key=("id", "b"),
    id=pa.int64(),
    b=pa.binary(),
    x=pa.float64(),
    n=pa.string(),
    d=pa.decimal128(14, 2),
    at=pa.timestamp("us", tz="UTC"),
)
ROWS: list[dict[str, Any]] = [
    {"id": i, "b": b"\xff\x00", "x": float("nan") if i else None, "n": None, "d": None, "at": i} for i in range(5)
]


def _rows(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=T.arrow)


def _lake(path: Path, rows: pa.Table) -> pa.Table | None:
    write_deltalake(str(path), rows.append_column("_more", pa.array(range(rows.num_rows))))
    return read_lake(lake_at(str(path)))


def test_the_same_rows_in_another_order_are_equal(tmp_path: Path) -> None:
    comparison = compare_rows(T, _rows(ROWS), _lake(tmp_path / "t", _rows(ROWS[::-1])))
    assert comparison.equal and comparison.rows == 5 and not comparison.examples


def test_every_difference_is_found_with_its_key(tmp_path: Path) -> None:
    lake = _lake(tmp_path / "t", _rows(ROWS))
    source = [ROWS[0] | {"x": 0.0}, ROWS[2] | {"x": 0.0}, ROWS[3] | {"x": None, "n": ""}, ROWS[4], ROWS[0] | {"id": 9}]
    comparison = compare_rows(T, _rows(source), lake)
    assert (comparison.rows, comparison.missing, comparison.extra, comparison.different) == (5, 1, 1, 3)
    assert sorted(comparison.examples, key=lambda example: str(example["key"])) == [
        {"key": [0, "/wA="], "kind": "different", "columns": ["x"]},
        {"key": [1, "/wA="], "kind": "extra"},
        {"key": [2, "/wA="], "kind": "different", "columns": ["x"]},
        {"key": [3, "/wA="], "kind": "different", "columns": ["x", "n"]},
        {"key": [9, "/wA="], "kind": "missing"},
    ]


def test_a_row_that_the_lake_has_twice_is_extra(tmp_path: Path) -> None:
    comparison = compare_rows(T, _rows(ROWS), _lake(tmp_path / "t", _rows([*ROWS, ROWS[3], ROWS[3]])))
    assert (comparison.missing, comparison.extra, comparison.different) == (0, 2, 0)


def test_a_table_or_column_that_the_lake_has_not_is_told(tmp_path: Path) -> None:
    assert read_lake(lake_at(str(tmp_path / "none"))) is None
    assert compare_rows(T, _rows(ROWS), None).missing == 5
    comparison = compare_rows(T, _rows(ROWS), _lake(tmp_path / "t", _rows(ROWS).drop_columns(["n"])))
    assert comparison.different == 5 and comparison.examples == [{"kind": "different", "columns": ["n"]}]
