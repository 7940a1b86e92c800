"""The lake beside what the source has said: every key as it is, with staged changes on top and some under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import read_status
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_to_json
from dblog_core.rows.row_hashes import HASH
from dblog_core.verify.judge.comparison import Comparison, Verdict
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin
from tests.plain_hashes import row_hash
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table
from tests.spooled_rows import spool_rows

pytestmark = pytest.mark.one_of(8)

T = table("t", id=pa.int64(), v=pa.string(), big=pa.string())


def row(key: int, v: str = "old", big: str | None = "big") -> Row:
    return {"id": key, "v": v, "big": big}


class World:
    """A lake, and a verification that says what the source has."""

    def __init__(self, lake: TestLake, schema: TableSchema = T) -> None:
        self.lake = lake
        self.schema = schema
        self.build = lake.build
        self.judge = Judge(lake.staging, lake.location)

    def pin(self) -> Pin:
        status = read_status(self.lake.location)
        version = log.version(self.lake.table(self.schema))
        assert status is not None and version is not None
        table_status = status.tables[str(self.schema.table)]
        return Pin(version, table_status.offset, table_status.segment, self.build.offset)

    def sql(self, statement: str) -> None:
        """Somebody else changes the lake table."""
        self.lake.spark.sql(statement.replace("{}", f"delta.`{self.lake.table(self.schema)}`"))

    def reading(
        self, rows: Sequence[Row], *, since: int, pin: Pin | None, absent: Sequence[int] | None = None
    ) -> Comparison:
        """The source has these rows; with `absent` they were asked for by key, and it lacks those."""
        hashes = [row_hash(self.schema, r) for r in rows] + [None] * len(absent or ())
        keys = [r["id"] for r in rows] + list(absent or ())
        batch = pa.record_batch({"id": pa.array(keys, pa.int64()), HASH: pa.array(hashes, pa.int64())})
        read = (spool_rows(batch),)
        return Comparison(self.schema, pin, read, since, self.build.offset, for_chosen_keys=absent is not None)

    def compare(self, comparison: Comparison) -> Verdict:
        """The judge's verdict; keys of a kind in any order."""
        verdict = self.judge.compare(comparison)
        lists = ("missing", "extra", "different", "undecided", "twice")
        return replace(verdict, **{name: tuple(sorted(getattr(verdict, name), key=repr)) for name in lists})


@pytest.fixture
def world(lake: TestLake) -> World:
    return World(lake)


def test_a_lake_that_somebody_changed_is_found_key_by_key(world: World) -> None:
    build = world.build
    for key in range(1, 10):
        build.create(T, row(key))
    build.seal()
    world.lake.merge_well()
    world.sql("UPDATE {} SET v = 'other' WHERE id = 4")
    world.sql("DELETE FROM {} WHERE id = 5")
    world.sql("INSERT INTO {} SELECT 99L, v, big, NULL, _dblog_position, _dblog_commit_time, 'log' FROM {} WHERE id=1")
    world.sql("INSERT INTO {} SELECT * FROM {} WHERE id = 6")
    # Staged, and not merged yet.
    build.update(T, row(2, "new", None), unchanged=["big"])
    build.delete(T, {"id": 3})
    build.create(T, row(10))
    build.move(T, {"id": 7}, row(70, "moved", None), unchanged=["big"])
    build.chunk(T, [row(8)])
    build.seal()
    source = [row(1), row(2, "new"), *(row(k) for k in (4, 5, 6, 8, 9, 10)), row(70, "moved")]
    verdict = world.compare(world.reading(source, since=build.offset, pin=world.pin()))
    assert (verdict.missing, verdict.extra, verdict.different, verdict.twice) == ((5,), (99,), (4,), (6,))
    assert (verdict.undecided, verdict.rows, verdict.lake_rows) == ((), 9, 10)

    some = world.compare(world.reading([row(4), row(1)], since=build.offset, pin=world.pin(), absent=[99, 3]))
    assert (some.missing, some.extra, some.different, some.twice) == ((), (99,), (4,), ())

    # Key 70 has a value of a row that is not asked for.
    moved = world.reading([row(70, "moved"), row(8), row(10)], since=build.offset, pin=world.pin(), absent=[1000])
    assert world.compare(moved) == Verdict(rows=3, lake_rows=3, staged=6)

    forged = world.pin()
    world.sql("UPDATE {} SET _dblog_offset = 1000000, v = 'forged' WHERE id = 2")
    pinned = replace(forged, version=forged.version + 1)
    second_verdict = world.compare(world.reading([row(2, "new")], since=build.offset, pin=pinned, absent=[]))
    assert second_verdict.different == (), "what is staged is newer than an offset that cannot be"


