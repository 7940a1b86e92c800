"""A range's cursor: where it goes on, and when it ends."""

from __future__ import annotations

from dblog_core.algorithm.range_cursor import RangeCursor


def test_goes_on_after_the_last_row_and_stays_where_a_chunk_has_none() -> None:
    cursor = RangeCursor(after=1, upto=9)
    assert cursor.advance(4) == RangeCursor(4, 9)
    assert cursor.advance(None) == cursor
    assert cursor.advance(0) == RangeCursor(0, 9)  # a key like any other


def test_fixes_an_open_end_once_and_by_a_full_chunk_alone() -> None:
    assert RangeCursor().needs_end(is_short=False)
    assert not RangeCursor().needs_end(is_short=True)
    assert not RangeCursor().fix_end(0).needs_end(is_short=False)
    assert RangeCursor(after=3).fix_end(None) == RangeCursor(after=3)  # all rows are gone: the next chunk is short


def test_ends_with_a_short_chunk_or_with_its_last_key() -> None:
    cursor = RangeCursor(upto=[7, "a"])
    assert cursor.is_last([7, "a"], is_short=False)
    assert not cursor.is_last([7, "A"], is_short=False)
    assert cursor.is_last([3, "x"], is_short=True)
    assert cursor.is_last(None, is_short=True)
