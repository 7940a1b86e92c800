"""A lake that keeps its columns takes the values that fit them without Spark, and stops at any other by its offset."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import history_location, read_status
from dblog_core.lake_engine.events import fold, staged_events
from dblog_core.staging import Staging
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table
from tests.unit.lake_engine.test_history_without_spark import read_rows

NARROW = table("t", id=pa.int64(), n=pa.int32(), v=pa.string(), big=pa.string())
WIDE = table("t", id=pa.int64(), n=pa.int64(), v=pa.string(), big=pa.string())
FAR = 2**40


@pytest.fixture(params=[False, True], ids=["", "history"])
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> TestLake:
    """Its table has two rows of the narrow shape, and all that follows is staged in the wide one."""
    lake = TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    lake.changes = "ignore"
    lake.history = request.param
    for number in (1, 2):
        lake.build.create(NARROW, row(number, number))
    lake.build.seal()
    lake.merge_well()
    lake.build.schema(WIDE)
    return lake


@pytest.fixture(params=["at once", "in parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in parts":
        monkeypatch.setattr(staged_events, "is_small", lambda work: False)
        monkeypatch.setattr(fold, "PART_BYTES", 1)
    return str(request.param)


def row(number: int, n: int | None, big: str | None = "large") -> Row:
    return {"id": number, "n": n, "v": f"{n}", "big": big}


def numbers(lake: TestLake) -> dict[int, int | None]:
    return {r["id"]: r["n"] for r in lake.rust_rows(NARROW)}


def error_of(lake: TestLake) -> str:
    status = read_status(lake.location)
    assert status is not None
    return str(status.tables["shop.t"].error)


@pytest.mark.usefixtures("way")
def test_values_that_fit_are_written_and_the_history_tells_them(lake: TestLake) -> None:
    build = lake.build
    build.update(WIDE, row(1, 7))
    build.update(WIDE, row(2, -(2**31), None), unchanged=["big"])
    build.create(WIDE, row(3, None))
    build.chunk(WIDE, [row(3, None), row(4, 2**31 - 1)])
    build.seal()
    lake.merge_well()
    assert numbers(lake) == {1: 7, 2: -(2**31), 3: None, 4: 2**31 - 1}
    assert {r["big"] for r in lake.rust_rows(NARROW)} == {"large"}
    if lake.history:
        place = history_location(lake.location, NARROW.table).local
        assert place is not None
        assert [(r["_dblog_op"], r["n"]) for r in read_rows(place)[2:]] == [
            ("u", 7),
            ("u", -(2**31)),
            ("c", None),
            ("r", 2**31 - 1),
        ]


@pytest.mark.parametrize("by", ["line", "chunk", "line that leaves a column out"])
@pytest.mark.usefixtures("way")
def test_a_value_that_does_not_fit_stops_the_table_and_is_named(lake: TestLake, by: str) -> None:
    build = lake.build
    build.update(WIDE, row(1, 7))
    if by == "chunk":
        at = build.chunk(WIDE, [row(4, 1), row(5, FAR), row(6, 1)]) + 1
    else:
        left_out = by != "line"
        at = build.update(WIDE, row(2, FAR, None if left_out else "b"), unchanged=["big"] if left_out else None)
    build.update(WIDE, row(2, 8))
    build.seal()
    lake.merge()
    assert error_of(lake) == (
        f"shop.t: column n: the value at offset {at} is bigint, and fits no int, which the lake has\n"
        "  fix: run `dblog schema accept shop.t`: the lake takes the new shape"
    )
    assert numbers(lake) == {1: 1, 2: 2}


@pytest.mark.usefixtures("way")
def test_values_that_go_nowhere_need_not_fit(lake: TestLake) -> None:
    """Of images before a change, and of rows that a chunk has evicted."""
    build = lake.build
    build.line(WIDE, "u", before=row(1, FAR), after=row(1, 7))
    build.chunk(WIDE, [row(5, FAR), row(6, 6)], evicted=[0])
    build.seal()
    lake.merge_well()
    assert numbers(lake) == {1: 7, 2: 2, 6: 6}


@pytest.mark.usefixtures("way")
def test_values_before_a_truncate_need_fit_the_history_alone(lake: TestLake) -> None:
    build = lake.build
    at = build.update(WIDE, row(1, FAR))
    build.chunk(WIDE, [row(5, FAR)])
    build.truncate(WIDE)
    build.create(WIDE, row(6, 6))
    build.seal()
    lake.merge()
    if lake.history:
        assert error_of(lake).startswith(f"shop.t: column n: the value at offset {at + 1} is bigint"), "the chunk's row"
    else:
        assert numbers(lake) == {6: 6}
