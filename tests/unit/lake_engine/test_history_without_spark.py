"""A history's lines that are made without Spark are those that a reader of the super-changelog would have kept."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.delta_writer.append import AppendedTable
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.lake import merge_plan
from dblog_core.lake.merge_plan import Work
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.events import key_buckets, staged_events
from dblog_core.lake_engine.history import history_lines, lake_rows
from dblog_core.lake_engine.history.former_values import FormerValues, LakeBefore
from dblog_core.lake_engine.history.lake_rows import find_rows
from dblog_core.lake_engine.tables import create_table
from dblog_core.lake_engine.tables.column_types import OFFSET, history_shape
from dblog_core.model.schema import TableSchema
from dblog_core.rows.disk_spool import SpooledTables
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from tests.spark.segments import Row, SegmentBuilder, table
from tests.spark.worlds import SHAPE, Key, Oracle
from tests.spark.worlds_history import Expected
from tests.unit.delta_writer.rivals import open_delta
from tests.unit.delta_writer.tables import commit_of, newest
from tests.unit.lake_engine.world_lake import Lake

APP = "dblog:shop:shop.worlds:history"
ITEMS = table("items", id=pa.int64(), v=pa.string(), big=pa.string())


def make_history(path: Path, schema: TableSchema) -> AppendedTable:
    """An empty history there."""
    place = Location(LocalStorage(path, temporary="_dblog/tmp"), "history")
    properties = {"delta.appendOnly": "true", "dblog.table": str(schema.table)}
    assert create_table.create_table(place, history_shape(schema), properties)
    return AppendedTable(place, order=OFFSET, mark=COMMIT_MARK)


def read_rows(path: Path) -> list[Row]:
    rows = QueryBuilder().register("t", DeltaTable(str(path))).execute("select * from t")
    return sorted(pa.table(rows.read_all()).to_pylist(), key=lambda row: row[OFFSET])


@dataclass
class World:
    """A lake of the worlds with its history, and what both should be."""

    path: Path
    lake: Lake
    expected: Expected = field(default_factory=Expected)
    oracle: Oracle = field(default_factory=Oracle)

    def __post_init__(self) -> None:
        self.history = make_history(self.path / "lake", SHAPE)

    def work(self) -> Work:
        """All that was sealed since the last merge."""
        manifests = self.lake.staging.manifests(after=self.lake.segment, upto=self.lake.staging.head_number())
        return merge_plan.plan_works(manifests, lambda table: self.lake.segment)[str(SHAPE.table)]

    def lines(self, withheld: list[Key] | None = None) -> pa.Table | SpooledTables:
        known = sorted(self.oracle.withheld) if withheld is None else withheld
        before = LakeBefore(partial(find_rows, self.lake.open(), SHAPE), known, self.lake.offset)
        shape = self.history.refresh()
        return history_lines.make_lines(self.lake.staging, self.work(), SHAPE, (), shape, before)

    def merge(self) -> None:
        """Into the history first, and then into the table."""
        work = self.work()
        self.history.append(self.lines(), APP, self.lake.source.build.offset)
        if work.last_truncate is not None:
            open_delta(self.lake.table).delete(f"{OFFSET} < {work.last_truncate}")
        self.lake.merge()
        self.expected.read(self.lake.source.lines, self.lake.offset)
        self.oracle.read(self.lake.source.lines, self.lake.offset)
        self.lake.source.end_merge()

    def told(self) -> list[Any]:
        return [Expected.as_told(row) for row in read_rows(self.path / "lake" / "history")]


def at_once(lines: pa.Table | SpooledTables) -> list[Row]:
    assert isinstance(lines, pa.Table)
    rows: list[Row] = lines.to_pylist()
    return rows


def change_and_dump(world: World, dice: random.Random) -> None:
    """Two segments of changes, a chunk in each; now and then all rows go."""
    source = world.lake.source
    for _ in range(2):
        for number in range(source.worlds):
            source.change(number)
        source.dump_chunk()
        if dice.random() < 0.2:
            source.truncate()
            for number in range(source.worlds):
                source.change(number)
        source.build.seal()


@pytest.fixture
def world(tmp_path: Path, soak_seed: int) -> World:
    """With rows that were there before the log began."""
    world = World(tmp_path, Lake(tmp_path, random.Random(f"history {soak_seed}")))
    world.lake.source.add_unseen_rows(0.3)
    return world


@pytest.fixture(params=["at once", "in parts", "in portions"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether lines are made in parts of a few keys; of lines without former values: of a few lines. In portions: all
    keys are together, a few of their events are read at a time, and few rows of the lake have room."""
    if request.param == "at once":
        return False
    monkeypatch.setattr(staged_events, "is_small", lambda work: False)
    monkeypatch.setattr(key_buckets, "BUCKET_ROWS", 20)
    monkeypatch.setattr(key_buckets, "GROUP_EVENTS", 60)
    monkeypatch.setattr(key_buckets, "DISTRIBUTED_BYTES", 4_000)
    monkeypatch.setattr(history_lines, "_TOGETHER_BYTES", 1)
    monkeypatch.setattr(staged_events, "TOGETHER", 1)
    if request.param == "in portions":
        monkeypatch.setattr(key_buckets, "MOST_BUCKETS", 1)
        monkeypatch.setattr(key_buckets, "PORTION_BYTES", 1)
        monkeypatch.setattr(lake_rows, "_MOST_BYTES", 300)
    return True


