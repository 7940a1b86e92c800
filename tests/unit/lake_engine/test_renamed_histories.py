"""A history over renames: one merge of all changes tells what a merge of each segment does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import history_location
from dblog_core.lake_engine.events import key_buckets, staged_events
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from tests.duckdb_reader import read_delta
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, SegmentBuilder, table

FIRST = table("t", id=pa.int64(), x=pa.string(), y=pa.int32(), big=pa.string())
SECOND = table("t", id=pa.int64(), y=pa.string(), x=pa.int64(), big=pa.string())
THIRD = table("t", key=("no",), no=pa.int64(), big=pa.string(), doc=pa.string(), x=pa.int64(), c=pa.int32())


@pytest.fixture(params=["at once", "in parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the lines of a merge are made."""
    if request.param == "in parts":
        monkeypatch.setattr(staged_events, "is_small", lambda work: False)
        monkeypatch.setattr(key_buckets, "MOST_BUCKETS", 1)
        monkeypatch.setattr(key_buckets, "DISTRIBUTED_BYTES", 1)
        monkeypatch.setattr(key_buckets, "PORTION_BYTES", 1)
        monkeypatch.setattr(staged_events, "TOGETHER", 1)


def open_lake(path: Path, staging: Staging) -> TestLake:
    lake = TestLake(None, staging, path)
    lake.history = True
    return lake


def lines_of(lake: TestLake, schema: TableSchema) -> list[Row]:
    """By offset; of a deleted row without the names of what the log does not have: they are those of its time."""
    rows: list[Row] = read_delta(Path(str(history_location(lake.location, schema.table)))).to_pylist()
    unnamed = [{**row, "_dblog_unchanged": None} if row["_dblog_op"] == "d" else row for row in rows]
    return sorted(unnamed, key=lambda row: row["_dblog_offset"])


def stage(build: SegmentBuilder) -> Iterator[None]:
    """Segments with renames between: two names are swapped and one of them is widened, the key is renamed, a column
    takes the name of another one, which is renamed too, and one is added with a value: a history leaves that to a dump.
    """

    def first(key: int, x: str | None = "x", big: str | None = "big") -> Row:
        return {"id": key, "x": x, "y": key, "big": big}

    def second(key: int, y: str | None = "x", big: str | None = "big") -> Row:
        return {"id": key, "y": y, "x": key, "big": big}

    def third(key: int, big: str | None = "x", doc: str | None = "big", c: int | None = 5) -> Row:
        return {"no": key, "big": big, "doc": doc, "x": key, "c": c}

    build.chunk(FIRST, [first(key) for key in range(6)], dump="a")
    build.update(FIRST, first(1, "again", None), unchanged=["big"])
    build.seal()
    yield
    build.chunk(FIRST, [first(1, "again"), first(2, "changed")], dump="b")
    build.move(FIRST, {"id": 3}, first(13, "moved", None), unchanged=["big"])
    build.schema(SECOND, renamed={"y": "x", "x": "y"})
    build.update(SECOND, second(13, None, None), unchanged=["y", "big"])
    build.seal()
    yield
    build.chunk(SECOND, [second(2, "changed"), second(4, None)], dump="c")
    build.delete(SECOND, {"id": 5})
    build.schema(THIRD, renamed={"no": "id", "big": "y", "doc": "big"}, filled={"c": 5})
    build.update(THIRD, third(2, "later", None), unchanged=["doc"])
    build.move(THIRD, {"no": 13}, third(23, None, None, c=None), unchanged=["big", "doc"])
    build.delete(THIRD, {"no": 0}, origin="dump")
    build.seal()
    yield


@pytest.mark.parametrize("key", [("id",), ()])
@pytest.mark.parametrize("drop_columns", [False, True])
def test_one_merge_over_dropped_columns_tells_what_many_do(
    tmp_path: Path, parts: None, drop_columns: bool, key: tuple[str, ...]
) -> None:
    """Of the first merge of a table, too."""
    first = table("t", key=key, id=pa.int64(), x=pa.string())
    second = table("t", key=key, id=pa.int64(), x=pa.string(), added=pa.int32())
    third = table("t", key=key, id=pa.int64())
    staging = Staging(str(tmp_path / "staging"), source="shop")
    stepwise, at_once = (open_lake(tmp_path / name / "lake", staging) for name in ("stepwise", "at once"))
    stepwise.drop_columns = at_once.drop_columns = drop_columns
    build = stepwise.build
    build.create(first, {"id": 1, "x": "one"})
    build.seal()
    stepwise.merge_well()
    build.schema(second, filled={"added": None})
    build.create(second, {"id": 2, "x": "two", "added": 5})
    build.seal()
    stepwise.merge_well()
    build.schema(third)
    build.create(third, {"id": 3})
    build.seal()
    for lake in (stepwise, at_once):
        lake.merge_well()
    lines = lines_of(at_once, third)
    assert lines == lines_of(stepwise, third)
    told = [(line["id"], line["x"], line["added"]) for line in lines]
    assert told == [(1, "one", None), (2, "two", 5), (3, None, None)]


