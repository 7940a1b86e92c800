"""Which bucket a key is in: equal keys of every type in the same, linked keys too, and all keys spread over them."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.verify.judge.bucketed_rows import BucketedRows, Placement
from dblog_core.verify.judge.hashed_rows import KEY, make_keys

MOMENT = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int16(), [0, 1, -1, 32767]),
    (pa.int64(), [0, 1, -1, 2**62]),
    (pa.bool_(), [True, False, True, False]),
    (pa.decimal128(38, 2), [Decimal(0), Decimal(1), Decimal("-0.01"), Decimal(10) ** 30]),
    (pa.float32(), [0.0, 0.5, math.nan, -math.inf]),
    (pa.float64(), [0.0, 0.1, math.nan, -math.inf]),
    (pa.string(), ["", "a", "ä", "x" * 3000]),
    (pa.binary(), [b"", b"a", b"\0", b"\xff" * 3000]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31), dt.date(2026, 1, 31)]),
    (pa.timestamp("us"), [MOMENT.replace(tzinfo=None, year=1 + n) for n in range(4)]),
    (pa.timestamp("us", tz="UTC"), [MOMENT.replace(year=1 + n) for n in range(4)]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_equal_keys_have_one_number_however_they_lie_and_others_another(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([pa.field("a", kind), pa.field("n", pa.int64())])
    rows = [(value, number) for value in [*values, None] for number in (1, None, 2)]
    keys = make_keys([pa.array([v for v, _ in rows], kind), pa.array([n for _, n in rows], pa.int64())], schema)
    words = Placement(7).words(keys)
    for start in range(len(rows)):
        assert (Placement(7).words(keys.slice(start)) == words[start:]).all()
    backwards = pa.concat_tables([keys.slice(i, 1) for i in reversed(range(len(rows)))])
    assert (Placement(7).words(backwards) == words[::-1]).all()
    distinct = {row for row in rows if None not in row}
    assert len(set(words.tolist())) >= len({(repr(v), n) for v, n in distinct})


def test_floats_that_a_source_takes_for_equal_are_in_one_bucket() -> None:
    keys = make_keys([pa.array([0.0, -0.0, math.nan, -math.nan])], pa.schema([pa.field("a", pa.float64())]))
    words = Placement(2).words(keys).tolist()
    assert words[0] == words[1] != words[2] == words[3]


@pytest.mark.parametrize("stride", [1, 1024, 2**40])
def test_keys_are_spread_over_buckets_and_parts(stride: int) -> None:
    keys = pa.table({"id": pa.array(np.arange(10_000) * stride)})
    placement = Placement(10)
    both = placement.buckets(keys) * 5 + placement.parts(keys, 5)
    assert np.bincount(both, minlength=50).min() > 120 and np.bincount(both).max() < 280


@pytest.mark.parametrize("seed", range(10))
def test_linked_keys_are_together_and_no_others(seed: int) -> None:
    """Whatever they were linked with before, in whichever order."""
    dice = random.Random(seed)
    group = {key: {key} for key in range(60)}
    placement = Placement(50)
    for _ in range(4):
        pairs = [(dice.randrange(60), dice.randrange(60)) for _ in range(dice.randrange(12))]
        for old, new in pairs:
            joined = group[old] | group[new]
            group.update(dict.fromkeys(joined, joined))
        old_keys, new_keys = (pa.table({"id": pa.array([p[i] for p in pairs], pa.int64())}) for i in (0, 1))
        placement = placement.with_links(old_keys, new_keys)
        words = placement.words(pa.table({"id": list(range(60))})).tolist()
        for a in range(60):
            assert [words[a] == words[b] for b in range(60)] == [b in group[a] for b in range(60)]


def test_rows_that_are_moved_to_a_later_placement_are_all_there_in_their_order() -> None:
    rows = pa.table({f"{KEY}id": pa.array([n % 10 for n in range(100)]), "n": pa.array(range(100))})
    placement = Placement(4)
    sorted_rows = BucketedRows(placement, pa.schema([("id", pa.int64())]))
    sorted_rows.extend(rows.slice(start, 9) for start in range(0, 100, 9))
    later = placement.with_links(pa.table({"id": [0, 1, 2]}), pa.table({"id": [1, 2, 3]}))
    moved = sorted_rows.move(later)
    for bucket in range(4):
        parts = [table for part in range(3) for table in moved.read(bucket, part, 3)]
        everything = list(moved.read(bucket))
        together = pa.concat_tables([rows.slice(0, 0), *everything])
        assert sorted(together["n"].to_pylist()) == sorted(n for t in parts for n in t["n"].to_pylist())
        for key in range(10):
            expected = list(range(key, 100, 10))
            found = [row["n"] for row in together.to_pylist() if row[f"{KEY}id"] == key]
            is_here = later.buckets(pa.table({"id": [key]}))[0] == bucket
            assert found == (expected if is_here else [])
