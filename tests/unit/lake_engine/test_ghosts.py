"""Rows that a finished dump has not met are removed without Spark: those alone, and wherever the merge dies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblog_core.delta_writer.rewriting import unseen_rows
from dblog_core.lake_engine.merging import deleted_rows
from dblog_core.model.schema import TableSchema
from dblog_core.rows import disk_spool
from dblog_core.staging import Staging
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import Row, table

ITEMS = table("items", id=pa.int64(), v=pa.string())
PAIRS = table("pairs", key=("a", "b"), a=pa.int32(), b=pa.string(), v=pa.string())


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def lake(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    monkeypatch.setattr(disk_spool, "_IN_MEMORY", 0)
    made = TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    made.vectors = request.param
    return made


def merge(lake: TestLake) -> None:
    lake.build.seal()
    lake.merge_well()


def rows_of(lake: TestLake, schema: TableSchema) -> list[Row]:
    names = [column.name for column in schema.columns]
    return [{name: row[name] for name in names} for row in lake.rust_rows(schema)]


def dump(lake: TestLake, schema: TableSchema, rows: list[Row], name: str, **key_range: Any) -> None:
    """A dump that has seen these rows, in several chunks."""
    build = lake.build
    since, segment = build.offset, build.segment + 1
    for first in range(0, len(rows), 7):
        build.chunk(schema, rows[first : first + 7], dump=name)
    build.finished(schema, name, since=since, since_segment=segment, **key_range)


def test_rows_that_a_dump_has_not_met_are_removed_and_no_others(lake: TestLake, soak_seed: int) -> None:
    dice = random.Random(f"ghosts {soak_seed}")
    source: dict[int, str] = {}
    for number in range(4):
        for key in dice.sample(range(60), 20):
            lake.build.create(ITEMS, {"id": key, "v": f"{number}"})
            source[key] = f"{number}"
        merge(lake)
    for number in range(3):
        for key in dice.sample(sorted(source), 5):  # deletes that the log has not shown
            del source[key]
        dump(lake, ITEMS, [{"id": key, "v": v} for key, v in source.items()], f"d{number}")
        born = 100 + number
        lake.build.create(ITEMS, {"id": born, "v": "later"})  # the dump has not met it, and it is newer
        source[born] = "later"
        merge(lake)
        assert {row["id"]: row["v"] for row in rows_of(lake, ITEMS)} == source


def test_a_row_that_was_born_while_the_dump_went_on_stays(lake: TestLake) -> None:
    lake.build.create(ITEMS, {"id": 1, "v": "ghost"})
    merge(lake)
    since, segment = lake.build.offset, lake.build.segment + 1
    lake.build.create(ITEMS, {"id": 2, "v": "born"})
    lake.build.chunk(ITEMS, [{"id": 3, "v": "met"}], evicted=[0], dump="d")
    merge(lake)
    lake.build.finished(ITEMS, "d", since=since, since_segment=segment)
    merge(lake)
    assert rows_of(lake, ITEMS) == [{"id": 2, "v": "born"}]


@pytest.mark.parametrize(
    ("key_from", "key_to", "ghosts"),
    [
        ([1, "b"], None, {(1, "b"), (1, "c"), (2, "a"), (2, "b")}),
        (None, [1, "b"], {(0, "z"), (1, "a"), (1, "b")}),
        ([1, "b"], [2, "a"], {(1, "b"), (1, "c"), (2, "a")}),
        (None, None, {(0, "z"), (1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b")}),
    ],
)
def test_a_dump_of_a_key_range_says_nothing_about_other_keys(
    lake: TestLake, key_from: Any, key_to: Any, ghosts: set[tuple[int, str]]
) -> None:
    keys = [(0, "z"), (1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b")]
    for a, b in keys:
        lake.build.create(PAIRS, {"a": a, "b": b, "v": "v"})
    merge(lake)
    dump(lake, PAIRS, [{"a": 1, "b": "bb", "v": "v"}], "d", key_from=key_from, key_to=key_to)
    merge(lake)
    assert {(row["a"], row["b"]) for row in rows_of(lake, PAIRS)} == {*keys, (1, "bb")} - ghosts


def test_rows_of_others_go_with_their_key_and_stay_where_nobody_knows_their_age(lake: TestLake) -> None:
    """A key that another program has doubled, a row without a key, and one without an offset."""
    for key in range(4):
        lake.build.create(ITEMS, {"id": key, "v": "ours"})
    merge(lake)
    path = str(lake.table(ITEMS))
    shape = pa.schema(DeltaTable(path).schema().to_arrow())
    ages = [1, 1, None]
    theirs: list[Row] = [{"id": 3, "v": "twin"}, {"id": None, "v": "no key"}, {"id": 9, "v": "no age"}]
    columns = {name: [row.get(name) for row in theirs] for name in shape.names}
    columns["_dblog_offset"] = ages
    write_deltalake(path, pa.table(columns, schema=shape), mode="append")
    with mock.patch.object(deleted_rows, "ATTEMPTS", 1):
        dump(lake, ITEMS, [{"id": key, "v": "ours"} for key in (0, 1)], "d")
        lake.build.seal()
        lake.merge()
    assert {row["v"] for row in rows_of(lake, ITEMS)} == {"ours"}
    assert [row["id"] for row in rows_of(lake, ITEMS)] == [0, 1]


def test_another_commit_in_between_has_the_ghosts_looked_for_again(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(3):
        for key in range(part * 5, part * 5 + 5):
            lake.build.create(ITEMS, {"id": key, "v": "v"})
        merge(lake)
    find = unseen_rows.find_unseen
    found: list[int] = []

    def find_and_join(*arguments: Any, **options: Any) -> Any:
        unseen = find(*arguments, **options)
        if not found:
            DeltaTable(str(lake.table(ITEMS))).optimize.compact()
        found.append(len(unseen.keys))
        return unseen

    monkeypatch.setattr(deleted_rows, "find_unseen", find_and_join)
    dump(lake, ITEMS, [{"id": key, "v": "v"} for key in range(0, 15, 2)], "d")
    merge(lake)
    assert found == [7, 7]
    assert [row["id"] for row in sorted(rows_of(lake, ITEMS), key=lambda row: int(row["id"]))] == list(range(0, 15, 2))


def test_a_merge_that_dies_before_its_ghosts_removes_them_when_it_is_finished(lake: TestLake) -> None:
    for key in range(6):
        lake.build.create(ITEMS, {"id": key, "v": "v"})
    merge(lake)
    dump(lake, ITEMS, [{"id": key, "v": "v"} for key in (1, 2)], "d")
    lake.build.create(ITEMS, {"id": 7, "v": "v"})
    lake.build.seal()
    with mock.patch.object(deleted_rows, "commit_deletes", side_effect=Crash), pytest.raises(Crash):
        lake.merge()
    assert len(rows_of(lake, ITEMS)) == 7
    lake.merge_well()
    assert [row["id"] for row in rows_of(lake, ITEMS)] == [1, 2, 7]