def test_the_lines_are_what_a_reader_would_have_kept(world: World, soak_seed: int, parts: bool) -> None:
    dice = random.Random(soak_seed)
    for number in range(world.lake.source.worlds):  # of rows that nobody has seen
        world.lake.source.change(number)
    world.lake.source.build.seal()
    world.merge()
    for burst in range(5):
        change_and_dump(world, dice)
        if burst == 3:
            world.lake.source.truncate()
            world.lake.source.change(0)
            world.lake.source.build.seal()
        world.merge()
        assert world.told() == world.expected.lines
        files = [
            a for a in commit_of(world.path / "lake" / "history", newest(world.path / "lake" / "history")) if "add" in a
        ]
        assert (len(files) > 1) == parts
    kinds = ("chain of key changes", "swap of keys", "unchanged value over updates, a key change and a batch boundary")
    assert [kind for kind in (*kinds, "truncate", "evicted row") if not world.lake.source.seen[kind]] == []
    assert world.expected.left_out and world.oracle.seen["withheld row"]


def test_a_life_ends_with_a_delete_a_birth_or_a_truncate(tmp_path: Path) -> None:
    """Nothing of an earlier life is taken for what was there, or filled in."""
    world = World(tmp_path, Lake(tmp_path, random.Random("lives")))
    build = world.lake.source.build
    one, two, three, four = ({"world": 1, "k": k, "a": 1, "f": 2.0, "big": "b"} for k in "abcd")
    for row in (one, two, three):
        build.create(SHAPE, row)
    build.seal()
    world.merge()
    key = {"world": 1, "k": "a"}
    build.delete(SHAPE, key)
    build.delete(SHAPE, key, origin="dump")  # 5: it was gone
    build.chunk(SHAPE, [one])  # 6: there again
    build.chunk(SHAPE, [two])  # 7: as it was
    build.create(SHAPE, {**two, "big": None})
    build.line(SHAPE, "c", after={**two, "big": None}, unchanged=["big"])  # 9: of a row that was not there
    build.delete(SHAPE, {"world": 1, "k": "c"})
    build.update(SHAPE, {**three, "big": None}, unchanged=["big"])  # 11: of a row that is gone
    build.chunk(SHAPE, [three])  # 12: now it is known
    build.truncate(SHAPE)
    build.chunk(SHAPE, [one, two])  # 14, 15: there again
    build.delete(SHAPE, {"world": 1, "k": "c"}, origin="dump")  # 16: it was gone
    build.delete(SHAPE, {"world": 1, "k": "d"}, origin="dump")  # 17: it waited, and went with the others
    build.chunk(SHAPE, [four])  # 18
    build.seal()
    lines = at_once(world.lines([(1, "d"), (7, "z")]))
    assert [(line[OFFSET], line["_dblog_op"], line["k"], line["_dblog_unchanged"]) for line in lines] == [
        (4, "d", "a", ["a", "f", "big"]), (6, "r", "a", None), (8, "c", "b", None), (9, "c", "b", ["big"]),
        (10, "d", "c", ["a", "f", "big"]), (11, "u", "c", ["big"]), (12, "r", "c", None), (13, "t", None, None),
        (14, "r", "a", None), (15, "r", "b", None), (18, "r", "d", None),
    ]  # fmt: skip
    assert [line["big"] for line in lines if line["_dblog_unchanged"]] == [None] * 4


