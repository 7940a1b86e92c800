"""A merge with a change of shape, without Spark: wherever it dies, the next one ends with the same table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.staging import Staging
from tests.duckdb_reader import read_delta
from tests.spark.faults import Points, count_points, rounds
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import table

BEFORE = table("t", id=pa.int64(), a=pa.string(), b=pa.int64(), n=pa.int32(), gone=pa.string())
AFTER = table("t", key=("no",), no=pa.int64(), b=pa.string(), a=pa.int64(), n=pa.int64(), c=pa.int32())
KINDS = tuple(f"{when} {write}" for write in ("version", "new rows", "vectors") for when in ("before", "after"))
MOST_POINTS = 60


def start_lake(path: Path, *, vectors: bool) -> TestLake:
    """With four rows of the older shape, one of which was written again; changes of both shapes are staged."""
    lake = TestLake(None, Staging(str(path / "staging"), source="shop"), path / "lake")
    lake.vectors = vectors
    lake.drop_columns = True
    build = lake.build
    for key in (1, 2, 3, 4):
        build.create(BEFORE, old_row(key))
    build.seal()
    lake.merge_well()
    build.update(BEFORE, old_row(1, "again"))
    build.seal()
    lake.merge_well()
    build.update(BEFORE, old_row(2, "older"))
    build.schema(AFTER, renamed={"no": "id", "b": "a", "a": "b"}, filled={"c": 5})
    build.update(AFTER, new_row(3, "newer", n=2**40, c=6))
    build.delete(AFTER, {"no": 4})
    build.create(AFTER, new_row(5, c=None))
    build.seal()
    return lake


def old_row(key: int, a: str = "a") -> dict[str, Any]:
    return {"id": key, "a": a, "b": key, "n": 7, "gone": "x"}


def new_row(key: int, b: str = "a", *, n: int = 7, c: int | None = 5) -> dict[str, Any]:
    return {"no": key, "b": b, "a": key, "n": n, "c": c}


RIGHT = [new_row(1, "again"), new_row(2, "older"), new_row(3, "newer", n=2**40, c=6), new_row(5, c=None)]


def rows_of(lake: TestLake) -> list[dict[str, Any]]:
    rows = read_delta(Path(str(lake.table(AFTER)))).sort_by("no")
    assert [name for name in rows.column_names if not name.startswith("_dblog_")] == [c.name for c in AFTER.columns]
    return rows.select([c.name for c in AFTER.columns]).to_pylist()


def merge_until(lake: TestLake, at: int) -> str | None:
    """A merge that dies at that point; which one it was (None: there are fewer)."""
    points = Points(KINDS, at, lambda kind: points.die())
    with count_points(points):
        try:
            rounds(lake.merger(step=points.step))
        except Crash:
            assert points.happened is not None
    return points.happened


@pytest.mark.parametrize("vectors", [True, False])
def test_a_change_of_shape_that_dies_anywhere_ends_the_same(tmp_path: Path, vectors: bool) -> None:
    happened: list[str] = []
    for at in range(1, MOST_POINTS):
        lake = start_lake(tmp_path / str(at), vectors=vectors)
        point = merge_until(lake, at)
        lake.merge_well()
        assert rows_of(lake) == RIGHT, f"killed {point}, point {at}"
        assert not lake.dumps.asked
        if point is None:
            break
        happened.append(point)
    # The rename, the columns, the constant and the rows are a commit each.
    assert happened.count("before version") == happened.count("after version") == 4