def test_what_a_row_of_the_lake_holds_counts_up_to_its_offset(world: World) -> None:
    """A row that a merge under way has written has the events up to its offset. Somebody else's row with such an offset
    is taken at its word: its values are never called those that the log has told before."""
    build = world.build
    for key in range(1, 5):
        build.create(T, row(key))
    build.seal()
    world.lake.merge_well()
    pin = world.pin()
    # All that follows is staged, and the first part of it is in the lake: its merge is not recorded yet.
    for key in (1, 2):
        build.update(T, row(key, "known", "known"))
    build.move(T, {"id": 3}, row(30, "moved", None), unchanged=["big"])
    merged = build.offset
    for key, big in ((1, "forged"), (2, "known")):
        world.sql(f"UPDATE {{}} SET v = 'known', big = '{big}', _dblog_offset = {merged - 2} WHERE id = {key}")
    world.sql(f"UPDATE {{}} SET id = 30, v = 'moved', _dblog_offset = {merged} WHERE id = 3")
    for key in (1, 2, 30, 4):
        build.update(T, row(key, "new", None), unchanged=["big"])
    build.seal()
    pin = replace(pin, version=world.pin().version, newest=build.offset)
    source = [row(1, "new", "known"), row(2, "new", "known"), row(4, "new"), row(30, "new")]
    verdict = world.compare(world.reading(source, since=build.offset, pin=pin))
    assert (verdict.missing, verdict.extra, verdict.different) == ((), (), (1,))
    rows = pa.RecordBatch.from_pylist(source, schema=T.arrow)
    comparison = Comparison(T, pin, (spool_rows(rows),), build.offset, build.offset, for_chosen_keys=True)
    assert dict(world.judge.find_differing_columns(comparison)) == {1: ("big",), 2: (), 4: (), 30: ()}


def test_keys_that_change_while_they_are_read(world: World) -> None:
    build = world.build
    for key in range(1, 8):
        build.create(T, row(key))
    build.seal()
    world.lake.merge_well()
    build.update(T, row(1, "before the window"))
    since = build.offset
    build.update(T, row(1, "a"))
    build.update(T, row(2, "a"))
    build.update(T, row(2, "b"))
    build.delete(T, {"id": 3})
    build.delete(T, {"id": 4})
    build.create(T, row(4, "again"))
    build.update(T, row(5, "a"))
    build.update(T, row(6, "a", None), unchanged=["big"])
    build.create(T, row(8))
    build.seal()
    # The source was read before, between and after the changes; 5 and 6 show a value that the log never told of.
    source = [row(1, "before the window"), row(2, "a"), row(3), row(5, "never"), row(6, "a", "never"), row(7)]
    comparison = world.reading(source, since=since, pin=world.pin())
    verdict = world.compare(comparison)
    assert (set(verdict.undecided), verdict.missing, verdict.extra, verdict.different) == ({5, 6}, (), (), ())

    mutant = world.compare(replace(comparison, since=comparison.upto))
    assert mutant.different and mutant.missing, "who takes every event for seen raises a false alarm"
    build.truncate(T)
    build.create(T, row(1, "anew"))
    build.seal()
    emptied = world.reading([row(1, "anew"), row(2, "b"), row(4, "never")], since=since, pin=world.pin())
    after = world.compare(emptied)
    assert (after.undecided, after.missing, after.extra, after.different) == ((4,), (), (), ()), (
        "some before, some after"
    )


