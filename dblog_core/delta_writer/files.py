"""The files of one Delta table: read whole or in part, created if absent."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from dblog_core.errors import LakeError
from dblog_core.storage import Bytes
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location

LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Paths are those below the table's directory, as the file system has them: not URL-encoded."""

    root: Location

    @classmethod
    def at(cls, table: Location) -> TableFiles:
        """Those of a table. What is written is everybody's to read who may read what Spark writes."""
        storage = table.storage
        return (
            cls(Location(storage.readable_by_others(), table.path)) if isinstance(storage, LocalStorage) else cls(table)
        )

    def __str__(self) -> str:
        return str(self.root)

    def url(self, path: str) -> str:
        return str(self.root / path)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def read(self, path: str) -> bytes | None:
        """The file's bytes; None if there is no such file."""
        return (self.root / path).read()

    def read_part(self, path: str, start: int, size: int) -> bytes | None:
        """`size` bytes from `start` on, fewer at the file's end; None if there is no such file."""
        return (self.root / path).read_part(start, size)

    def names(self, directory: str) -> Iterator[str]:
        return (self.root / directory).names()

    def create(self, path: str, data: Bytes) -> bool:
        """Makes the file whole, or not at all; False if the name is taken already."""
        return (self.root / path).create(data)

    def create_new(self, path: str, data: Bytes) -> None:
        """Makes a file of a name of its own."""
        if not (self.root / path).create_once(data):
            raise LakeError("a file of a new name is there already", where=self.url(path), fix="try again")

    def settle(self, path: str) -> None:
        """Makes durable that the file has its name: a `create` may have failed between the two."""
        self.root.storage.settle((self.root / path).path)

    def replace(self, path: str, data: Bytes) -> None:
        """Writes the file, whole at any moment, over an older one of the name."""
        (self.root / path).replace(data)

    def remove(self, path: str) -> None:
        (self.root / path).remove()

    def open(self, path: str, size: int) -> pa.NativeFile:
        """A file of `size` bytes, to be read here and there. Not mapped: what is cut short then must be an error,
        and not the process's end."""
        location = self.root / path
        if (local := location.local) is not None:
            try:
                return pa.OSFile(str(local))
            except FileNotFoundError as error:
                raise missing(self.url(path)) from error
        return pa.PythonFile(_Parts(self, path, size), mode="r")

    def relative(self, path: str) -> str | None:
        """The path below the table of an absolute path or URL; None where that is elsewhere."""
        for root, name in ((str(self.root), path), (urlsplit(str(self.root)).path, unquote(urlsplit(path).path))):
            # Another bucket may have the same path.
            same_bucket = urlsplit(path).netloc in ("", urlsplit(str(self.root)).netloc)
            if same_bucket and name.startswith(f"{root}/"):
                return name[len(root) + 1 :]
        return None


class _Parts(io.RawIOBase):
    """A file on an object store, by ranged reads."""

    def __init__(self, files: TableFiles, path: str, size: int) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        count = left if size < 0 else min(size, left)
        if not count:
            return b""
        data = self._files.read_part(self._path, self._at, count)
        if data is None:
            raise missing(self._files.url(self._path))
        self._at += len(data)
        return data


def missing(where: str) -> LakeError:
    """The error of a data file that the log names and storage does not have."""
    return LakeError(
        "a data file of the table is missing",
        where=where,
        fix="restore it from a backup, or run `dblog reset` for the table: it is built again",
    )
