"""libpq's own functions for kernels, on a connection that psycopg2 has opened; and its errors as psycopg2's.

A kernel gets the functions' addresses as numbers, since what is compiled is kept on disk. What is here becomes part of
the kernels that call it: after a change here, change their modules too, or their old code stays in the cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import psycopg2
import psycopg2.errors
from llvmlite import ir  # type: ignore[import-untyped]  # it has no stubs
from numba import extending, types
from numba.core import cgutils
from psycopg2 import _psycopg

_intrinsic: Callable[[Any], Any] = extending.intrinsic  # its types count in the compiler's argument
_memcpy: Any = cgutils.raw_memcpy
_SQLSTATE = ord("C")
_SEVERITIES = ("ERROR:  ", "FATAL:  ", "PANIC:  ")


@_intrinsic
def get_copy_data(typing: Any, address: Any, connection: Any, pointer: Any, at_once: Any) -> Any:
    """int PQgetCopyData(PGconn *conn, char **buffer, int async)."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        number = ir.IntType(32)
        function = ir.FunctionType(number, [word, word, number])
        called = builder.inttoptr(arguments[0], function.as_pointer())
        at_once = builder.trunc(arguments[3], number)
        return builder.sext(builder.call(called, [arguments[1], arguments[2], at_once]), word)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@_intrinsic
def consume_input(typing: Any, address: Any, connection: Any) -> Any:
    """int PQconsumeInput(PGconn *conn)."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        number = ir.IntType(32)
        called = builder.inttoptr(arguments[0], ir.FunctionType(number, [word]).as_pointer())
        return builder.sext(builder.call(called, [arguments[1]]), word)

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def free(typing: Any, address: Any, pointer: Any) -> Any:
    """void PQfreemem(void *ptr)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        called = builder.inttoptr(arguments[0], ir.FunctionType(ir.VoidType(), [ir.IntType(64)]).as_pointer())
        builder.call(called, [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def byte(typing: Any, pointer: Any) -> Any:
    """The byte at an address."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(place), ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def copy(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """Copies bytes between two addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = [builder.inttoptr(address, ir.IntType(8).as_pointer()) for address in arguments[:2]]
        _memcpy(builder, *places, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The libpq that psycopg2 is linked with: its own module's symbols, and those of what it depends on."""
    return ctypes.CDLL(_psycopg.__file__)


def address(function: str) -> int:
    """Where a function of libpq lies."""
    return int(ctypes.cast(getattr(library(), function), ctypes.c_void_p).value or 0)


def call(function: str, *arguments: int | bytes, result: Any = ctypes.c_int) -> Any:
    """What a function of libpq returns. Pointers come and go as numbers. The GIL is released meanwhile."""
    kinds = (ctypes.c_char_p if isinstance(argument, bytes) else ctypes.c_void_p for argument in arguments)
    return ctypes.CFUNCTYPE(result, *kinds)((function, library()))(*arguments)


def connection_error(connection: int) -> psycopg2.Error:
    """What libpq says of a broken connection."""
    return psycopg2.OperationalError(_decode(call("PQerrorMessage", connection, result=ctypes.c_char_p)))


def result_error(result: int, otherwise: str) -> psycopg2.Error:
    """The server's error in a PGresult, of psycopg2's class for its SQLSTATE."""
    message = _decode(call("PQresultErrorMessage", result, result=ctypes.c_char_p)) or otherwise
    for severity in _SEVERITIES:
        message = message.removeprefix(severity)
    field = call("PQresultErrorField", result, _SQLSTATE, result=ctypes.c_char_p)
    if not field:
        return psycopg2.OperationalError(message)
    code = field.decode()
    try:
        error: Any = psycopg2.errors.lookup(code)(message)
    except KeyError:  # newer than this psycopg2
        error = psycopg2.DatabaseError(message)
    # psycopg2 fills these fields for its own errors only; callers read the code to tell what can be tried again.
    error.__setstate__({"pgcode": code, "pgerror": message})
    typed_error: psycopg2.Error = error
    return typed_error


def _decode(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")