def test_a_history_of_a_lake_that_keeps_its_columns_takes_none_that_came_and_went(tmp_path: Path) -> None:
    kept = table("t", id=pa.int64(), v=pa.string())
    more = table("t", id=pa.int64(), v=pa.string(), n=pa.int32())
    lake = open_lake(tmp_path / "lake", Staging(str(tmp_path / "staging"), source="shop"))
    lake.build.create(kept, {"id": 1, "v": "a"})
    lake.build.seal()
    lake.merge_well()
    lake.changes = "ignore"
    lake.build.schema(more)
    lake.build.create(more, {"id": 2, "v": "b", "n": 5})
    lake.build.schema(kept)
    lake.build.create(kept, {"id": 3, "v": "c"})
    lake.build.seal()
    lake.merge_well()
    assert [(row["id"], row["v"], "n" in row) for row in lines_of(lake, kept)] == [
        (1, "a", False), (2, "b", False), (3, "c", False),
    ]  # fmt: skip


def test_a_value_of_a_dropped_column_that_the_log_left_out_is_named(tmp_path: Path, parts: None) -> None:
    before = table("t", id=pa.int64(), big=pa.string(), v=pa.string())
    after = table("t", id=pa.int64(), v=pa.string())
    lake = open_lake(tmp_path / "lake", Staging(str(tmp_path / "staging"), source="shop"))
    lake.build.create(before, {"id": 1, "big": "large", "v": "a"})
    lake.build.update(before, {"id": 1, "big": None, "v": None}, unchanged=["big", "v"])
    lake.build.schema(after)
    lake.build.seal()
    lake.merge_well()
    told = [(row["big"], row["v"], row["_dblog_unchanged"]) for row in lines_of(lake, after)]
    assert told == [("large", "a", None), (None, "a", ["big"])]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("drop_columns", [False, True])
def test_an_added_column_that_takes_the_name_of_another_one_in_the_same_merge_has_its_own_values(
    tmp_path: Path, drop_columns: bool, history: bool
) -> None:
    """As people change what a column means: ADD new, UPDATE, DROP old, RENAME new TO old."""
    before = table("t", id=pa.int64(), v=pa.int32())
    added = table("t", id=pa.int64(), v=pa.int32(), new=pa.int32())
    dropped = table("t", id=pa.int64(), new=pa.int32())
    lake = open_lake(tmp_path / "lake", Staging(str(tmp_path / "staging"), source="shop"))
    lake.history, lake.drop_columns = history, drop_columns
    build = lake.build
    for key in (1, 2):
        build.create(before, {"id": key, "v": 5})
    build.seal()
    lake.merge_well()
    build.schema(added, filled={"new": None})
    build.update(added, {"id": 2, "v": 5, "new": 50})
    build.schema(dropped)
    build.schema(before, renamed={"v": "new"})
    build.create(before, {"id": 3, "v": 7})
    build.seal()
    lake.merge_well()
    rows = read_delta(Path(str(lake.table(before).local))).to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == [(1, None), (2, 50), (3, 7)]


def test_one_merge_over_renames_tells_what_many_do(tmp_path: Path, parts: None) -> None:
    staging = Staging(str(tmp_path / "staging"), source="shop")
    stepwise = open_lake(tmp_path / "stepwise" / "lake", staging)
    for _ in stage(stepwise.build):
        stepwise.merge_well()
    at_once = open_lake(tmp_path / "at once" / "lake", staging)
    at_once.merge_well()
    expected = lines_of(stepwise, THIRD)
    assert lines_of(at_once, THIRD) == expected
    values = [(row["_dblog_op"], row["no"], row["big"], row["doc"], row["x"], row["c"]) for row in expected[6:]]
    assert values == [
        ("u", 1, "again", "big", 1, None), ("r", 2, "changed", "big", 2, None), ("d", 3, None, None, None, None),
        ("c", 13, "moved", "big", 13, None), ("u", 13, "moved", "big", 13, None), ("r", 4, None, "big", 4, None),
        ("d", 5, None, None, None, None), ("u", 2, "later", "big", 2, 5), ("d", 13, None, None, None, None),
        ("c", 23, "moved", "big", 23, None), ("d", 0, None, None, None, None),
    ]  # fmt: skip
