"""Takes the replication stream out of libpq, all that has arrived in one call, without a Python object a message.

psycopg2 opens the connection, starts the stream and sends feedback. Reading is done on the same `PGconn` by libpq's
own `PQgetCopyData` and `PQconsumeInput`, called from a compiled loop that knows of a message only whether it is log
('w') or a keepalive ('k'). See "Streaming Replication Protocol" in the PostgreSQL manual and "COPY" in libpq's.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import psycopg2

from dblog_core.errors import UnknownLogEvent
from dblog_core.rows.jit import BYTES, INT64S, int64, kernel
from dblog_core.sources.postgres.logical.message_buffer import PREFIX, Messages
from dblog_core.sources.postgres.sql import libpq
from dblog_core.sources.postgres.sql.connection import Connection

Int64s = npt.NDArray[np.int64]

_GET, _CONSUME, _FREE, _CONNECTION = range(4)
_POINTER, _LENGTH, _WAL_END, _ASKED, _OUTCOME = range(5)
_NOTHING, _FULL, _ENDED, _BROKEN, _UNKNOWN = range(5)
_HEAD = 25  # 'w', two LSNs and the server's clock
_KEEPALIVE = 18  # 'k', LSN, clock, whether a reply is asked for
_LOOKS = 2  # reads without a whole message, until none is there: under TLS one may leave a part of a record behind
_W, _K = b"wk"


@kernel(int64, int64)
def _word(pointer: int) -> int:
    """The 64-bit number at an address, as the network writes it."""
    value = 0
    for i in range(8):
        value = (value << 8) | libpq.byte(pointer + i)
    return value


@kernel(int64, INT64S, INT64S, BYTES, INT64S, INT64S, int64, int64)
def _receive(
    calls: Int64s, state: Int64s, out: npt.NDArray[np.uint8], starts: Int64s, ends: Int64s, count: int, at: int
) -> int:
    """Appends messages from number `count` and byte `at` on; how many there are then. `state` tells why it stopped."""
    looks = 0
    while True:
        if state[_POINTER] == 0:
            # 0: libpq has no whole message; -1: the server has ended the stream; -2: an error.
            length = libpq.get_copy_data(calls[_GET], calls[_CONNECTION], state.ctypes.data, 1)
            if length == 0 and looks == _LOOKS:
                state[_OUTCOME] = _NOTHING
                return count
            if length == 0:
                looks += 1
                if libpq.consume_input(calls[_CONSUME], calls[_CONNECTION]) == 0:
                    state[_OUTCOME] = _BROKEN
                    return count
                continue
            if length < 0:
                state[_OUTCOME] = _ENDED if length == -1 else _BROKEN
                return count
            state[_LENGTH] = length
            looks = 0  # libpq reads as much as its own buffer takes: there may be more
        pointer = state[_POINTER]
        length = state[_LENGTH]
        kind = libpq.byte(pointer)
        if kind == _W and length >= _HEAD:
            size = length - _HEAD
            if count == len(starts) or at + PREFIX + size > len(out):
                state[_OUTCOME] = _FULL
                return count
            for i in range(PREFIX):
                out[at + i] = (size >> (8 * i)) & 255
            at += PREFIX
            libpq.copy(out.ctypes.data + at, pointer + _HEAD, size)
            starts[count] = at
            at += size
            ends[count] = at
            count += 1
        # A keepalive says how far the server has come with its log, also where nothing in it is for us. The last byte
        # asks for an answer at once: without one the server ends the connection after wal_sender_timeout.
        elif kind == _K and length == _KEEPALIVE:
            state[_WAL_END] = max(state[_WAL_END], _word(pointer + 1))
            state[_ASKED] |= libpq.byte(pointer + _KEEPALIVE - 1)
        else:
            state[_OUTCOME] = _UNKNOWN
            return count
        # libpq allocates each message: one that is not given back stays for the life of the process.
        libpq.free(calls[_FREE], pointer)
        state[_POINTER] = 0


class CopyStream:
    """The messages of a connection on which a replication stream has been started."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        functions = [libpq.address(name) for name in ("PQgetCopyData", "PQconsumeInput", "PQfreemem")]
        self._calls = np.array([*functions, connection.pgconn_ptr], dtype=np.int64)
        self._state = np.zeros(5, dtype=np.int64)

    @property
    def wal_end(self) -> int:
        """Everything that the server had to send of the log before here has been received."""
        return int(self._state[_WAL_END])

    def take_request(self) -> bool:
        """Whether the server has asked for a sign of life since the last time."""
        is_asked = bool(self._state[_ASKED])
        self._state[_ASKED] = 0
        return is_asked

    def receive(self, messages: Messages) -> bool:
        """Appends what has arrived, as far as there is room; whether room was the limit. Does not wait.

        Raises psycopg2.Error where the stream has ended, with the server's reason.
        """
        if self._connection.closed:
            raise psycopg2.InterfaceError("the connection is closed")
        state = self._state
        messages.count = _receive(
            self._calls, state, messages.raw, messages.starts, messages.ends, messages.count, messages.end
        )
        outcome = state[_OUTCOME]
        if outcome == _ENDED:
            raise self._end_error()
        if outcome == _BROKEN:
            raise libpq.connection_error(int(self._calls[_CONNECTION]))
        if outcome == _UNKNOWN:
            raise UnknownLogEvent("the server sent something else than log and keepalives", fix="upgrade dblog")
        if outcome == _FULL and not messages.count:
            messages.grow(int(state[_LENGTH]))
            return self.receive(messages)
        return bool(outcome == _FULL)

    def close(self) -> None:
        """Gives back what libpq lent. The connection is its owner's to close."""
        if self._state[_POINTER]:
            libpq.call("PQfreemem", int(self._state[_POINTER]), result=None)
            self._state[_POINTER] = 0

    def _end_error(self) -> psycopg2.Error:
        """Why the server has ended the stream: its error, or none where it shuts down in order."""
        result = libpq.call("PQgetResult", int(self._calls[_CONNECTION]), result=ctypes.c_void_p)
        if not result:
            return psycopg2.OperationalError("the server ended the stream")
        try:
            return libpq.result_error(result, "the server ended the stream")
        finally:
            libpq.call("PQclear", result, result=None)
