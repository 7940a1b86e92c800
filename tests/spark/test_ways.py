"""Marking rows, and copying files, lead to the same table: both are compared, row by row and count by count."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType as SparkShape

from dblog_core.delta_writer.delta_types import StructType
from dblog_core.delta_writer.keys import key_index
from dblog_core.errors import LakeError
from dblog_core.lake_engine.events import fold, key_buckets, staged_events
from dblog_core.lake_engine.merging import deleted_rows, upsert_rows
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.merging.merge_results import Merged
from dblog_core.lake_engine.tables import checkpoints, create_table, log
from dblog_core.model.schema import TableSchema
from dblog_core.storage.location import Location
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.spark.worlds import SHAPE, Source, WholeRows

pytestmark = pytest.mark.one_of(6)

T = table("t", id=pa.int64(), v=pa.string())
ODD = table(
    "odd",
    key=("day", "code"),
    day=pa.date32(),
    code=pa.string(),
    amount=pa.decimal128(30, 4),
    raw=pa.binary(),
    at=pa.timestamp("us"),
    since=pa.timestamp("us", tz="UTC"),
    ratio=pa.float32(),
    flag=pa.bool_(),
)
MAPPED = table("mapped", key=("an id",), **{"an id": pa.int64(), "v": pa.string()})
NEEDED = {"shop.odd": {"timestampNtz"}, "shop.mapped": {"columnMapping"}, "shop.t": set[str]()}


def _counts(merges: list[Merged]) -> list[dict[str, Any]]:
    kinds = ("rows", "inserted", "updated", "deleted", "withheld")
    return [{kind: getattr(applied, kind) for kind in kinds} for merged in merges for applied in merged.tables]


def _operation(lake: TestLake) -> tuple[str, str]:
    """The newest commit's, and which engine has made it."""
    last = lake.newest_commit(T)
    return last.operation, last.engineInfo


def _compare_bursts(lakes: Sequence[TestLake], source: Source, dice: random.Random) -> None:
    """Four bursts of changes, with chunks, a TRUNCATE and a whole dump; the lakes are compared after each."""
    source.add_unseen_rows(0.3)
    for _ in source.change_in_bursts(4):
        most = dice.choice((60, 10_000))
        counts = [_counts(lake.merge_well(max_rows=most)) for lake in lakes]
        rows = [lake.rows(SHAPE, provenance=True) for lake in lakes]
        read = [lake.rust_rows(SHAPE) for lake in lakes]
        waiting = [set(lake.withheld.keys(str(SHAPE.table), SHAPE)) for lake in lakes if lake.withheld is not None]
        for seen in (counts, rows, read, waiting):
            assert all(each == seen[0] for each in seen)


@pytest.mark.one_of(10)
def test_all_ways_give_the_same_rows(ways: tuple[TestLake, TestLake], soak_seed: int) -> None:
    dice = random.Random(f"ways {soak_seed}")
    _compare_bursts(ways, Source(ways[0].build, dice, 40), dice)


@pytest.mark.parametrize("source", [WholeRows, Source])
def test_a_work_in_parts_gives_the_rows_of_one_at_once(
    ways: tuple[TestLake, TestLake], soak_seed: int, monkeypatch: pytest.MonkeyPatch, source: type[Source]
) -> None:
    """Each stretch of rows, or bucket of keys, is a part in the lake that marks rows."""
    is_small = staged_events.is_small
    merging: list[TestLake] = []
    monkeypatch.setattr(TestLake, "merge_well", note_lake(TestLake.merge_well, merging))
    monkeypatch.setattr(staged_events, "is_small", lambda work: merging[-1] is not ways[0] and is_small(work))
    monkeypatch.setattr(fold, "PART_BYTES", 1)
    monkeypatch.setattr(key_buckets, "BUCKET_ROWS", 10)
    monkeypatch.setattr(key_buckets, "GROUP_EVENTS", 40)
    dice = random.Random(f"parts {soak_seed}")
    _compare_bursts(ways, source(ways[0].build, dice, 40), dice)


def note_lake(merge: Callable[..., list[Merged]], merging: list[TestLake]) -> Callable[..., list[Merged]]:
    def merge_noted(lake: TestLake, **options: Any) -> list[Merged]:
        merging.append(lake)
        return merge(lake, **options)

    return merge_noted


def _create_by_delta(spark: SparkSession, path: Location, shape: StructType, properties: Mapping[str, str]) -> bool:
    columns = SparkShape.fromJson(shape.json_value())
    builder = DeltaTable.createIfNotExists(spark).location(str(path)).addColumns(columns)
    for name, value in properties.items():
        builder = builder.property(name, value)
    builder.execute()
    return True


