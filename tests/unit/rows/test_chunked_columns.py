"""A column of any number of chunks becomes one array, and a single chunk is not copied."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.rows.chunked_columns import join_chunks

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
