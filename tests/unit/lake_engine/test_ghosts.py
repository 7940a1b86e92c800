"""Rows that a finished dump has not met go in the commit of the batch that shows it: those alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblog_core.delta_writer.rewriting.unseen_rows import find_unseen
from dblog_core.delta_writer.upserting import draft, upsert
from dblog_core.lake_engine.events import fold
from dblog_core.lake_engine.merging.deleted_rows import Ghosts
from dblog_core.model.schema import TableSchema
from dblog_core.rows import disk_spool
from dblog_core.staging import Staging
from tests.duckdb_reader import read_delta
from tests.spark.lakes import TestLake
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


@pytest.mark.parametrize("is_one_batch", [False, True], ids=["in the table", "in the batch"])
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
    lake: TestLake, key_from: Any, key_to: Any, ghosts: set[tuple[int, str]], is_one_batch: bool
) -> None:
    keys = [(0, "z"), (1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b")]
    lake.build.create(PAIRS, {"a": 1, "b": "c", "v": "v"})
    merge(lake)
    for a, b in keys:
        lake.build.create(PAIRS, {"a": a, "b": b, "v": "v"})
    if not is_one_batch:
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
    with mock.patch.object(upsert, "ATTEMPTS", 1):
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
    found: list[int] = []

    def find_and_join(*arguments: Any) -> Any:
        unseen, keys = find_unseen(*arguments)
        if not found:
            DeltaTable(str(lake.table(ITEMS))).optimize.compact()
        found.append(len(keys))
        return unseen, keys

    monkeypatch.setattr(draft, "find_unseen", find_and_join)
    dump(lake, ITEMS, [{"id": key, "v": "v"} for key in range(0, 15, 2)], "d")
    merge(lake)
    assert found == [7, 7]
    assert [row["id"] for row in sorted(rows_of(lake, ITEMS), key=lambda row: int(row["id"]))] == list(range(0, 15, 2))


def test_what_the_batch_has_brought_and_the_dump_has_not_met_never_comes(lake: TestLake) -> None:
    """New, changed, moved, and a row that an earlier dump of the batch has brought; other rows of these keys do."""
    for key in range(6):
        lake.build.create(ITEMS, {"id": key, "v": "v"})
    merge(lake)
    version = DeltaTable(str(lake.table(ITEMS))).version()
    build = lake.build
    build.chunk(ITEMS, [{"id": 8, "v": "of a part"}], dump="part")
    build.update(ITEMS, {"id": 1, "v": "changed"})
    build.update(ITEMS, {"id": 2, "v": "changed"})
    build.create(ITEMS, {"id": 6, "v": "new"})
    build.move(ITEMS, {"id": 3}, {"id": 7, "v": "moved"})
    since, segment = build.offset, build.segment + 1
    build.create(ITEMS, {"id": 2, "v": "born again"})
    build.chunk(ITEMS, [{"id": 0, "v": "v"}, {"id": 5, "v": "found changed"}], dump="full")
    build.create(ITEMS, {"id": 6, "v": "born again"})
    build.finished(ITEMS, "full", since=since, since_segment=segment)
    build.create(ITEMS, {"id": 4, "v": "born behind the dump"})
    merge(lake)
    assert {row["id"]: row["v"] for row in rows_of(lake, ITEMS)} == {
        0: "v", 2: "born again", 4: "born behind the dump", 5: "found changed", 6: "born again"
    }  # fmt: skip
    assert DeltaTable(str(lake.table(ITEMS))).version() == version + 1


def test_the_end_of_a_dump_alone_removes_its_ghosts(lake: TestLake) -> None:
    """Its rows were merged before."""
    for key in range(6):
        lake.build.create(ITEMS, {"id": key, "v": "v"})
    merge(lake)
    since, segment = lake.build.offset, lake.build.segment + 1
    lake.build.chunk(ITEMS, [{"id": key, "v": "v"} for key in (1, 2)], dump="d")
    merge(lake)
    lake.build.finished(ITEMS, "d", since=since, since_segment=segment)
    merge(lake)
    assert [row["id"] for row in rows_of(lake, ITEMS)] == [1, 2]


def test_ghosts_that_an_earlier_version_died_before_are_removed_when_its_merge_is_finished(lake: TestLake) -> None:
    """It committed the batch, rows that the dump had not met among them, and removed these behind that."""
    for key in range(6):
        lake.build.create(ITEMS, {"id": key, "v": "v"})
    merge(lake)
    lake.build.create(ITEMS, {"id": 8, "v": "gone"})
    dump(lake, ITEMS, [{"id": key, "v": "v"} for key in (1, 2)], "d")
    lake.build.create(ITEMS, {"id": 7, "v": "v"})
    lake.build.seal()
    with (
        mock.patch.object(fold, "dumps_within", return_value=[]),
        mock.patch.object(Ghosts, "readings", return_value=[]),
    ):
        lake.merge_until(f"merged {ITEMS.table}")
    assert len(rows_of(lake, ITEMS)) == 8
    lake.merge_well()
    assert [row["id"] for row in rows_of(lake, ITEMS)] == [1, 2, 7]


def test_the_end_of_a_dump_of_an_older_capture_stops_the_table_before_its_batch(lake: TestLake) -> None:
    """It does not say which events the dump has seen."""
    lake.build.create(ITEMS, {"id": 1, "v": "v"})
    merge(lake)
    lake.build.create(ITEMS, {"id": 2, "v": "v"})
    lake.build.finished(ITEMS, "d", since=None, since_segment=None)  # type: ignore[arg-type]
    lake.build.seal()
    merged, *_ = lake.merge()
    assert "an older capture wrote it" in str(merged.tables[0].error)
    assert [row["id"] for row in rows_of(lake, ITEMS)] == [1]


@pytest.mark.parametrize("history", [False, True], ids=["", "history"])
@pytest.mark.parametrize("exists", [False, True], ids=["new", "there"])
@pytest.mark.parametrize(
    ("narrow", "wide"),
    [(pa.int32(), pa.int64()), (pa.int32(), pa.decimal128(12, 0)), (pa.decimal128(6, 0), pa.decimal128(8, 2))],
    ids=str,
)
def test_a_dump_during_which_the_key_grows_wider_removes_its_ghosts(
    lake: TestLake, narrow: pa.DataType, wide: pa.DataType, exists: bool, history: bool
) -> None:
    lake.history = history
    before, after = (table("keys", id=kind, v=pa.string()) for kind in (narrow, wide))
    for key in (1, 9):
        lake.build.create(before, {"id": key, "v": "a"})
    if exists:
        merge(lake)
    build = lake.build
    since, segment = build.offset, build.segment + 1
    build.chunk(before, [{"id": 1, "v": "a"}], dump="d")
    build.schema(after)
    build.chunk(after, [{"id": 2, "v": "b"}], dump="d")
    build.finished(after, "d", since=since, since_segment=segment)
    merge(lake)
    rows = read_delta(Path(str(lake.table(after)))).to_pylist()  # delta-rs reads no widened types
    assert sorted((int(row["id"]), row["v"]) for row in rows) == [(1, "a"), (2, "b")]