@pytest.mark.parametrize(("form", "vectors"), [(ODD, True), (ODD, False), (T, False), (MAPPED, False), (MAPPED, True)])
def test_a_table_that_is_made_without_spark_is_what_delta_makes(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch, form: TableSchema, vectors: bool
) -> None:
    made = []
    for name, by_delta in (("ours", False), ("deltas", True)):
        if by_delta:
            monkeypatch.setattr(create_table, "create_table", partial(_create_by_delta, lake.spark))
        shape = table(name, **{column.name: column.type for column in form.columns}, key=form.key)
        LakeTable(lake.table(shape), shape, app="made", vectors=vectors).prepare()
        detail = DeltaTable.forPath(lake.spark, str(lake.table(shape))).detail().collect()[0].asDict()
        # Delta counts columns of its own along where a table has vectors.
        own = {"dblog.table", "delta.columnMapping.maxColumnId"}
        properties = {n: v for n, v in detail["properties"].items() if n not in own}
        columns = lake.spark.read.format("delta").load(str(lake.table(shape))).schema
        features = sorted(detail["tableFeatures"])
        protocol = (detail["minReaderVersion"], detail["minWriterVersion"])
        # Readers need no feature that the table does not have.
        assert {"timestampNtz", "columnMapping"} & {*features} == NEEDED[str(form.table)]
        made.append((properties, columns, features, protocol, detail["format"], detail["partitionColumns"]))
        history = DeltaTable.forPath(lake.spark, str(lake.table(shape))).history().collect()
        assert [(commit.operation, commit.engineInfo == "dblog") for commit in history] == [
            ("CREATE TABLE", not by_delta)
        ]
    assert made[0] == made[1]


def test_a_table_that_is_emptied_may_get_what_needs_another_feature(lake: TestLake) -> None:
    LakeTable(lake.table(T), T, app="made", vectors=False).prepare()
    timed = table("t", id=pa.int64(), at=pa.timestamp("us"))
    LakeTable(lake.table(T), timed, app="made", vectors=False).replace([], 1)
    detail = DeltaTable.forPath(lake.spark, str(lake.table(T))).detail().collect()[0]
    assert set(detail["tableFeatures"]) == {"timestampNtz", "appendOnly", "invariants"}
    assert "at" in lake.spark.read.format("delta").load(str(lake.table(T))).columns


def test_a_table_is_not_made_where_others_files_lie(lake: TestLake) -> None:
    place = lake.path / lake.table(T).path
    (place / "_delta_log").mkdir(parents=True)  # of a process that died
    LakeTable(lake.table(T), T, app="made").prepare()
    assert log.version(lake.table(T)) == 0
    other = table("other", id=pa.int64())
    place = lake.path / lake.table(other).path
    place.mkdir(parents=True)
    (place / "part-0.parquet").write_bytes(b"somebody's")
    with pytest.raises(LakeError, match="has files, and no Delta log"):
        LakeTable(lake.table(other), other, app="made").prepare()
    assert log.version(lake.table(other)) is None


