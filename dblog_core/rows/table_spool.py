"""Arrow tables that wait on the local disk, in a file without a name: nobody else can open it, and it is gone with the
process, whatever ends it."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from dblog_core.errors import LakeError

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class SpooledTable:
    """Where a table lies in the file; its rows, and their bytes in memory."""

    begin: int
    size: int
    rows: int
    nbytes: int


class TableSpool:
    """Takes tables, and gives them back in any order, as often as wanted."""

    def __init__(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix="dblog-", buffering=0)  # noqa: SIM115  # closed with the spool
        except OSError as error:
            raise _no_room(error) from error
        weakref.finalize(self, self._file.close)
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._size

    def write(self, table: pa.Table) -> SpooledTable:
        """Raises LakeError where the disk has no room."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as stream:
            stream.write_table(table)
        data = sink.getvalue()
        begin = self._size
        rest = memoryview(data)
        try:
            while rest:
                # A write may take a part only, where the disk is nearly full.
                rest = rest[os.pwrite(self._file.fileno(), rest, begin + data.size - len(rest)) :]
        except OSError as error:
            raise _no_room(error) from error
        self._size += data.size
        return SpooledTable(begin, data.size, len(table), table.nbytes)

    def read(self, spooled: SpooledTable) -> pa.Table:
        """Raises LakeError where the disk fails."""
        try:
            data = os.pread(self._file.fileno(), spooled.size, spooled.begin)
        except OSError as error:
            raise _no_room(error) from error
        return pa.ipc.open_stream(data).read_all()


class SpooledTables:
    """Tables on the local disk, one after the other, as often as wanted."""

    def __init__(self) -> None:
        self._spool = TableSpool()
        self._tables: list[SpooledTable] = []

    def append(self, table: pa.Table) -> None:
        """Raises LakeError where the disk has no room."""
        if len(table):
            self._tables.append(self._spool.write(table))

    def __len__(self) -> int:
        """The rows of all."""
        return sum(table.rows for table in self._tables)

    def __iter__(self) -> Iterator[pa.Table]:
        return map(self._spool.read, self._tables)


def _no_room(error: OSError) -> LakeError:
    return LakeError(
        f"rows cannot wait on the local disk: {error.strerror or error}",
        where=tempfile.gettempdir(),
        fix="make room, or let TMPDIR name a directory with more of it",
    )
