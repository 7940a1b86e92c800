"""Takes the replication stream out of libpq, all that has arrived in one call, without a Python object a message.

psycopg2 opens the connection, starts the stream and sends feedback. Reading is done on the same `PGconn` by libpq's
own `PQgetCopyData` and `PQconsumeInput`, called from a compiled loop that knows of a message only whether it is log
('w') or a keepalive ('k'). See "Streaming Replication Protocol" in the PostgreSQL manual and "COPY" in libpq's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import psycopg2
from llvmlite import ir  # type: ignore[import-untyped]  # it has no stubs
from numba import extending, types
from numba.core import cgutils
from psycopg2 import _psycopg

from dblog_core.compiled import BYTES, INT64S, int64, kernel
from dblog_core.errors import UnknownLogEvent
from dblog_core.sources.postgres.connection import Connection
from dblog_core.sources.postgres.messages import PREFIX, Messages

Int64s = npt.NDArray[np.int64]

_intrinsic: Callable[[Any], Any] = extending.intrinsic  # its types count in the compiler's argument
_memcpy: Any = cgutils.raw_memcpy

_GET, _CONSUME, _FREE, _CONNECTION = range(4)
_POINTER, _LENGTH, _WAL_END, _ASKED, _OUTCOME = range(5)
_NOTHING, _FULL, _ENDED, _BROKEN, _UNKNOWN = range(5)
_HEAD = 25  # 'w', two LSNs and the server's clock
_KEEPALIVE = 18  # 'k', LSN, clock, whether a reply is asked for
_W, _K = b"wk"
_SQLSTATE = ord("C")


@_intrinsic
def _get_copy_data(typing: Any, address: Any, connection: Any, pointer: Any) -> Any:
    """int PQgetCopyData(PGconn *conn, char **buffer, int async), with async = 1."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, number = ir.IntType(64), ir.IntType(32)
        function = ir.FunctionType(number, [word, word, number])
        called = builder.inttoptr(arguments[0], function.as_pointer())
        return builder.sext(builder.call(called, [arguments[1], arguments[2], ir.Constant(number, 1)]), word)

    return types.int64(types.int64, types.int64, types.int64), generate


