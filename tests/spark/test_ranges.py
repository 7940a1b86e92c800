"""Ranges hold every key of a batch, whatever its type; where the keys lie in clusters, they leave the gaps out."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.delta_tables import key_ranges
from spark_jobs.merging.with_spark.batch import measure_rows
from tests.spark.segments import table

_DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KINDS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int8": (pa.int8(), lambda n: n % 200 - 100),
    "int64": (pa.int64(), lambda n: n * 2**40 - 2**60),
    "decimal": (pa.decimal128(38, 2), lambda n: decimal.Decimal(n * 10**20 - 7) / 100),
    "text": (pa.string(), lambda n: f"é{n:08d}"),
    "date": (pa.date32(), lambda n: dt.date(1, 1, 1) + dt.timedelta(days=n % 3_000_000)),
    "timestamp": (pa.timestamp("us"), lambda n: _DAY.replace(tzinfo=None) + dt.timedelta(microseconds=n)),
    "instant": (pa.timestamp("us", tz="UTC"), lambda n: _DAY + dt.timedelta(seconds=n)),
}


def _of(kind: pa.DataType, values: list[Any]) -> key_ranges.Ranges:
    schema = table("t", id=kind)
    keys = pa.StructArray.from_arrays([pa.array(values, kind)], names=["id"])
    return key_ranges.of_keys(keys, schema)["id"]


def _clusters(dice: random.Random) -> list[int]:
    """A few places far from each other, with some keys around each; or keys all over."""
    places = [dice.randrange(2_000_000) for _ in range(dice.choice((1, 2, 5, 30)))]
    width = dice.choice((1, 50, 500_000))
    return [max(0, dice.choice(places) + dice.randrange(-width, width)) for _ in range(dice.choice((1, 2, 100)))]


@pytest.mark.parametrize("name", KINDS)
def test_every_key_lies_in_a_range(name: str) -> None:
    kind, value = KINDS[name]
    dice = random.Random(name)
    for _ in range(60):
        values = [value(n) for n in _clusters(dice)]
        ranges_of_values = _of(kind, values)
        ends = [end for low_high in ranges_of_values for end in low_high]
        assert ends == sorted(ends) and len(ranges_of_values) <= key_ranges.MOST
        assert (ends[0], ends[-1]) == (min(values), max(values))
        assert all(any(low <= v <= high for low, high in ranges_of_values) for v in values)
        assert set(ends) <= set(values), "an end that is no key opens a file for nothing"


@pytest.mark.parametrize("name", ["int64", "decimal", "text", "timestamp", "instant"])
def test_clusters_have_a_range_each_and_keys_all_over_have_one(name: str) -> None:
    kind, value = KINDS[name]
    clusters = [value(place + n) for place in (0, 400_000, 999_000) for n in (0, 1, 7)]
    assert _of(kind, clusters) == tuple((value(p), value(p + 7)) for p in (0, 400_000, 999_000))
    if name != "text":  # digits leave gaps among bytes
        assert len(_of(kind, [value(n * 1000) for n in range(1000)])) == 1


def test_the_parts_of_a_key_that_follow_the_first_have_their_ends() -> None:
    schema = table("t", key=("a", "b", "c"), a=pa.int64(), b=pa.binary(), c=pa.string())
    keys = pa.StructArray.from_arrays(
        [pa.array([1, 10**9]), pa.array([b"x", b"y"]), pa.array(["é", "a"])], names=["a", "b", "c"]
    )
    assert key_ranges.of_keys(keys, schema) == {"a": ((1, 1), (10**9, 10**9)), "c": (("a", "é"),)}


def test_times_that_python_does_not_have_are_left_unbounded() -> None:
    schema = table("t", id=pa.timestamp("us"))
    keys = pa.StructArray.from_arrays([pa.array([-(2**60), 0]).view(pa.timestamp("us"))], names=["id"])
    assert key_ranges.of_keys(keys, schema) == {}


def test_a_part_of_a_key_that_has_no_ranges_is_left_out_where_spark_measures_the_batch(spark: SparkSession) -> None:
    schema = table("t", key=("id", "part"), id=pa.int64(), part=pa.bool_(), v=pa.string())
    keys = pa.StructArray.from_arrays([pa.array([3, 5]), pa.array([True, False])], names=["id", "part"])
    columns = {name: pa.nulls(2, pa.string()) for name in ("position", "unchanged_toast", "row")}
    origin = {"op": pa.array(["p", "p"]), "origin": pa.array(["log", "log"]), "inserted": pa.array([True, True])}
    batch = measure_rows(spark.createDataFrame(pa.table({"key": keys, **origin, **columns})), schema)
    assert (batch.count, batch.ranges) == (2, {"id": ((3, 5),)})
