"""Buckets of keys that follow their order: every row has one, equal keys share it, and all have about as many rows."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.lake_engine.merging.spreading.key_ranges import KeyRanges, key_places

COUNT = 16


def _uuid_like(dice: random.Random, number: int) -> str:
    return f"{dice.getrandbits(128):032x}"


VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "int64": (pa.int64(), lambda dice, number: number * 3 - 20_000),
    "int16": (pa.int16(), lambda dice, number: number - 5_000),
    "uint32": (pa.uint32(), lambda dice, number: number + 2**31),
    "date": (pa.date32(), lambda dice, number: dt.date(1970, 1, 1) + dt.timedelta(days=number)),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        lambda dice, number: dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number),
    ),
    "random text": (pa.string(), _uuid_like),
    "counted text": (pa.string(), lambda dice, number: f"customer-é-{number:09}"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_buckets_have_about_as_many_rows_each(kind: str) -> None:
    dice = random.Random(kind)
    arrow, make = VALUES[kind]
    values = sorted(make(dice, number) for number in range(10_000))
    ranges = KeyRanges.of_sample(pa.array(values[::10], arrow), COUNT)
    assert ranges is not None and len(ranges.bounds) == COUNT - 1
    shuffled = pa.array(dice.sample(values, len(values)), arrow)
    numbers = ranges.numbers(shuffled)
    assert numbers.min() >= 0 and numbers.max() < COUNT
    sizes = np.bincount(numbers, minlength=COUNT)
    assert sizes.max() < 1.5 * len(values) / COUNT, sizes
    again = ranges.numbers(shuffled.slice(17, 900))
    assert (again == numbers[17:917]).all(), "the bucket of a key depends on the key alone"


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(20, 0), pa.binary(), pa.bool_()])
def test_keys_without_a_place_are_told_by_their_hash(kind: pa.DataType) -> None:
    assert KeyRanges.of_sample(pa.nulls(10, kind), COUNT) is None


def test_texts_shorter_than_the_prefix_and_beyond_it_have_a_place() -> None:
    texts = pa.array(["", "a", "customer-", "customer-1", "zzz", "customer-" + "x" * 100])
    places = key_places(texts, len("customer-"))
    assert len(places) == 6 and (places >= 0).all()
    assert places[3] > places[2] == places[0] == places[1]
