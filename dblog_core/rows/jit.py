"""Compiled kernels: the one decorator for loops over bytes, and the way to have them compiled before they are needed.

A kernel takes and fills numpy arrays; it releases the GIL, so that reading, decoding and writing overlap. Its machine
code is cached on disk, beside its module or, where that cannot be written, in the user's cache: `make setup` fills it,
and a start compiles nothing. A kernel checks every bound itself: what it reads is a server's bytes, and a length that
lies must end in an error code, never outside the array. Kernels of one module call each other; those of another module
they do not call, since the cache would not see that these have changed.
"""

from __future__ import annotations

import importlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types

log = logging.getLogger(__name__)

Kernel = TypeVar("Kernel", bound=Callable[..., object])

MODULES = (
    "dblog_core.rows.arrow_buffers",
    "dblog_core.delta_writer.keys.key_hash",
    "dblog_core.sources.mysql.binlog.headers",
    "dblog_core.sources.mysql.values.fixed_width",
    "dblog_core.sources.mysql.values.json_kernel",
    "dblog_core.sources.mysql.values.json_opaque_kernel",
    "dblog_core.sources.mysql.values.multibyte",
    "dblog_core.sources.mysql.values.printed",
    "dblog_core.sources.mysql.row_events.row_kernel",
    "dblog_core.sources.mysql.sql.result_numbers",
    "dblog_core.sources.mysql.sql.result_rows",
    "dblog_core.sources.postgres.values.binary_kernel",
    "dblog_core.sources.postgres.sql.copy_out",
    "dblog_core.sources.postgres.sql.copy_rows",
    "dblog_core.sources.postgres.logical.replication_stream",
    "dblog_core.sources.postgres.logical.row_messages",
    "dblog_core.sources.postgres.logical.spool",
)
"""All modules with kernels."""

boolean = types.boolean
int64 = types.int64
void = types.void
RAW = types.Array(types.uint8, 1, "C", readonly=True)
"""Bytes that are only read; takes writable ones too."""
BYTES = types.uint8[::1]
INT32S = types.int32[::1]
INT64S = types.int64[::1]
FLAGS = types.boolean[::1]
INT64_ROWS = types.int64[:, ::1]
"""Arrays that are filled; the last has rows of numbers."""


def kernel(result: Any, *arguments: Any, allocates: bool = False) -> Callable[[Kernel], Kernel]:
    """Compiles the function for these types (numba's) when its module is imported.

    `allocates`: it makes arrays of its own. In a kernel that does not, nobody counts who uses an array; such counts,
    at every call that takes one, can cost more than the work.
    """
    options: dict[str, Any] = {"nogil": True} if allocates else {"nogil": True, "_nrt": False}

    def compile_kernel(function: Kernel) -> Kernel:
        if (directory := _foreign_cache()) is not None:
            log.warning("%s is compiled at every start: others may write into %s", function.__name__, directory)
            private: Kernel = numba.njit(result(*arguments), **options)(function)
            return private
        try:
            compiled: Kernel = numba.njit(result(*arguments), cache=True, **options)(function)
        except (RuntimeError, OSError) as error:
            # Neither the module's directory nor the user's own can be written, or an image's lacks this kernel.
            if isinstance(error, RuntimeError) and "no locator available" not in str(error):
                raise
            log.warning("%s is compiled at every start: %s; set NUMBA_CACHE_DIR", function.__name__, error)
            compiled = numba.njit(result(*arguments), **options)(function)
        return compiled

    return compile_kernel


def _foreign_cache() -> Path | None:
    """`NUMBA_CACHE_DIR`, where others may put files: what numba reads there, this process executes."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if not chosen or not Path(chosen).exists():  # numba makes it, and it is ours
        return None
    state = Path(chosen).stat()
    is_safe = state.st_uid in (0, os.geteuid()) and not state.st_mode & stat.S_IWOTH
    return None if is_safe else Path(chosen)


def part(function: Kernel) -> Kernel:
    """A function that becomes part of every kernel of its module that calls it.

    For what is called for every value: between kernels, a call that takes arrays passes some dozen numbers.
    """
    inlined: Any = numba.njit(inline="always", nogil=True)(function)
    return inlined  # type: ignore[no-any-return]  # numba's types say only that it can be called


def warm() -> None:
    """Compiles what is not in the cache yet."""
    for module in MODULES:
        importlib.import_module(module)
