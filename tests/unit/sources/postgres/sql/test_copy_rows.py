"""The binary COPY: every value where it lies, and an error for whatever is no such COPY."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.sources.postgres.sql import copy_rows

Row = list[bytes | None]

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"


def copy_data(rows: list[Row]) -> bytes:
    return HEADER + b"".join(_row(row) for row in rows) + TRAILER


def _row(row: Row) -> bytes:
    fields = [struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in row]
    return struct.pack(">h", len(row)) + b"".join(fields)


def read(data: bytes, columns: int) -> list[Row]:
    parsed = copy_rows.parse(np.frombuffer(data, dtype=np.uint8), columns)
    return [
        [
            None if length < 0 else data[start : start + length]
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
        for starts, lengths in zip(parsed.starts.T, parsed.lengths.T, strict=True)
    ]


tables = st.integers(1, 5).flatmap(
    lambda columns: st.tuples(
        st.just(columns),
        st.lists(st.lists(st.none() | st.binary(max_size=9), min_size=columns, max_size=columns), max_size=6),
    )
)


@given(tables)
def test_every_value_is_found(table: tuple[int, list[Row]]) -> None:
    columns, rows = table
    assert read(copy_data(rows), columns) == rows


@given(tables, st.data())
def test_altered_bytes_are_refused_or_are_another_copy(table: tuple[int, list[Row]], data: st.DataObject) -> None:
    """What is accepted is a COPY to the last byte: nothing is left out, and nothing is read twice."""
    columns, rows = table
    raw = bytearray(copy_data(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    try:
        chunk = read(bytes(raw), columns)
    except ValueError:
        return
    assert copy_data(chunk) == bytes(raw)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEADER,
        HEADER[:-1] + TRAILER,
        HEADER[:11] + b"\0\1\0\0" + bytes(4) + TRAILER,  # with row oids, as old servers could
        copy_data([[b"x"]])[:-2],
        copy_data([[b"x"]])[:-1],
        copy_data([[b"x", b"y"]]),
        copy_data([[]]),
        HEADER + b"\0\1" + struct.pack(">i", -2) + TRAILER,
        HEADER + b"\0\1" + struct.pack(">i", 2**31 - 1) + b"x" + TRAILER,
        HEADER + b"\0\1" + struct.pack(">i", 2) + b"x" + TRAILER,
        HEADER + b"\0\1" + struct.pack(">i", 3) + b"x" + TRAILER,
        copy_data([[b"x"]]) + TRAILER,
    ],
)
def test_what_is_no_copy_of_one_column_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"COPY|rows"):
        copy_rows.parse(np.frombuffer(data, dtype=np.uint8), 1)


def test_an_empty_copy_has_its_columns() -> None:
    parsed = copy_rows.parse(np.frombuffer(copy_data([]), dtype=np.uint8), 3)
    assert parsed.starts.shape == parsed.lengths.shape == (3, 0)
    assert parsed.starts.dtype == np.int64
