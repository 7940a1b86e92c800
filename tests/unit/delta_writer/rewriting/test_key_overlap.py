"""Which files share keys, by their statistics, and which of them are chosen to be put in order."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.delta_writer.rewriting import key_overlap
from dblog_core.delta_writer.rewriting.key_overlap import KeyRange, Overlap, choose_files, ends_of, is_worth

MIB = 1 << 20


def key_range(low: Any, high: Any, size: int = MIB) -> KeyRange:
    return KeyRange(size, ((low, high),))


def partners(overlap: Overlap) -> list[list[int]]:
    everything = overlap.partners(np.arange(len(overlap.sizes)))
    return [[int(j) for j in np.flatnonzero(row)] for row in everything]


VALUES: dict[str, tuple[Any, Any, Any, Any]] = {
    "integer": (-5, 0, 10, 2**62),
    "decimal": (Decimal("-0.5"), 0, Decimal("1.25"), Decimal("9" * 30)),
    "text": ("", "a", "b", "é😀"),
    "date": ("0999-12-31", "2024-01-01", "2024-02-01", "9999-12-31"),
    "time": (dt.datetime(1, 1, 1), dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2), dt.datetime(9999, 1, 1)),  # noqa: DTZ001
}


@pytest.mark.parametrize("kind", VALUES)
def test_files_share_keys_where_their_ranges_meet(kind: str) -> None:
    a, b, c, d = VALUES[kind]
    overlap = Overlap([key_range(a, b), key_range(b, c), key_range(d, d), key_range(a, d)])
    assert partners(overlap) == [[0, 1, 3], [0, 1, 3], [2, 3], [0, 1, 2, 3]]
    assert overlap.shared.tolist() == [3 * MIB, 3 * MIB, 2 * MIB, 4 * MIB]
    assert overlap.files == 3.0 and overlap.pair_bytes == 12 * MIB**2


def test_columns_of_a_key_must_all_meet() -> None:
    """A first column of few values: its files are told apart by the second one."""
    ranges = [KeyRange(1, ((1, 1), (0, 9))), KeyRange(1, ((1, 1), (10, 19))), KeyRange(1, ((1, 2), (15, 30)))]
    assert partners(Overlap(ranges)) == [[0], [1, 2], [1, 2]]


def test_a_file_without_statistics_may_have_any_key() -> None:
    assert partners(Overlap([key_range(1, 2), key_range(None, None), key_range(5, None)])) == [
        [0, 1],
        [0, 1, 2],
        [1, 2],
    ]


def test_statistics_of_another_type_tell_nothing() -> None:
    assert partners(Overlap([key_range(1, 2), key_range("a", "b")])) == [[0, 1], [0, 1]]


def test_texts_that_were_cut_do_not_seem_to_meet() -> None:
    """No order of the rows would give files other statistics than these."""
    prefix = "https://www.example.org/articles"
    assert len(prefix) == 32
    cut = key_range(prefix, prefix + "\U0010ffff")
    assert partners(Overlap([cut, cut, key_range("a", "z")])) == [[0, 2], [1, 2], [0, 1, 2]]


def test_a_small_file_counts_little() -> None:
    base = [key_range(100 * i, 100 * i + 99) for i in range(8)]
    many_small = [key_range(0, 800, size=100) for _ in range(50)]
    assert not Overlap([*base, *many_small]).is_mixed()
    assert Overlap([*base, *(key_range(0, 800) for _ in range(5))]).is_mixed()


def test_more_may_be_shared_in_a_large_table() -> None:
    def shared_by(wide: int, narrow: int) -> Overlap:
        return Overlap([key_range(i, i) for i in range(narrow)] + [key_range(0, narrow)] * wide)

    assert shared_by(3, 20).is_mixed() and not shared_by(3, 20).is_mixed(2.0)
    assert shared_by(5, 20).is_mixed(2.0)
    assert not shared_by(5, 200).is_mixed() and shared_by(20, 200).is_mixed()
    assert not Overlap([]).is_mixed() and not Overlap([key_range(1, 2, size=0)]).is_mixed()


def test_more_files_than_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [key_range(i % 7, i % 7 + 2, size=i) for i in range(30)]
    expected = Overlap(ranges).shared.tolist()
    monkeypatch.setattr(key_overlap, "_PAIRS", 4 * 30)
    assert Overlap(ranges).shared.tolist() == expected


def choose(ranges: list[KeyRange], *, largest: int = 8 * MIB, **options: Any) -> list[int]:
    fits = np.array([key_range.bytes <= largest for key_range in ranges])
    return choose_files(Overlap(ranges), fits, **{"least": 2 * MIB, "together": 4 * MIB, **options})


def test_those_that_share_most_are_put_in_order_together() -> None:
    base = [key_range(100 * i, 100 * i + 99) for i in range(16)]
    wide = [key_range(0, 1599), key_range(5, 1595), key_range(0, 1599)]
    assert sorted(choose([*base, *wide])) == [16, 17, 18], "and no file that shares little"


def test_others_are_taken_as_far_as_new_files_need_it() -> None:
    base = [key_range(100 * i, 100 * i + 99) for i in range(8)]
    chosen = choose([*base, key_range(150, 799)])
    assert chosen[0] == 8 and len(chosen) == 2 and chosen[1] != 0


def test_what_is_put_in_order_at_once_is_bounded() -> None:
    wide = [key_range(0, 100) for _ in range(9)]
    assert len(choose(wide)) == 4
    assert len(choose(wide, without={*range(8)})) == 4 and choose(wide, without={*range(8)})[0] == 8
    assert choose(wide, together=MIB) == [] and choose(wide, without={*range(9)}) == []


def test_a_large_file_is_split_alone_up_to_a_size() -> None:
    ranges = [key_range(0, 100, size=6 * MIB), key_range(0, 9), key_range(0, 9), key_range(0, 9)]
    assert choose(ranges) == [0]
    assert 0 not in choose(ranges, largest=5 * MIB)


def test_only_a_much_better_order_is_worth_it() -> None:
    wide = [key_range(0, 100), key_range(0, 100)]
    others = [key_range(i * 10, i * 10 + 9) for i in range(10)]
    assert is_worth(wide, [key_range(0, 50), key_range(51, 100)], others)
    assert not is_worth(wide, [key_range(0, 100, size=2 * MIB)], others)
    assert not is_worth(wide, [key_range(0, 80), key_range(20, 100)], others)
    apart = [key_range(0, 10), key_range(90, 100)]
    assert not is_worth(apart, [key_range(0, 60), key_range(61, 100)], others)
    # What they share with others counts twice.
    wider = [key_range(0, 50), key_range(51, 101)]
    assert is_worth(wide, wider, [key_range(101, 101, size=MIB // 2)])
    assert not is_worth(wide, wider, [key_range(101, 101)])
    # In order among each other, and wider than they were.
    mixed = [key_range(0, 10), key_range(0, 10), key_range(90, 100), key_range(90, 100)]
    assert not is_worth(mixed, [key_range(0, 9, size=MIB // 2), key_range(10, 100, size=3 * MIB // 2)], others)


RANGES = st.lists(
    st.builds(
        lambda low, width, size: key_range(low, low + width, size=size),
        st.integers(0, 50),
        st.integers(0, 40),
        st.integers(1, 100),
    ),
    min_size=1,
    max_size=8,
)


@given(RANGES, RANGES, RANGES)
def test_what_is_worth_it_leaves_less_to_share(
    files: list[KeyRange], new_files: list[KeyRange], others: list[KeyRange]
) -> None:
    """So that putting in order ends."""
    before = Overlap([*others, *files]).pair_bytes
    after = Overlap([*others, *new_files]).pair_bytes
    among = Overlap(files).pair_bytes
    left = Overlap(new_files).pair_bytes
    assert is_worth(files, new_files, others) == (left <= 0.6 * among and 2 * (before - after) >= among - left)
    assert not is_worth(files, new_files, others) or before - after >= 0.2 * among * 0.999


def test_ends_are_those_of_the_log() -> None:
    text = '{"numRecords":3,"minValues":{"a":1,"b":1.10},"maxValues":{"a":2},"nullCount":{}}'
    assert ends_of(text, ["a", "b", "c"]) == ((1, 2), (Decimal("1.10"), None), (None, None))
    assert ends_of(None, ["a"]) == ((None, None),)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 100)), max_size=30))
def test_what_is_shared_is_that_of_each_pair(files: list[tuple[int, int, int]]) -> None:
    ranges = [key_range(low, low + width, size=size) for low, width, size in files]
    pairs = [
        [j for j, (b, v, _) in enumerate(files) if i == j or (a <= b + v and b <= a + w)]
        for i, (a, w, _) in enumerate(files)
    ]
    overlap = Overlap(ranges)
    assert overlap.shared.tolist() == [sum(files[j][2] for j in row) for row in pairs]
    if files:
        assert partners(overlap) == pairs
    chosen = choose_files(overlap, np.array([size <= 90 for _, _, size in files]), least=40, together=120)
    assert len(set(chosen)) == len(chosen)
    assert not chosen or 40 <= sum(files[i][2] for i in chosen) <= 120
    assert not chosen or all(i in pairs[chosen[0]] for i in chosen)
