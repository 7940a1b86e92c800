"""Shares that are spread by buckets of keys: the lake is what the driver makes of them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as RustTable
from pyspark.sql import SparkSession

from dblog_core.lake_engine.events import key_buckets
from dblog_core.lake_engine.merging.spreading import tasks, write_spread
from dblog_core.lake_engine.merging.spreading.tasks import Opener, SpreadWork
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table
from tests.spark.test_histories import WORLDS, burst, check_everything_happened
from tests.spark.worlds import SHAPE, Oracle, Source

ITEMS = table("items", id=pa.int64(), v=pa.string())


class TasksHere:
    """Tasks in this process, in any order, and some of them twice, as Spark may have them."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.jobs = 0
        self.buckets = 0
        self.last: SpreadWork | None = None
        self.before_commit: Callable[[], object] = lambda: None

    def run(self, opener: Opener, work: SpreadWork) -> list[tuple[str, bytes]]:
        self.jobs += 1
        self.last = work
        self.buckets = max(self.buckets, work.buckets)
        payload = pickle.dumps(work)
        contents: list[pa.RecordBatch] = []
        for number in self._in_any_order(range(len(work.units))):
            unit = pa.RecordBatch.from_arrays([pa.array([number])], ["id"])
            attempts = [list(tasks.split(opener, payload, iter([unit]))) for _ in self._attempts()]
            contents += attempts[-1]
        partitions = self._dice.choice((1, 3, work.buckets))
        handed_over: list[tuple[str, bytes]] = []
        for partition in range(partitions):
            mine = [batch for batch in contents if batch["bucket"][0].as_py() % partitions == partition]
            batches = self._in_any_order(mine)
            attempts = [list(tasks.plan(opener, payload, iter(batches))) for _ in self._attempts()]
            handed_over += [(b["kind"][0].as_py(), b["content"][0].as_py()) for b in attempts[-1]]
        self.before_commit()
        return handed_over

    def _attempts(self) -> range:
        return range(2 if self._dice.random() < 0.1 else 1)

    def _in_any_order(self, items: range | list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        return self._dice.sample(list(items), len(items))


@pytest.fixture
def tasks_here(soak_seed: int) -> TasksHere:
    return TasksHere(random.Random(soak_seed))


@pytest.fixture
def spread_lake(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks_here: TasksHere
) -> TestLake:
    """A lake whose shares are all spread, over tasks of this process."""
    lake = TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    lake.let_spread(monkeypatch)
    lake.run_tasks = tasks_here.run
    return lake


@pytest.mark.parametrize("number", range(2))
def test_spread_histories_are_what_the_lines_say(
    spread_lake: TestLake,
    tasks_here: TasksHere,
    number: int,
    soak_seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dice = random.Random(f"{soak_seed}/{number}")
    monkeypatch.setattr(write_spread, "BUCKET_ROWS", dice.choice((7, 100, 1_000)))
    monkeypatch.setattr(tasks, "MOST_OF_BUCKET", dice.choice((1_000, 1 << 20)))
    monkeypatch.setattr(tasks, "IN_MEMORY", dice.choice((0, 1 << 20)))
    monkeypatch.setattr(key_buckets, "PORTION_BYTES", dice.choice((500, 1 << 20)))
    spread_lake.vectors = bool(number)
    source = Source(spread_lake.build, dice, WORLDS)
    oracle = Oracle()
    source.add_unseen_rows(0.3)
    for count in range(3):
        burst(source, dice, count, dump=count == 2 or (count, number) == (0, 1))
        for merged in spread_lake.merge_well(max_rows=dice.choice((100, 10_000))):
            oracle.read(source.lines, merged.offset)
        source.end_merge()
        have = {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in _rows(spread_lake)}
        assert have == oracle.rows
        assert spread_lake.withheld is not None
        assert oracle.waits(set(spread_lake.withheld.keys(str(SHAPE.table), SHAPE)))
    check_everything_happened(source, oracle, number)
    assert tasks_here.jobs >= 3 and tasks_here.buckets >= 8


def _rows(lake: TestLake) -> list[Row]:
    return lake.rust_rows(SHAPE)


def _items(lake: TestLake) -> dict[int, str]:
    return {row["id"]: row["v"] for row in lake.rust_rows(ITEMS)}


def test_buckets_follow_the_key_and_leave_out_files_without_it(
    spread_lake: TestLake, tasks_here: TasksHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_spread, "BUCKET_ROWS", 300)
    rows = {number: f"first {number}" for number in range(-1_000, 2_000)}
    for first in range(-1_000, 2_000, 500):
        spread_lake.build.chunk(ITEMS, [{"id": n, "v": rows[n]} for n in range(first, first + 500)])
    spread_lake.build.seal()
    spread_lake.merge_well()
    assert _items(spread_lake) == rows
    assert tasks_here.last is not None and tasks_here.last.ranges is not None and tasks_here.last.buckets == 11
    files = RustTable(str(spread_lake.table(ITEMS).local)).get_add_actions(flatten=True)
    ends = sorted(zip(pa.table(files)["min.id"].to_pylist(), pa.table(files)["max.id"].to_pylist(), strict=True))
    assert len(ends) == 11 and all(high < low for (_, high), (low, _) in pairwise(ends)), "files share no keys"
    for number in (1_700, 1_800, 1_999):
        spread_lake.build.update(ITEMS, {"id": number, "v": "later"})
        rows[number] = "later"
    spread_lake.build.delete(ITEMS, {"id": 1_750})
    del rows[1_750]
    spread_lake.build.seal()
    spread_lake.merge_well()
    assert _items(spread_lake) == rows
    scanned = [unit for unit in tasks_here.last.units if isinstance(unit, str)]
    assert 0 < len(scanned) < 3, "the other files have no key of the batch"


def test_a_truncate_before_the_rows_of_a_share_leaves_no_key_of_the_table(spread_lake: TestLake) -> None:
    words = table("words", key=("word",), word=pa.string(), v=pa.string())
    for word in ("a", "b", "c"):
        spread_lake.build.create(words, {"word": word, "v": "first"})
    spread_lake.build.seal()
    spread_lake.merge_well()
    spread_lake.build.truncate(words)
    for word in ("b", "d"):
        spread_lake.build.create(words, {"word": word, "v": "second"})
    spread_lake.build.seal()
    spread_lake.merge_well()
    rows = {row["word"]: row["v"] for row in spread_lake.rust_rows(words)}
    assert rows == {"b": "second", "d": "second"}


def test_rows_of_before_a_rename_of_the_key_are_spread_with_those_behind_it(
    spread_lake: TestLake, tasks_here: TasksHere
) -> None:
    renamed = table("items", key=("no",), no=pa.int64(), v=pa.string())
    build = spread_lake.build
    for number in range(3):
        build.create(ITEMS, {"id": number, "v": "first"})
    build.seal()
    spread_lake.merge_well()
    build.update(ITEMS, {"id": 1, "v": "second"})
    build.chunk(ITEMS, [{"id": 2, "v": "dumped"}])
    build.schema(renamed, renamed={"no": "id"})
    build.create(renamed, {"no": 3, "v": "new"})
    build.seal()
    spread_lake.merge_well()
    assert tasks_here.jobs == 2
    rows = {row["no"]: row["v"] for row in spread_lake.rust_rows(renamed)}
    assert rows == {0: "first", 1: "second", 2: "dumped", 3: "new"}


def test_a_column_of_a_key_may_have_any_name(spread_lake: TestLake) -> None:
    seats = table("seats", key=("row", "offset"), row=pa.int64(), offset=pa.int64(), v=pa.string())
    for value in ("first", "second"):
        spread_lake.build.line(seats, "r", after={"row": 1, "offset": 2, "v": value}, origin="dump")
        spread_lake.build.seal()
        spread_lake.merge_well()
    (row,) = spread_lake.rust_rows(seats)
    assert (row["row"], row["offset"], row["v"]) == (1, 2, "second")


def test_a_share_is_planned_again_behind_the_commit_of_another(spread_lake: TestLake, tasks_here: TasksHere) -> None:
    for number in range(20):
        spread_lake.build.create(ITEMS, {"id": number, "v": "first"})
    spread_lake.build.seal()
    spread_lake.merge_well()
    jobs = tasks_here.jobs

    def delete_all() -> None:
        tasks_here.before_commit = lambda: None
        RustTable(str(spread_lake.table(ITEMS).local)).delete()

    tasks_here.before_commit = delete_all
    for number in range(10):
        spread_lake.build.update(ITEMS, {"id": number, "v": "second"})
    spread_lake.build.seal()
    spread_lake.merge_well()
    assert tasks_here.jobs == jobs + 2
    assert _items(spread_lake) == dict.fromkeys(range(10), "second")


def test_a_changed_file_stops_the_table_by_name(spread_lake: TestLake, tasks_here: TasksHere) -> None:
    spread_lake.build.chunk(ITEMS, [{"id": number, "v": "x"} for number in range(50)])
    manifest = spread_lake.build.seal()
    storage = spread_lake.staging.storage
    assert isinstance(storage, LocalStorage)
    path = storage.path(manifest.chunks[0].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    (merged,) = spread_lake.merge()
    (stopped,) = merged.tables
    assert stopped.error is not None and str(path) in stopped.error and "restore it from a backup" in stopped.error
    path.write_bytes(whole)
    spread_lake.merge_well()
    assert len(_items(spread_lake)) == 50