def test_a_key_that_waits_for_a_dump_lives_and_nothing_of_it_is_known(tmp_path: Path) -> None:
    world = World(tmp_path, Lake(tmp_path, random.Random("waits")))
    build = world.lake.source.build
    build.update(SHAPE, {"world": 1, "k": "a", "a": 1, "f": 2.0, "big": None}, unchanged=["big"])
    build.delete(SHAPE, {"world": 1, "k": "b"}, origin="dump")
    build.delete(SHAPE, {"world": 1, "k": "c"}, origin="dump")
    build.chunk(SHAPE, [{"world": 1, "k": "d", "a": None, "f": None, "big": None}])
    build.seal()
    lines = at_once(world.lines([(1, k) for k in "abd"]))
    assert [(line["_dblog_op"], line["k"], line["_dblog_unchanged"]) for line in lines] == [
        ("u", "a", ["big"]), ("d", "b", ["a", "f", "big"]), ("r", "d", None),
    ]  # fmt: skip


def test_a_work_without_values_to_look_up_makes_no_index(tmp_path: Path) -> None:
    """Lines of the log that leave nothing out are told as they are."""
    world = World(tmp_path, Lake(tmp_path, random.Random("log")))
    build = world.lake.source.build
    row = {"world": 1, "k": "a", "a": 1, "f": float("nan"), "big": "b"}
    build.create(SHAPE, row)
    build.update(SHAPE, {**row, "a": None})
    build.line(SHAPE, "d", before=row)
    build.seal()
    with mock.patch.object(OpenTable, "hits", side_effect=AssertionError("a key is looked up")):
        lines = at_once(world.lines())
    assert [(line["_dblog_op"], line["a"], line["_dblog_unchanged"]) for line in lines] == [
        ("c", 1, None), ("u", None, None), ("d", None, ["a", "f", "big"]),
    ]  # fmt: skip
    assert [line["_dblog_transaction"] for line in lines] == ["t1", "t2", "t3"]


def test_values_that_differ_in_their_bytes_alone_change_nothing(tmp_path: Path) -> None:
    """NaN is NaN, and the zeros are one, as Spark has it; every other type is compared by its value."""
    day = dt.date(1500, 2, 3)
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  # without a zone, as the column
    kinds = {
        "f": (pa.float64(), [float("nan"), 0.0, 1.5], [float("nan"), -0.0, 1.5000001]),
        "g": (pa.float32(), [float("nan"), -0.0, 1.5], [float("nan"), 0.0, 2.5]),
        "d": (pa.decimal128(30, 4), [Decimal("1.5"), None, Decimal("-0.0")], [Decimal("1.5000"), None, Decimal("0.1")]),
        "t": (pa.timestamp("us"), [moment] * 3, [moment, moment, moment + dt.timedelta(microseconds=1)]),
        "z": (pa.timestamp("us", tz="UTC"), [None, None, None], [None, None, moment.replace(tzinfo=dt.UTC)]),
        "b": (pa.binary(), [b"", b"\0", b"a"], [b"", b"\0", b"A"]),
        "x": (pa.date32(), [day] * 3, [day, day, day + dt.timedelta(days=1)]),
        "n": (pa.bool_(), [True, None, True], [True, None, None]),
        "s": (pa.string(), ["", "é", "é"], ["", "é", "e\u0301"]),
        "i": (pa.int8(), [1, -128, 0], [1, -128, None]),
    }
    for name, (kind, old, new) in kinds.items():
        schema = table("t", id=pa.int64(), v=kind)
        rows = pa.table(
            {"id": pa.array([0, 1, 2], pa.int64()), "v": pa.array(old, kind), OFFSET: pa.nulls(3, pa.int64())}
        )
        before = LakeBefore(lambda keys, names, rows=rows: (rows, keys[0].to_numpy()), [], 0)
        dumped = pa.table(
            {
                "offset": pa.array([1, 2, 3], pa.int64()),
                "op": pa.repeat("r", 3),
                "origin": pa.repeat("dump", 3),
                "unchanged": pa.nulls(3, pa.list_(pa.string())),
                "moved": pa.repeat(False, 3),
                "k0": rows["id"],
                "m0": pa.nulls(3, pa.int64()),
                "v0": rows["id"],
                "v1": pa.array(new, kind),
            }
        )
        left = FormerValues(schema, [], before).fill(dumped)
        assert left["k0"].to_pylist() == [2], f"{name}: {kind}"