def test_a_dump_that_begins_a_table_looks_for_no_ghost(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before it is not in the table; a later dump looks, and removes what is gone."""
    looked: list[str] = []
    monkeypatch.setattr(deleted_rows, "_read_seen_keys", spy_on(deleted_rows._read_seen_keys, looked))
    build = lake.build
    build.create(T, {"id": 1, "v": "before"})
    since = build.offset
    build.chunk(T, [{"id": 1, "v": "a"}, {"id": 2, "v": "a"}])
    build.finished(T, "d1", since=since, since_segment=1)
    build.seal()
    lake.merge_well()
    assert not looked and [row["id"] for row in lake.rows(T)] == [1, 2]
    since = build.offset
    build.chunk(T, [{"id": 2, "v": "a"}], dump="d2")
    build.finished(T, "d2", since=since, since_segment=2)
    build.seal()
    lake.merge_well()
    assert len(looked) == 1 and [row["id"] for row in lake.rows(T)] == [2]


def spy_on(work: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(work.__name__)
        return work(*arguments, **options)

    return call


def test_a_batch_is_one_commit_of_ours(lake: TestLake) -> None:
    build = lake.build
    for i in range(5):
        build.create(T, {"id": i, "v": "a"})
    build.seal()
    lake.merge_well()
    build.update(T, {"id": 2, "v": "b"})
    build.delete(T, {"id": 3})
    build.seal()
    ((merged,), *_) = [merge.tables for merge in lake.merge_well()]
    assert (merged.inserted, merged.updated, merged.deleted) == (0, 1, 1)
    assert _operation(lake) == ("MERGE", "dblog")
    assert [(row["id"], row["v"]) for row in lake.rows(T)] == [(0, "a"), (1, "a"), (2, "b"), (4, "a")]


def test_a_table_whose_index_has_no_room_stops_until_it_has(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.build.create(T, {"id": 1, "v": "a"})
    lake.build.seal()
    lake.merge_well()
    lake.build.update(T, {"id": 1, "v": "b"})
    lake.build.seal()
    with monkeypatch.context() as patch:
        patch.setattr(key_index, "_LEFT_FREE", 1 << 62)
        patch.setattr(upsert_rows, "_SHARES", 1 << 40)  # of the memory that indexes have: none of it
        ((applied,),) = [merged.tables for merged in lake.merge()]
    assert "the index of the table's keys has no room on the local disk" in str(applied.error)
    assert str(lake.path.parent) in str(applied.error) and "DBLOG_CACHE_DIR" in str(applied.error)
    assert lake.rows(T) == [{"id": 1, "v": "a"}]
    lake.merge_well()
    assert lake.rows(T) == [{"id": 1, "v": "b"}]


def test_keys_of_floating_point_are_equal_as_for_the_sources(ways: tuple[TestLake, TestLake]) -> None:
    """0.0 and -0.0 are one key, and so are all NaNs."""
    ratios = table("ratios", id=pa.float64(), v=pa.string())
    nan = float("nan")
    changes: list[list[tuple[str, float, str | None]]] = [
        [("create", 0.0, "zero"), ("create", nan, "none"), ("create", 1.5, "more"), ("create", 1e300, "much")],
        [("update", -0.0, "minus zero"), ("update", nan, "still none"), ("delete", 1.5, None), ("create", -2.5, "new")],
        [("delete", nan, None), ("update", 1e300, "too much")],
    ]
    expected = [
        {"0.0": "zero", "nan": "none", "1.5": "more", "1e+300": "much"},
        {"-0.0": "minus zero", "nan": "still none", "-2.5": "new", "1e+300": "much"},
        {"-0.0": "minus zero", "-2.5": "new", "1e+300": "too much"},
    ]
    build = ways[0].build
    for burst, rows in zip(changes, expected, strict=True):
        for change, key, v in burst:
            getattr(build, change)(ratios, {"id": key} if change == "delete" else {"id": key, "v": v})
        build.seal()
        for lake in ways:
            lake.merge_well()
            assert {repr(row["id"]): row["v"] for row in lake.rows(ratios)} == rows
            assert len(lake.rows(ratios)) == len(rows)


def test_a_table_without_vectors_is_read_by_those_who_know_none(lake: TestLake) -> None:
    """Readers without vectors read it, such as those of delta-rs that go through pyarrow."""
    lake.vectors = False
    for v in ("a", "b"):
        lake.build.create(T, {"id": 1, "v": v}) if v == "a" else lake.build.update(T, {"id": 1, "v": v})
        lake.build.seal()
        lake.merge_well()
    assert _operation(lake) == ("MERGE", "dblog")
    assert lake.rows(T) == [{"id": 1, "v": "b"}]
    rows = RustTable(str(lake.table(T))).to_pyarrow_dataset().to_table(columns=["id", "v"])
    assert rows.to_pylist() == [{"id": 1, "v": "b"}]


def test_vectors_that_are_switched_off_are_written_no_more(lake: TestLake) -> None:
    for i, lake.vectors in enumerate((True, True, False)):
        lake.build.create(T, {"id": i, "v": "a"})
        lake.build.update(T, {"id": 0, "v": f"b{i}"})
        lake.build.seal()
        lake.merge_well()
    added = _added(lake)
    assert added and not any("deletionVector" in action for action in added)
    assert [row["v"] for row in lake.rows(T)] == ["b2", "a", "a"]


def _added(lake: TestLake) -> list[dict[str, Any]]:
    """The files that the newest commit adds."""
    version = log.version(lake.table(T))
    data = (lake.table(T) / "_delta_log" / f"{version:020d}.json").read() or b""
    return [action["add"] for action in map(json.loads, data.splitlines()) if "add" in action]


def test_every_hundredth_commit_is_followed_by_a_checkpoint(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "COMMITS", 4)
    merger = lake.merger()
    tables = merger._lake.open_tables
    for i in range(9):
        lake.build.update(T, {"id": 1, "v": f"{i}"})
        lake.build.seal()
        merger.run_round(retry_stopped=False)
        tables.checkpoints.wait()  # beside the merges the version may be a later one
    tables.close()
    places = sorted(name for name in (lake.table(T) / "_delta_log").names() if name.endswith(".checkpoint.parquet"))
    assert [int(name.split(".")[0]) for name in places] == [4, 8]
    assert log.version(lake.table(T)) == 9
    lake.build.update(T, {"id": 1, "v": "after"})
    lake.build.seal()
    for commit in (lake.table(T) / "_delta_log").names():
        if commit.endswith(".json") and commit < f"{8:020d}":
            (lake.table(T) / "_delta_log" / commit).remove()
    lake.merge_well()
    assert lake.rows(T) == [{"id": 1, "v": "after"}] == [{k: row[k] for k in ("id", "v")} for row in lake.rust_rows(T)]


def test_a_column_by_whose_name_delta_looks_for_places_stops_its_table_alone_and_is_taken_without_vectors(
    lake: TestLake,
) -> None:
    lake.vectors = True
    odd = table("odd", id=pa.int64(), _metadata=pa.string())
    for i in (1, 2):
        lake.build.create(odd, {"id": i, "_metadata": "a"})
    lake.build.create(T, {"id": 1, "v": "a"})
    lake.build.seal()
    errors = {str(each.table): each.error for merged in lake.merge() for each in merged.tables}
    assert errors[str(T.table)] is None and "has a column _metadata" in str(errors[str(odd.table)])
    lake.vectors = False
    for v in ("b", "c"):
        lake.build.update(odd, {"id": 1, "_metadata": v})
        lake.build.seal()
        lake.merge_well()
        assert lake.rows(odd) == [{"id": 1, "_metadata": v}, {"id": 2, "_metadata": "a"}]
