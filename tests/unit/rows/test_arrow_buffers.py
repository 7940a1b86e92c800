"""Scattered values become arrays by one copy, and none outside of its buffer is read."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.rows import arrow_buffers
from dblog_core.rows.arrow_buffers import gather, repeat_value

RAW = np.frombuffer(b"0123456789", dtype=np.uint8)


def gather_from(places: list[tuple[int, int]]) -> pa.Array:
    starts, lengths = (np.array([place[i] for place in places], dtype=np.int64) for i in (0, 1))
    return gather(RAW, starts, lengths)


def test_values_are_copied_in_their_order_and_a_negative_length_is_null() -> None:
    assert gather_from([]).to_pylist() == []
    whole = gather_from([(8, 2), (0, 0), (3, 4), (0, 10)])
    assert whole.to_pylist() == [b"89", b"", b"3456", b"0123456789"] and whole.null_count == 0
    assert gather_from([(-7, -1), (3, 2), (99, -5)]).to_pylist() == [None, b"34", None]
    draw = random.Random(1)
    places = [(draw.randint(0, 10), draw.randint(-1, 10)) for _ in range(3_000)]
    places = [(start, min(length, 10 - start)) for start, length in places]
    values = gather_from(places)
    assert values.to_pylist() == [None if n < 0 else bytes(RAW[at : at + n]) for at, n in places]
    values.validate(full=True)


@pytest.mark.parametrize("place", [(-1, 1), (10, 1), (0, 11), (2**62, 1), (1, 2**63 - 1)])
def test_a_value_outside_its_buffer_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside its buffer"):
        gather_from([(0, 1), place])


def test_values_that_do_not_fit_one_array_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_buffers, "LARGEST", 19)
    for places in ([(0, 10), (0, 10)], [(0, 10), (0, -1), (0, 10)]):
        with pytest.raises(ValueError, match="20 bytes do not fit one array"):
            gather_from(places)
    assert gather_from([(0, 10), (0, 9)]).to_pylist() == [bytes(RAW), bytes(RAW[:9])]


@pytest.mark.parametrize("value", [pa.scalar("c"), pa.scalar(False), pa.scalar(None, pa.struct([("id", pa.int32())]))])
@pytest.mark.parametrize("count", [0, 1, 4_096, 4_097])
def test_one_value_is_there_as_often_as_it_is_asked_for(value: pa.Scalar, count: int) -> None:
    for _ in range(2):
        repeated = repeat_value(value, count)
        assert repeated.type == value.type and repeated.to_pylist() == [value.as_py()] * count
        assert repeated.null_count == (0 if value.is_valid else count)