@pytest.mark.parametrize(("lake_offset", "value"), [(14, "big"), (17, None), (24, None)])
def test_a_later_row_of_the_old_key_has_no_value_for_a_row_that_moved_away(lake_offset: int, value: str | None) -> None:
    schema = table("t", id=pa.int64(), v=pa.string())
    rows = pa.table({"id": [1], "v": ["big"], OFFSET: [lake_offset]})
    before = LakeBefore(lambda keys, names: (rows, np.flatnonzero(keys[0].to_numpy() == 1)), [], 15)
    moves = pa.table(
        {
            "offset": pa.array([16, 17], pa.int64()),
            "op": ["d", "c"],
            "origin": ["log", "log"],
            "unchanged": pa.array([None, ["v"]], pa.list_(pa.string())),
            "moved": [False, True],
            "k0": pa.array([1, 2], pa.int64()),
            "m0": pa.array([None, 1], pa.int64()),
            "v0": pa.array([None, 2], pa.int64()),
            "v1": pa.nulls(2, pa.string()),
        }
    )
    _, moved = FormerValues(schema, [], before).fill(moves).to_pylist()
    assert (moved["v1"], moved["unchanged"]) == (value, ["v"] if value is None else None)


def test_a_moved_row_takes_what_the_only_event_of_its_old_key_says() -> None:
    schema = table("t", id=pa.int64(), v=pa.string(), big=pa.string())
    rows = pa.table({"id": [1], "v": ["lake"], "big": ["big"], OFFSET: [14]})
    before = LakeBefore(lambda keys, names: (rows, np.flatnonzero(keys[0].to_numpy() == 1)), [], 15)
    changes = pa.table(
        {
            "offset": pa.array([16, 17], pa.int64()),
            "op": ["u", "c"],
            "origin": ["log", "log"],
            "unchanged": pa.array([["big"], ["v", "big"]], pa.list_(pa.string())),
            "moved": [False, True],
            "k0": pa.array([1, 2], pa.int64()),
            "m0": pa.array([None, 1], pa.int64()),
            "v0": pa.array([1, 2], pa.int64()),
            "v1": pa.array(["newer", None], pa.string()),
            "v2": pa.nulls(2, pa.string()),
        }
    )
    filled = FormerValues(schema, [], before).fill(changes).to_pylist()
    assert [(row["v1"], row["v2"], row["unchanged"]) for row in filled] == [("newer", "big", None)] * 2


def test_rows_are_taken_from_a_table_that_takes_no_writes_of_ours(world: World, soak_seed: int) -> None:
    world.lake.source.dump_chunk()
    world.lake.source.build.seal()
    world.merge()
    change_and_dump(world, random.Random(soak_seed))
    before = at_once(world.lines())
    open_delta(world.lake.table).alter.set_table_properties({"delta.appendOnly": "true"})
    assert at_once(world.lines()) == before


def test_a_table_that_is_not_read_here_gives_no_rows(world: World, soak_seed: int) -> None:
    change_and_dump(world, random.Random(soak_seed))
    add_metadata(world.lake.open(), {"delta.columnMapping.mode": "by guess"})
    with pytest.raises(TableRefused, match="its column mapping is by guess"):
        world.lines()


@pytest.mark.parametrize("key", [("id",), ()])
def test_lines_that_need_no_former_values_are_in_the_order_of_the_log(
    tmp_path: Path, parts: bool, key: tuple[str, ...]
) -> None:
    """So their files' statistics say which offsets they have."""
    schema = table("items", key=key, id=pa.int64(), v=pa.string(), big=pa.string())
    build = SegmentBuilder(Staging(str(tmp_path / "staging"), source="shop"))
    for number in range(60):
        build.line(schema, "c" if number < 20 else "u", after={"id": number % 20, "v": f"v{number}", "big": None})
        if number % 10 == 9:
            build.seal()
    build.truncate(schema)
    build.seal()
    work = merge_plan.plan_works(build.staging.manifests(), lambda table: 0)[str(schema.table)]
    history = make_history(tmp_path, schema)
    shape = history.refresh()
    lines = history_lines.make_lines(build.staging, work, schema, (), shape, LakeBefore(None, [], 0))
    history.append(lines, APP, 61)
    told = read_rows(tmp_path / "history")
    assert [row[OFFSET] for row in told] == list(range(1, 62)) and told[-1]["_dblog_op"] == "t"
    assert [row["v"] for row in told[:60]] == [f"v{number}" for number in range(60)]
    adds = [action["add"] for action in commit_of(tmp_path / "history", 1) if "add" in action]
    ends = sorted((s["minValues"][OFFSET], s["maxValues"][OFFSET]) for s in (orjson.loads(a["stats"]) for a in adds))
    assert (len(ends) > 1) == parts and all(a[1] < b[0] for a, b in pairwise(ends))


def add_metadata(table: OpenTable, properties: dict[str, str]) -> None:
    """Somebody gives the table these properties."""
    table.look()
    metadata = table.snapshot.metadata
    action = {"metaData": {**metadata, "configuration": {**metadata["configuration"], **properties}}}
    assert table.files.create(f"_delta_log/{table.snapshot.version + 1:020d}.json", orjson.dumps(action) + b"\n")
