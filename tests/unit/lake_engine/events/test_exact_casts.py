"""A value becomes the same value of the lake's type, or stops the table with its name."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.errors import LakeError
from dblog_core.lake_engine.events.exact_casts import cast_exactly
from dblog_core.model.schema import TableName

D = Decimal
BEFORE_1970, LAST_DAY, MIDNIGHT = dt.datetime(1969, 12, 31), dt.datetime(9999, 12, 31), dt.datetime(2024, 1, 1)  # noqa: DTZ001
NO_INTEGERS = ["", " 5", "05", "+5", "-0", "5.0", "1e3", "0x1", "a", "٣", "1_000", "9223372036854775808"]
CASES: list[tuple[pa.DataType, pa.DataType, dict[Any, Any], list[Any]]] = [
    (pa.int64(), pa.int8(), {-128: -128, 127: 127, 0: 0}, [128, -129, 2**63 - 1, -(2**63)]),
    (pa.int32(), pa.int16(), {-32768: -32768}, [32768, -32769]),
    (pa.int64(), pa.decimal128(5, 2), {999: D("999.00"), -999: D("-999.00")}, [1000, -1000, 2**63 - 1]),
    (pa.int8(), pa.decimal128(2, 0), {99: D(99)}, [100, -100]),
    (pa.int64(), pa.decimal128(38, 20), {2**40: D(2**40)}, [2**63 - 1, -(2**63)]),
    (pa.decimal128(20, 4), pa.int32(), {D("7.0000"): 7, D(-(2**31)): -(2**31)}, [D("7.0001"), D(2**31)]),
    (pa.decimal128(38, 0), pa.int64(), {D(2**63 - 1): 2**63 - 1}, [D(2**63), D(-(2**63) - 1)]),
    (pa.decimal128(20, 4), pa.decimal128(6, 2), {D("9999.9900"): D("9999.99")}, [D(10000), D("0.0010")]),
    (pa.decimal128(10, 0), pa.decimal128(10, 4), {D(999999): D(999999)}, [D(1000000)]),
    (pa.string(), pa.int32(), {"0": 0, "-5": -5, "2147483647": 2147483647}, ["2147483648", *NO_INTEGERS]),
    (pa.string(), pa.int64(), {"-9223372036854775808": -(2**63)}, NO_INTEGERS),
    (pa.int64(), pa.string(), {-(2**63): "-9223372036854775808", 0: "0", 1_000_000: "1000000"}, []),
    (pa.int64(), pa.float64(), {2**53: 2.0**53, 2**62: 2.0**62, -(2**63): -(2.0**63)}, [2**53 + 1, 2**63 - 1]),
    (pa.int32(), pa.float32(), {2**24: 2.0**24, 2**30: 2.0**30, -(2**31): -(2.0**31)}, [2**24 + 1, 2**31 - 1]),
    (pa.float64(), pa.float32(), {0.5: 0.5, float("inf"): float("inf")}, [0.1, 1e300, 2.0**24 + 1]),
    (
        pa.timestamp("us"),
        pa.date32(),
        {BEFORE_1970: BEFORE_1970.date(), LAST_DAY: LAST_DAY.date()},
        [BEFORE_1970 + dt.timedelta(days=1, microseconds=-1), MIDNIGHT + dt.timedelta(microseconds=1)],
    ),
]
"""A type, the lake's, values with what they become, and values that are none of it."""
TABLE = TableName("shop", "t")


def cast(values: list[Any], from_type: pa.DataType, to_type: pa.DataType, *, first: int = 1) -> list[Any]:
    halves = [pa.array(values[i::2], from_type) for i in range(2)]
    column = pa.chunked_array(halves, from_type)
    offsets = pa.array(range(first, first + len(values)), pa.int64())
    cast_values = cast_exactly(column, to_type, table=TABLE, name="n", offsets=offsets)
    assert cast_values.type == to_type
    back: list[Any] = cast_values.to_pylist()
    return back


@pytest.mark.parametrize(("from_type", "to_type", "fits", "misfits"), CASES)
def test_a_value_is_the_same_or_none(
    from_type: pa.DataType, to_type: pa.DataType, fits: dict[Any, Any], misfits: list[Any]
) -> None:
    values = [*fits, None]
    halves = [*values[::2], *values[1::2]]
    expected = [None if value is None else fits[value] for value in halves]
    back = cast(values, from_type, to_type)
    assert back == expected and list(map(type, back)) == list(map(type, expected))
    for misfit in misfits:
        with pytest.raises(LakeError, match="column n: the value at offset"):
            cast([*fits, misfit, None], from_type, to_type)


def test_nan_and_a_negative_zero_stay_so() -> None:
    assert list(map(repr, cast([float("nan"), -0.0], pa.float64(), pa.float32()))) == ["nan", "-0.0"]


def test_no_value_is_any(soak_seed: int) -> None:
    assert cast([], pa.int64(), pa.int8()) == []
    assert cast([None, None, None], pa.string(), pa.int32()) == [None, None, None]


def test_the_first_value_that_does_not_fit_is_named(soak_seed: int) -> None:
    dice = random.Random(soak_seed)
    for _ in range(20):
        count = dice.randrange(1, 70)
        wrong = sorted(dice.sample(range(count), dice.randrange(1, min(count, 4) + 1)))
        values = pa.chunked_array([[300 if i in wrong else i for i in range(count)]], pa.int64())
        offsets = pa.chunked_array([pa.array([1000 + 3 * i for i in range(count)], pa.int64())])
        with pytest.raises(LakeError) as raised:
            cast_exactly(values, pa.int8(), table=TABLE, name="n", offsets=offsets)
        at = 1000 + 3 * wrong[0]
        assert str(raised.value) == (
            f"shop.t: column n: the value at offset {at} is bigint, and fits no tinyint, which the lake has\n"
            "  fix: run `dblog schema accept shop.t`: the lake takes the new shape"
        )
