"""Lines of small segments are made events together, and are the same events."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.lake import merge_plan
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events import staged_events
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from tests.spark.segments import SegmentBuilder, table

FIRST = table("orders", id=pa.int64(), v=pa.string())
SECOND = table("orders", id=pa.int64(), w=pa.string())
THIRD = table("orders", id=pa.int64(), w=pa.string(), n=pa.int64())


@pytest.fixture
def build(tmp_path: Path) -> SegmentBuilder:
    """Nine segments of ten lines: three of each shape, and a rename of two names in the middle of the second three."""
    build = SegmentBuilder(Staging(str(tmp_path), source="shop"))

    def add(shape: TableSchema, name: str) -> None:
        for _ in range(10):
            number = build.offset + 1
            build.create(shape, {"id": number, name: f"{name} {number}"})
        build.seal()

    for _ in range(3):
        add(FIRST, "v")
    build.schema(SECOND, renamed={"w": "v"})
    for _ in range(3):
        add(SECOND, "w")
    build.schema(THIRD, filled={"n": 7})
    for _ in range(3):
        add(THIRD, "w")
    return build


def _work(build: SegmentBuilder) -> Work:
    manifests = build.staging.manifests(after=0, upto=build.segment)
    return merge_plan.plan_works(manifests, lambda name: 0)[str(FIRST.table)]


def _rows(parts: list[pa.Table]) -> list[tuple[object, ...]]:
    return [
        tuple(row[name] for name in ("offset", "k0", "v0", "v1", "v2")) for part in parts for row in part.to_pylist()
    ]


def test_lines_of_one_shape_come_together_with_what_each_shape_means(build: SegmentBuilder) -> None:
    parts = list(staged_events.read_events(build.staging, _work(build), THIRD))
    assert [len(part) for part in parts] == [30, 30, 30]
    rows = _rows(parts)
    assert [row[1] for row in rows] == [row[2] for row in rows] and all(a[0] < b[0] for a, b in pairwise(rows))
    names = ["v", "w", "w"]
    assert [row[3] for row in rows] == [f"{names[i // 30]} {row[1]}" for i, row in enumerate(rows)]
    assert [row[4] for row in rows] == [7] * 60 + [None] * 30


def test_no_more_comes_together_than_the_limit(build: SegmentBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _rows(list(staged_events.read_events(build.staging, _work(build), THIRD)))
    sizes = [batch.nbytes for file in _work(build).files for batch in build.staging.log_batches(file)]
    for limit, most in ((1, 10), (2 * max(sizes), 20)):
        monkeypatch.setattr(staged_events, "TOGETHER", limit)
        parts = list(staged_events.read_events(build.staging, _work(build), THIRD))
        assert max(len(part) for part in parts) == most and _rows(parts) == whole


def test_a_rename_without_another_shape_parts_the_lines(tmp_path: Path) -> None:
    """Two names are swapped: the table version is the same before and after."""
    build = SegmentBuilder(Staging(str(tmp_path), source="shop"))
    shape = table("orders", id=pa.int64(), a=pa.string(), b=pa.string())
    build.create(shape, {"id": 1, "a": "x", "b": "y"})
    build.seal()
    build.schema(shape, renamed={"a": "b", "b": "a"})
    build.create(shape, {"id": 2, "a": "x", "b": "y"})
    build.seal()
    parts = list(staged_events.read_events(build.staging, _work(build), shape))
    assert [(row["k0"], row["v1"], row["v2"]) for part in parts for row in part.to_pylist()] == [
        (1, "y", "x"),
        (2, "x", "y"),
    ]
