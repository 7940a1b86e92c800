"""How many rows a chunk may ask for: within its bytes, quickly and without end where they do not fit."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dblog_core.algorithm.chunk_width import Width

MOST = 1 << 20


def read(width: Width, row_count: int, row: int) -> int:
    """Rows of the next chunk that is not given up, of rows of so many bytes."""
    for _ in range(40):
        row_limit = width.limit(row_count)
        if row_limit == 1 or row_limit * row <= MOST:
            width.record_chunk(row_limit=row_limit, rows=row_limit, counted_bytes=row_limit * row, byte_limit=MOST)
            return row_limit
        width.record_overflow(row_limit=row_limit, rows=MOST // row)
    raise AssertionError("no chunk was ever small enough")


def test_nothing_is_held_back_before_anything_is_known_or_where_rows_are_narrow() -> None:
    width = Width()
    assert width.limit(10_000) == 10_000
    assert [read(width, 10_000, row=10) for _ in range(3)] == [10_000] * 3


@pytest.mark.parametrize("row", [200, 10_000, 100_000, MOST // 2, MOST, MOST + 1, 50 * MOST])
def test_chunks_of_wide_rows_fill_most_of_the_bytes_and_one_row_alone_always_comes(row: int) -> None:
    width = Width()
    rows = [read(width, 10_000, row) for _ in range(8)]
    assert all(count == 1 or count * row <= MOST for count in rows)
    assert rows[-1] >= max(1, int(MOST / row * 0.6))


def test_a_stretch_of_narrow_rows_leads_to_no_chunk_of_more_than_twice_as_many() -> None:
    width = Width()
    assert read(width, 10_000, row=100_000) <= 10
    counts = [read(width, 10_000, row=10) for _ in range(12)]
    assert all(later <= 2 * sooner for sooner, later in pairwise(counts))
    assert counts[-1] == 10_000


def test_rows_that_grow_wider_are_given_up_a_few_times_at_most() -> None:
    width = Width()
    read(width, 10_000, row=100)
    row_limit = width.limit(10_000)
    given_up = 0
    while row_limit > 1 and row_limit * 60_000 > MOST:
        width.record_overflow(row_limit=row_limit, rows=MOST // 60_000)
        row_limit = width.limit(10_000)
        given_up += 1
    assert given_up == 1


def test_an_empty_chunk_tells_nothing() -> None:
    width = Width()
    width.record_chunk(row_limit=10_000, rows=0, counted_bytes=20, byte_limit=MOST)
    assert width.limit(10_000) == 10_000
