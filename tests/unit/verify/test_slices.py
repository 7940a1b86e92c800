"""Slices of tables: N in a row reach every key, wherever they begin and however the tables grow meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog_core.dumps.key_ranges import Range
from dblog_core.errors import RequestError
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json
from dblog_core.state.memory import MemoryState
from dblog_core.verify.slices import MAX_SLICES, Slice, Slices, to_json_ranges
from tests.unit import requests_world
from tests.unit.requests_world import CUSTOMS, LINES, ORDERS, World

CHUNK = 10


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return requests_world.make(tmp_path, monkeypatch)


def run_slice(world: World, schema: TableSchema, number: int, of: int, *, done: bool = True) -> list[Range]:
    """One run of a slice; its ranges."""
    slices = Slices(MemoryState(shared=world.state), Slice(number, of), smallest=CHUNK)
    reader = requests_world.Reader(world)
    ranges = slices.ranges(reader, schema)
    if done:
        slices.record_compared_slice(reader, schema)
    return ranges


def inside(keys: Iterable[Key], parts: list[Range], schema: TableSchema) -> set[Key]:
    """Those of the keys that lie in the ranges; none lies in two."""
    ends = [[None if end is None else key_from_json(end, schema) for end in (p.after, p.key_to)] for p in parts]
    covered = [k for k in keys for a, upto in ends if (a is None or k > a) and (upto is None or k <= upto)]
    assert len(covered) == len(set(covered))
    return set(covered)


@pytest.mark.parametrize("schema", [ORDERS, LINES, CUSTOMS], ids=lambda s: s.table.name)
def test_slices_together_have_every_key_once(world: World, schema: TableSchema) -> None:
    keys: dict[TableSchema, list[Key]] = {
        ORDERS: [(n,) for n in range(1000)],
        LINES: [(n, f"{m}") for n in range(250) for m in range(4)],
        CUSTOMS: [(f"c{n:04d}",) for n in range(1000)],
    }
    world.fill(schema, keys[schema])
    parts = [run_slice(world, schema, number, 7) for number in range(1, 8)]
    covered = [inside(keys[schema], part, schema) for part in parts]
    shares = sorted(map(len, covered))
    assert sum(shares) == len(keys[schema]) == len(set.union(*covered))
    if schema is ORDERS:
        assert shares[0] >= 100 and shares[-1] <= 300, "the load is spread"
    else:  # text is not ordered alike in lake and database: the table is in one slice
        assert shares == [0] * 6 + [1000]
        assert to_json_ranges(next(part for part in parts if part)) == ()


def test_all_of_a_small_table_is_in_the_first_slice_and_large_ones_are_spread(world: World) -> None:
    """Who takes a few slices knows which of them look at small tables: all others would find nothing of them."""
    world.fill(ORDERS, [(n,) for n in range(3 * CHUNK)])
    world.fill(CUSTOMS, [("a",), ("b",)])
    assert [bool(run_slice(world, CUSTOMS, number, 5)) for number in range(1, 6)] == [True] + 4 * [False]
    assert [len(run_slice(world, ORDERS, number, 5)) for number in (2, 3, 4, 5, 1)] == [0, 0, 0, 0, 4]
    tables = [requests_world.table(f"t{n}", ("code",), code=pa.string()) for n in range(40)]
    for schema in tables:  # of one range each, since lake and database order text otherwise
        world.database.schemas[schema.table] = schema
        world.fill(schema, [(f"c{n}",) for n in range(5 * CHUNK)])
    loads = [sum(len(run_slice(world, schema, number, 5)) for schema in tables) for number in range(1, 6)]
    assert sum(loads) == len(tables) and min(loads) > 0


def test_a_small_table_that_has_grown_is_spread_once_the_first_slice_has_compared_it(world: World) -> None:
    world.fill(ORDERS, [(n,) for n in range(2 * CHUNK)])
    assert len(run_slice(world, ORDERS, 1, 5)) == 3
    world.fill(ORDERS, [(n,) for n in range(20 * CHUNK)])
    assert [len(run_slice(world, ORDERS, number, 5)) for number in (2, 3, 4, 5)] == [0, 0, 0, 0]
    assert len(run_slice(world, ORDERS, 1, 5)) == 3, "its last range has what it has grown by"
    assert min(len(run_slice(world, ORDERS, number, 5)) for number in range(1, 6)) > 0


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 200), st.sampled_from((0, 2, 8)))
def test_any_n_slices_in_a_row_have_compared_every_key_that_was_there_before(
    seed: int, of: int, rows: int, growth: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = requests_world.make(Path("unused"), patch)
        chance = random.Random(seed)
        highest = rows
        world.fill(ORDERS, [(n,) for n in range(rows)])
        compared: list[set[Key]] = []
        tables: list[set[Key]] = []
        for run in range(4 * of):
            keys = set(world.database.rows.get(ORDERS.table, {}))
            tables.append(keys)
            if chance.random() < 0.1:
                run_slice(world, ORDERS, run % of + 1, of, done=False)  # it failed, and is run again
            parts = run_slice(world, ORDERS, run % of + 1, of)
            compared.append(inside(keys, parts, ORDERS))
            highest += chance.randrange(growth * CHUNK + 1)
            deleted = set(chance.sample(sorted(keys), len(keys) // 20))
            world.fill(ORDERS, sorted({*keys, *((n,) for n in range(highest))} - deleted))
        for first in range(3 * of + 1):
            window = set().union(*compared[first : first + of])
            stayed = set.intersection(*tables[first : first + of])
            assert stayed <= window, f"from run {first} on"


def test_a_table_that_grows_is_cut_behind_its_last_cut(world: World) -> None:
    world.fill(ORDERS, [(n,) for n in range(100)])
    before = [part for number in range(1, 6) for part in run_slice(world, ORDERS, number, 5)]
    world.fill(ORDERS, [(n,) for n in range(3_000)])
    for _ in range(2):
        after = [part for number in range(1, 6) for part in run_slice(world, ORDERS, number, 5)]
    assert {p.key_to for p in before} - {None} <= {p.key_to for p in after}, "no cut is moved"
    width = max((p.key_to or 3_000) - (p.after or 0) for p in after)
    assert width <= 100, "and no range has grown"


def test_another_number_of_slices_or_another_key_cuts_anew(world: World) -> None:
    world.fill(ORDERS, [(n,) for n in range(1000)])
    assert len([p for number in range(1, 5) for p in run_slice(world, ORDERS, number, 4)]) <= 5
    assert len([p for number in range(1, 11) for p in run_slice(world, ORDERS, number, 10)]) >= 10


@pytest.mark.parametrize("text", ["0/3", "4/3", f"1/{MAX_SLICES + 1}", "3", "a/b", "-1/3", ""])
def test_a_slice_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="slice"):
        Slice.parse(text)
    assert Slice.parse("3/30") == Slice(3, 30)


def test_ranges_travel_as_pairs_and_a_whole_table_as_none() -> None:
    assert to_json_ranges([Range(after=None, key_to=5), Range(after=9, key_to=None)]) == ((None, 5), (9, None))
    every: list[Any] = [Range()]
    assert to_json_ranges(every) == ()
