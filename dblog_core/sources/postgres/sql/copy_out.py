"""Takes the bytes of a `COPY … TO STDOUT` out of libpq, without a Python object a row and without the GIL.

psycopg2 opens the connection and is its owner; the COPY runs on its `PGconn`. See "COPY" in libpq's manual.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import psycopg2

from dblog_core.interfaces import VALUE_BYTES
from dblog_core.rows.arrow_buffers import LARGEST
from dblog_core.rows.jit import BYTES, INT64S, int64, kernel
from dblog_core.sources.postgres.sql import libpq
from dblog_core.sources.postgres.sql.connection import Connection

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_GET, _FREE, _CONNECTION = range(3)
_POINTER, _LENGTH, _ROWS = range(3)
# ExecStatusType, in libpq-fe.h
_COPY_OUT = 3
_COMMAND_OK = 1
_BROKEN = -2
_FIRST_ROOM = 1 << 20


class TooLarge(Exception):
    """The COPY counts for more bytes than it may; `rows`: those of it that had arrived, and fit."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


@kernel(int64, INT64S, INT64S, BYTES, int64)
def _receive(calls: Int64s, state: Int64s, out: Bytes, at: int) -> int:
    """Appends to `out` from byte `at` on, until its end or the next row does not fit; where it ends then.

    `state` holds the row that waits, its length or libpq's word for the end, and the number of rows before it.
    """
    while True:
        if state[_POINTER] == 0:
            state[_LENGTH] = libpq.get_copy_data(calls[_GET], calls[_CONNECTION], state.ctypes.data, 0)
            if state[_LENGTH] < 0:
                return at
        if state[_LENGTH] > len(out) - at:
            return at
        libpq.copy(out.ctypes.data + at, state[_POINTER], state[_LENGTH])
        at += state[_LENGTH]
        libpq.free(calls[_FREE], state[_POINTER])
        state[_POINTER] = 0
        state[_ROWS] += 1


def receive_copy(connection: Connection, query: str, *, most: int | None, columns: int = 0) -> Bytes:
    """What the server sends for a COPY: rows that count for `most` bytes at most, with `VALUE_BYTES` for each value of
    the `columns`; None: whatever one array holds.

    Raises psycopg2.Error and TooLarge; the connection is of no use after any error.
    """
    row_bytes = 0 if most is None else columns * VALUE_BYTES
    most = min(most or LARGEST, LARGEST)
    pointer = connection.pgconn_ptr
    if pointer is None:
        raise psycopg2.InterfaceError("the connection is closed")
    _expect(pointer, libpq.call("PQexec", pointer, query.encode(), result=ctypes.c_void_p), _COPY_OUT)
    calls = np.array([libpq.address("PQgetCopyData"), libpq.address("PQfreemem"), pointer], dtype=np.int64)
    state = np.zeros(3, dtype=np.int64)
    out = np.empty(min(_FIRST_ROOM, most), dtype=np.uint8)
    end = 0
    try:
        while True:
            end = _receive(calls, state, out, end)
            needed = end + max(int(state[_LENGTH]), 0)
            rows = int(state[_ROWS])
            if needed + rows * row_bytes > most:
                counted = end + rows * row_bytes  # without a row that does not fit any more
                raise TooLarge(rows if counted <= most else rows * most // counted)
            if state[_LENGTH] < 0:
                break
            # Twice as large, so that each byte is copied once or twice in all.
            larger = np.empty(min(max(2 * len(out), needed), most), dtype=np.uint8)
            larger[:end] = out[:end]
            out = larger
    finally:
        if state[_POINTER]:
            libpq.call("PQfreemem", int(state[_POINTER]), result=None)
    if state[_LENGTH] == _BROKEN:
        raise libpq.connection_error(pointer)
    _expect(pointer, libpq.call("PQgetResult", pointer, result=ctypes.c_void_p), _COMMAND_OK)
    # libpq wants to be asked until it has no results left: only then the connection is free.
    while rest := libpq.call("PQgetResult", pointer, result=ctypes.c_void_p):
        libpq.call("PQclear", rest, result=None)
    return out[:end]


def _expect(connection: int, result: int | None, status: int) -> None:
    """Raises the error of a PGresult that has another status; gives it back to libpq."""
    if not result:
        raise libpq.connection_error(connection)
    try:
        if libpq.call("PQresultStatus", result) != status:
            raise libpq.result_error(result, "the server ended the COPY")
    finally:
        libpq.call("PQclear", result, result=None)