@_intrinsic
def _consume_input(typing: Any, address: Any, connection: Any) -> Any:
    """int PQconsumeInput(PGconn *conn)."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, number = ir.IntType(64), ir.IntType(32)
        called = builder.inttoptr(arguments[0], ir.FunctionType(number, [word]).as_pointer())
        return builder.sext(builder.call(called, [arguments[1]]), word)

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def _free(typing: Any, address: Any, pointer: Any) -> Any:
    """void PQfreemem(void *ptr)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        called = builder.inttoptr(arguments[0], ir.FunctionType(ir.VoidType(), [ir.IntType(64)]).as_pointer())
        builder.call(called, [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def _byte(typing: Any, pointer: Any) -> Any:
    """The byte at an address."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(place), ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def _copy(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """Copies bytes between two addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = [builder.inttoptr(address, ir.IntType(8).as_pointer()) for address in arguments[:2]]
        _memcpy(builder, *places, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@kernel(int64, int64)
def _word(pointer: int) -> int:
    """The 64-bit number at an address, as the network writes it."""
    value = 0
    for i in range(8):
        value = (value << 8) | _byte(pointer + i)
    return value


@kernel(int64, INT64S, INT64S, BYTES, INT64S, INT64S, int64, int64)
def _receive(
    calls: Int64s, state: Int64s, out: npt.NDArray[np.uint8], starts: Int64s, ends: Int64s, count: int, at: int
) -> int:
    """Appends messages from number `count` and byte `at` on; how many there are then. `state` tells why it stopped."""
    looked = False
    while True:
        if state[_POINTER] == 0:
            length = _get_copy_data(calls[_GET], calls[_CONNECTION], state.ctypes.data)
            if length == 0 and looked:
                state[_OUTCOME] = _NOTHING
                return count
            if length == 0:
                looked = True
                if _consume_input(calls[_CONSUME], calls[_CONNECTION]) == 0:
                    state[_OUTCOME] = _BROKEN
                    return count
                continue
            if length < 0:
                state[_OUTCOME] = _ENDED if length == -1 else _BROKEN
                return count
            state[_LENGTH] = length
            looked = False  # libpq reads as much as its own buffer takes: there may be more
        pointer, length = state[_POINTER], state[_LENGTH]
        kind = _byte(pointer)
        if kind == _W and length >= _HEAD:
            size = length - _HEAD
            if count == len(starts) or at + PREFIX + size > len(out):
                state[_OUTCOME] = _FULL
                return count
            for i in range(PREFIX):
                out[at + i] = (size >> (8 * i)) & 255
            at += PREFIX
            _copy(out.ctypes.data + at, pointer + _HEAD, size)
            starts[count] = at
            at += size
            ends[count] = at
            count += 1
        elif kind == _K and length == _KEEPALIVE:
            state[_WAL_END] = max(state[_WAL_END], _word(pointer + 1))
            state[_ASKED] |= _byte(pointer + _KEEPALIVE - 1)
        else:
            state[_OUTCOME] = _UNKNOWN
            return count
        _free(calls[_FREE], pointer)
        state[_POINTER] = 0


class CopyStream:
    """The messages of a connection on which a replication stream has been started."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._library = _library()
        functions = (self._library.PQgetCopyData, self._library.PQconsumeInput, self._library.PQfreemem)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        self._calls = np.array([*addresses, connection.pgconn_ptr], dtype=np.int64)
        self._state = np.zeros(5, dtype=np.int64)

    @property
    def wal_end(self) -> int:
        """Everything that the server had to send of the log before here has been received."""
        return int(self._state[_WAL_END])

    def asked(self) -> bool:
        """Whether the server has asked for a sign of life since the last time."""
        asked = bool(self._state[_ASKED])
        self._state[_ASKED] = 0
        return asked

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
            raise self._ended()
        if outcome == _BROKEN:
            raise psycopg2.OperationalError(self._text("PQerrorMessage", self._calls[_CONNECTION]))
        if outcome == _UNKNOWN:
            raise UnknownLogEvent("the server sent something else than log and keepalives", fix="upgrade dblog")
        if outcome == _FULL and not messages.count:
            messages.grow(int(state[_LENGTH]))
            return self.receive(messages)
        return bool(outcome == _FULL)

    def close(self) -> None:
        """Gives back what libpq lent. The connection is its owner's to close."""
        if self._state[_POINTER]:
            self._library.PQfreemem(ctypes.c_void_p(int(self._state[_POINTER])))
            self._state[_POINTER] = 0

    def _ended(self) -> psycopg2.Error:
        """Why the server has ended the stream: its error, or none where it shuts down in order."""
        library = self._library
        library.PQgetResult.restype = ctypes.c_void_p
        result = library.PQgetResult(ctypes.c_void_p(int(self._calls[_CONNECTION])))
        if not result:
            return psycopg2.OperationalError("the server ended the stream")
        try:
            library.PQresultErrorField.restype = ctypes.c_char_p
            state = library.PQresultErrorField(ctypes.c_void_p(result), _SQLSTATE)
            message = self._text("PQresultErrorMessage", result) or "the server ended the stream"
        finally:
            library.PQclear(ctypes.c_void_p(result))
        error: Any = psycopg2.OperationalError(message)
        if state:
            error.__setstate__({"pgcode": state.decode(), "pgerror": message})
        return cast("psycopg2.Error", error)

    def _text(self, function: str, subject: int) -> str:
        call = getattr(self._library, function)
        call.restype = ctypes.c_char_p
        return (call(ctypes.c_void_p(int(subject))) or b"").decode(errors="replace")


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """The libpq that psycopg2 is linked with: its own module's symbols, and those of what it depends on."""
    return ctypes.CDLL(_psycopg.__file__)
