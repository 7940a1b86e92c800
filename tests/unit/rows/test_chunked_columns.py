"""A column of any number of chunks becomes one array, and a single chunk is not copied. Rows are taken without a second
whole copy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.rows.chunked_columns import join_chunks, join_up_to, mask_named, split_by_number, take_rows

STRUCT = pa.struct([("id", pa.int64()), ("name", pa.string())])
ROWS = [{"id": 1, "name": "a"}, None, {"id": 2, "name": None}]


@pytest.mark.parametrize("chunks", [[ROWS], [ROWS[:1], ROWS[1:]], [[], ROWS, []]])
def test_the_values_of_all_chunks_come_in_their_order(chunks: list[list[object]]) -> None:
    joined = join_chunks(pa.chunked_array(chunks, type=STRUCT))
    assert isinstance(joined, pa.Array)
    assert joined.type == STRUCT and joined.to_pylist() == ROWS


def test_a_column_without_a_chunk_is_an_array_without_a_value() -> None:
    joined = join_chunks(pa.chunked_array([], type=STRUCT))
    assert isinstance(joined, pa.Array)
    assert joined.type == STRUCT and len(joined) == 0


def test_a_single_chunk_is_not_copied() -> None:
    values = pa.array([1, 2, 3])
    joined = join_chunks(pa.chunked_array([values]))
    assert joined.buffers()[1].address == values.buffers()[1].address


@pytest.fixture
def memory_pool() -> Iterator[pa.MemoryPool]:
    """Counts what the test allocates alone."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def test_rows_are_taken_from_all_parts_while_each_column_is_given_back(memory_pool: pa.MemoryPool) -> None:
    parts = [
        pa.table(
            {f"c{c}": pa.array(np.full(100_000, part), pa.int64()).take(pa.array(range(100_000))) for c in range(8)}
        )
        for part in range(4)
    ]
    whole = memory_pool.bytes_allocated()
    places = np.random.default_rng(1).permutation(400_000)
    expected = (places // 100_000).tolist()
    taken = take_rows(parts, pa.array(places))
    assert parts == []
    assert taken.num_columns == 8 and taken["c0"].to_pylist() == taken["c7"].to_pylist() == expected
    assert whole < memory_pool.max_memory() < 1.6 * whole


def test_the_parts_of_a_split_are_all_rows_in_their_order() -> None:
    rows = pa.table({"n": list(range(100))})
    numbers = np.array([n * 7 % 5 for n in range(100)])
    parts = split_by_number(rows, numbers, 6)
    assert [part["n"].to_pylist() for part in parts] == [[n for n in range(100) if n * 7 % 5 == b] for b in range(6)]
    in_order = split_by_number(rows, np.arange(100) // 20, 5)
    assert [len(part) for part in in_order] == [20] * 5


def test_tables_are_joined_up_to_a_size_in_their_order() -> None:
    tables = [pa.table({"n": pa.array(range(first, first + 3))}) for first in (0, 3, 6)]
    joined = list(join_up_to(48, [tables[0].slice(0, 0), *tables]))
    assert [rows["n"].to_pylist() for rows in joined] == [[*range(6)], [6, 7, 8]]
    assert all(rows["n"].num_chunks == 1 for rows in joined)


def test_rows_are_found_by_a_name_in_their_list_however_it_lies() -> None:
    lists = pa.array([["a"], ["b"], None, ["c", "a"], [], ["a"]])
    expected = [True, False, False, True, False, True]
    for start in range(6):
        assert mask_named(lists.slice(start), "a").tolist() == expected[start:]
        chunks = pa.chunked_array([lists.slice(start), lists])
        assert mask_named(chunks, "a").tolist() == expected[start:] + expected
    assert mask_named(pa.nulls(2, lists.type), "a").tolist() == [False, False]