def test_a_table_that_is_stopped_or_missing_is_taken_as_it_is(world: World) -> None:
    build = world.build
    build.create(T, row(1))
    build.seal()
    world.lake.merge_well()
    build.create(T, row(2))
    build.seal()
    comparison = world.reading([row(1), row(2)], since=build.offset, pin=replace(world.pin(), stopped=True))
    assert world.compare(comparison).missing == (2,)
    assert world.compare(replace(comparison, pin=None)).missing == (1, 2)


def test_only_what_lies_within_the_ranges_is_compared(lake: TestLake) -> None:
    """Without a file of the source all that the lake has there is extra; Python orders these keys as databases do."""
    schema = table("k", key=("x", "y"), x=pa.int64(), y=pa.binary(), v=pa.string())
    keys = [(x, y) for x in range(-2, 3) for y in (b"", b"\x00", b"\x7f", b"\x80", b"\xff")]
    world = World(lake, schema)
    for x, y in keys[:-3]:
        world.build.create(schema, {"x": x, "y": y, "v": "old"})
    world.build.seal()
    lake.merge_well()
    for x, y in keys[-3:]:
        world.build.create(schema, {"x": x, "y": y, "v": "staged"})
    world.build.seal()
    ends = [((None, (-1, b"\x7f")), ((1, b"\x80"), None)), (((0, b""), (0, b"\xff")),)]
    for ranges in ends:
        within = tuple((a and key_to_json(a), b and key_to_json(b)) for a, b in ranges)
        comparison = Comparison(schema, world.pin(), (), world.build.offset, world.build.offset, within=within)
        expected = [k for k in keys for a, b in ranges if (a is None or k > a) and (b is None or k <= b)]
        assert sorted(world.compare(comparison).extra) == sorted(map(key_to_json, expected))


def test_a_row_of_the_lake_with_null_in_its_key_is_extra(lake: TestLake) -> None:
    """Another program has written it. In ranges, NULL comes before all values."""
    schema = table("k", key=("x", "y"), x=pa.int64(), y=pa.int32(), v=pa.string())
    world = World(lake, schema)
    for x in (1, 2, 3):
        world.build.create(schema, {"x": x, "y": 1, "v": "old"})
    world.build.seal()
    lake.merge_well()
    strangers = "(NULL, NULL, 'a'), (2, NULL, 'b'), (NULL, 1, 'c'), (NULL, 1, 'd')"
    world.sql(f"INSERT INTO {{}} (x, y, v) VALUES {strangers}")

    def compare(*, keys: list[Any] | None = None, within: tuple[Any, ...] = ()) -> Verdict:
        rows = [{"x": x, "y": 1, "v": "old"} for x in (1, 2, 3)] if keys is None else []
        columns = list(zip(*([(r["x"], r["y"]) for r in rows] if keys is None else keys), strict=True))
        hashes = [row_hash(schema, r) for r in rows] or [None] * len(keys or ())
        arrays = [pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.int32()), pa.array(hashes, pa.int64())]
        read = () if within else (spool_rows(pa.record_batch(arrays, names=["x", "y", HASH])),)
        offset = world.build.offset
        chosen = keys is not None
        return world.compare(
            Comparison(schema, world.pin(), read, offset, offset, for_chosen_keys=chosen, within=within)
        )

    answer = compare()
    assert (set(map(tuple, answer.extra)), answer.twice) == ({(None, None), (2, None)}, ([None, 1],))
    assert (answer.rows, answer.lake_rows, answer.missing, answer.different) == (3, 7, (), ())
    again = compare(keys=[[None, None], [2, None], [None, 1]])
    assert (set(map(tuple, again.extra)), again.twice) == ({(None, None), (2, None)}, ([None, 1],))
    first = compare(within=((None, [2, 0]),))
    assert set(map(tuple, first.extra)) == {(None, None), (1, 1), (2, None)} and first.twice == ([None, 1],)
    last = compare(within=(([2, 0], None),))
    assert (set(map(tuple, last.extra)), last.twice) == ({(2, 1), (3, 1)}, ())
