"""Rows and numbers that wait on the local disk, in files without a name: nobody else can open them, and they are gone
with the process, whatever ends it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.errors import LakeError
from dblog_core.model import sizes

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
_IN_MEMORY = 16 << 20
"""Bytes of numbers that need no file."""


@dataclass(frozen=True, slots=True)
class SpooledTable:
    """The place of a table in the file, its rows, and their bytes in memory. `table`: one that stays there."""

    begin: int
    size: int
    rows: int
    nbytes: int
    table: pa.Table | None = None


class SpoolFile:
    """Bytes on the local disk, one part after the other; `file` reads them."""

    def __init__(self) -> None:
        self.file = _open_file()
        weakref.finalize(self, self.file.close)
        self.size = 0
        """Bytes on the disk."""

    def append(self, data: bytes | pa.Buffer) -> int:
        """The place of the first byte. Raises LakeError where the disk has no room."""
        begin = self.size
        rest = memoryview(data)
        try:
            while rest:
                # A write may take a part only, where the disk is nearly full.
                count = os.pwrite(self.file.fileno(), rest, self.size)
                self.size += count
                rest = rest[count:]
        except OSError as error:
            raise _no_room(error, rest.nbytes) from error
        return begin

    def read(self, begin: int, size: int) -> bytes:
        """Raises LakeError where the disk fails."""
        try:
            return os.pread(self.file.fileno(), size, begin)
        except OSError as error:
            raise _no_room(error, size) from error


class TableSpool:
    """Takes tables, and gives them back in any order, as often as wanted."""

    def __init__(self, *, memory: int = 0) -> None:
        """`memory`: bytes of the first tables that stay in memory; the disk is used for more."""
        self._memory = memory
        self._spool_file: SpoolFile | None = None

    @property
    def _file(self) -> SpoolFile:
        self._spool_file = self._spool_file or SpoolFile()
        return self._spool_file

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return 0 if self._spool_file is None else self._spool_file.size

    def write(self, table: pa.Table) -> SpooledTable:
        """Raises LakeError where the disk has no room."""
        if table.nbytes <= self._memory:
            self._memory -= table.nbytes
            return SpooledTable(0, 0, len(table), table.nbytes, table)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as stream:
            stream.write_table(table)
        data = sink.getvalue()
        return SpooledTable(self._file.append(data), data.size, len(table), table.nbytes)

    def read(self, spooled: SpooledTable) -> pa.Table:
        """Raises LakeError where the disk fails."""
        if spooled.table is not None:
            return spooled.table
        return pa.ipc.open_stream(self._file.read(spooled.begin, spooled.size)).read_all()


@dataclass(frozen=True, slots=True)
class SpooledRows:
    """A table with its spool, whose file is gone with the last table that is known."""

    spool: TableSpool
    table: SpooledTable

    def __len__(self) -> int:
        return self.table.rows

    def read(self) -> pa.Table:
        """Raises LakeError where the disk fails."""
        return self.spool.read(self.table)


class SpooledTables:
    """Tables on the local disk, one after the other, as often as wanted."""

    def __init__(self, spool: TableSpool | None = None) -> None:
        """`spool`: one that several share; None: a new one."""
        self._spool = spool or TableSpool()
        self._tables: list[SpooledTable] = []

    def append(self, table: pa.Table) -> None:
        """Raises LakeError where the disk has no room."""
        if len(table):
            self._tables.append(self._spool.write(table))

    def __len__(self) -> int:
        """The rows of all."""
        return sum(table.rows for table in self._tables)

    @property
    def nbytes(self) -> int:
        """The bytes of all in memory."""
        return sum(table.nbytes for table in self._tables)

    def __iter__(self) -> Iterator[pa.Table]:
        return map(self._spool.read, self._tables)


def spooled_array(count: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """So many zeros. Large arrays are mapped from the local disk, so that memory holds as much of them as it has room
    for. Raises LakeError where the disk has no room."""
    size = count * np.dtype(kind).itemsize
    if size <= _IN_MEMORY:
        return np.zeros(count, kind)
    try:
        with _open_file() as file:
            # A page that the disk has no room for would end the process by SIGBUS, which no handler here sees.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.asarray(np.memmap(file, kind, "r+", shape=(count,)))
    except OSError as error:
        raise _no_room(error, size) from error


def _open_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(prefix="dblog-", buffering=0)
    except OSError as error:
        raise _no_room(error, 0) from error


def _no_room(error: OSError, needed: int) -> LakeError:
    place = tempfile.gettempdir()
    room = f"; {sizes.text(needed)} are needed, and {sizes.text(shutil.disk_usage(place).free)} are free"
    return LakeError(
        f"rows cannot wait on the local disk: {error.strerror or error}{room if needed else ''}",
        where=place,
        fix="make room, or let TMPDIR name a directory with more of it",
    )
