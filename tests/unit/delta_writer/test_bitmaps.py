"""Row sets are sets, and their bytes are Roaring's."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from dblog_core.delta_writer import bitmaps
from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.errors import LakeError

_FAR = 5 << 32  # a second 32-bit bucket


def rows(*numbers: int) -> Rows:
    return np.array(numbers, np.int64)


def random_rows(dice: random.Random) -> set[int]:
    """Sparse containers, dense ones, whole ones, and rows of a second bucket."""
    rows_found: set[int] = set()
    for _ in range(dice.randint(1, 4)):
        base = dice.choice([0, 1, 2, 9, 70_000, _FAR >> 16]) << 16
        count = dice.choice([1, 3, 4095, 4096, 4097, 20_000, 65_536])
        rows_found.update(base + low for low in dice.sample(range(65_536), count))
    return rows_found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.thorough
def test_a_set_grows_and_comes_back_from_its_bytes(seed: int) -> None:
    dice = random.Random(seed)
    model: set[int] = set()
    row_set = RowSet()
    for _ in range(4):
        more = random_rows(dice)
        before = row_set.rows().tolist()
        grown = row_set.with_rows(np.array(dice.sample(sorted(more), len(more)), np.int64))
        assert row_set.rows().tolist() == before, "the set that it was grown from stays"
        model |= more
        row_set = grown
        assert len(row_set) == len(model) and row_set.rows().tolist() == sorted(model)
        back = RowSet.decode(row_set.encode())
        assert back == row_set and back.encode() == row_set.encode()
        numbers_asked = np.array(
            [*dice.sample(sorted(model), min(3, len(model))), *(dice.randrange(_FAR + (1 << 20)) for _ in range(50))]
        )
        assert back.contains(numbers_asked).tolist() == [int(row) in model for row in numbers_asked]


def test_nothing_is_in_an_empty_set() -> None:
    assert not RowSet().contains(rows(0, 1)).any() and len(RowSet().contains(rows())) == 0
    assert RowSet.decode(RowSet().encode()) == RowSet()


def test_a_row_counts_once() -> None:
    assert len(RowSet().with_rows(rows(3, 3, 3)).with_rows(rows(3))) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("below", [9000, 1 << 20, _FAR])
def test_a_small_set_has_the_bytes_and_answers_of_a_large_one(
    count: int, below: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(count)
    numbers = np.array(dice.sample(range(below), count), np.int64)
    asked = np.array([*numbers[:50], *dice.sample(range(below), 50)], np.int64)
    small = RowSet().with_rows(numbers[: count // 2]).with_rows(numbers)
    monkeypatch.setattr(bitmaps, "_FEW", 0)
    large = RowSet().with_rows(numbers)
    assert small.encode() == large.encode()
    assert (len(small), small.last) == (len(large), large.last) == (count, max(numbers.tolist(), default=-1))
    assert small.contains(asked).tolist() == large.contains(asked).tolist()
    assert RowSet.decode(small.encode()) == large == small


def test_who_gets_the_rows_cannot_change_the_set() -> None:
    with pytest.raises(ValueError, match="read-only"):
        RowSet().with_rows(rows(3, 1)).rows()[0] = 2


def test_a_row_below_zero_is_a_defect() -> None:
    with pytest.raises(ValueError, match="-1"):
        RowSet().with_rows(rows(-1))


def portable(*bitmaps: tuple[int, bytes]) -> bytes:
    return struct.pack("<IQ", 1681511377, len(bitmaps)) + b"".join(struct.pack("<I", k) + b for k, b in bitmaps)


def with_runs(containers: dict[int, list[tuple[int, int]]]) -> bytes:
    """A 32-bit bitmap whose containers are all runs: (first row, rows more)."""
    count = len(containers)
    flags = np.packbits(np.ones(count, np.uint8), bitorder="little").tobytes()
    heads = b""
    bodies = []
    for key, runs in containers.items():
        heads += struct.pack("<HH", key, sum(more + 1 for _, more in runs) - 1)
        bodies.append(struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", *run) for run in runs))
    offsets = b"\0" * 4 * count if count >= 4 else b""
    return struct.pack("<I", 12347 | (count - 1) << 16) + flags + heads + offsets + b"".join(bodies)


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_runs_are_read(count: int) -> None:
    """Below four containers such a bitmap has no offsets."""
    data = portable((0, with_runs({key: [(0, 9), (100, 0), (60_000, 5535)] for key in range(count)})))
    row_numbers = [key << 16 | low for key in range(count) for low in (*range(10), 100, *range(60_000, 65_536))]
    assert RowSet.decode(data).rows().tolist() == row_numbers


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<IQ", 1681511376, 0), "it begins with 1681511376"),
        (RowSet().with_rows(rows(1, 2)).encode()[:-1], "buffer"),
        (RowSet().with_rows(rows(1, 2)).encode() + b"\0", "left over"),
        (portable((0, with_runs({0: [(65_535, 1)]}))), "a run ends at 65536"),
        (portable((0, struct.pack("<I", 7))), "a bitmap begins with 7"),
        (portable((1 << 31, with_runs({0: [(0, 0)]}))), "bucket"),
        (portable((0, struct.pack("<IIHHIHH", 12346, 1, 0, 1, 16, 5, 5))), "not in order"),
        (portable((0, struct.pack("<I", 12347) + b"\1" + struct.pack("<HHHHH", 0, 7, 1, 0, 1))), "its head says 8"),
        (b"", "unpack"),
    ],
)
def test_damage_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(LakeError, match=reason):
        RowSet.decode(data, where="table/file")


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 65_535, 65_536, 65_537, 70_000, 200_000])
def test_the_first_rows_are_a_set_like_any_other(count: int) -> None:
    first = RowSet.of_first(count)
    assert first == RowSet().with_rows(np.arange(count)) and len(first) == count and first.last == count - 1
    assert first.encode() == RowSet().with_rows(np.arange(count)).encode()
    assert first.with_rows(rows(count + 3, 3)) == RowSet().with_rows(np.append(np.arange(count), (count + 3, 3)))
    assert len(first) == count
    assert first.contains(rows(0, max(count - 1, 0), count)).tolist() == [count > 0, count > 0, False]


def test_full_containers_of_the_first_rows_are_one_in_memory() -> None:
    containers = RowSet.of_first(1_000_000_000)._containers.values()
    assert len({id(container) for container in containers}) == 2 and len(containers) > 15_000
