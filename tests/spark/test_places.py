"""Two tables of the lake never share a place: whichever comes second stops alone, and says with whom."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import State
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.spark.test_whole import T, row, state

pytestmark = pytest.mark.one_of(4)


def test_a_table_whose_place_is_that_of_anothers_history_stops_alone(lake: TestLake) -> None:
    """Whichever of the two is there first stays; what two names of one place hold is told by the lake table itself."""
    lake.history = True
    build = lake.build
    history = table("t__history", id=pa.int64(), v=pa.string())
    build.create(history, row(1))
    build.create(T, row(1))
    build.seal()
    lake.merge()
    assert "the history of shop.t" in str(state(lake, "t__history").error) and state(lake).state is not State.STOPPED
    assert [history_row["v"] for history_row in lake.rows(history)] == ["a"]  # a line of the history of t
    lake.history = False
    build.create(history, row(2))
    build.seal()
    lake.merge()
    error = str(state(lake, "t__history").error)
    assert "another table's history" in error and "move that directory away" in error


def test_a_table_that_took_the_place_of_a_history_keeps_it(lake: TestLake) -> None:
    build = lake.build
    first = table("t__history", id=pa.int64(), v=pa.string())
    build.create(first, row(1))
    build.seal()
    lake.merge_well()
    lake.history = True
    build.create(first, row(2))
    build.create(T, row(1))
    build.seal()
    lake.merge()
    assert state(lake, "t__history").state is not State.STOPPED and len(lake.rows(first)) == 2
    assert "its place is that of another table" in str(state(lake).error)


def test_two_names_that_a_file_system_takes_for_one_are_told_apart(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = lake.build
    other = table("T", id=pa.int64(), v=pa.string())
    monkeypatch.setattr("dblog_core.lake.lake_status._file_name", str.lower)
    lake.history = True
    build.create(T, row(1))
    build.seal()
    lake.merge_well()
    build.create(other, row(2))
    build.create(T, row(3))
    build.seal()
    lake.merge()
    assert "its place is that of shop.t: the file system takes the two names for one" in str(state(lake, "T").error)
    assert [row["id"] for row in lake.rows(T)] == [1, 3]
