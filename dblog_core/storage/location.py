"""A place below a storage's root: a directory or a file that is known by its storage and its path there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dblog_core.storage import Bytes, Storage
from dblog_core.storage.local import LocalStorage


@dataclass(frozen=True, slots=True)
class Location:
    """As text it is what people and Spark call it. Equal if storage and path are."""

    storage: Storage
    path: str = ""

    def __truediv__(self, name: str) -> Location:
        return Location(self.storage, f"{self.path}/{name}" if self.path else name)

    def __str__(self) -> str:
        return self.storage.url(self.path)

    @property
    def local(self) -> Path | None:
        """Its path where it lies on a file system; None on an object store."""
        return self.storage.path(self.path) if isinstance(self.storage, LocalStorage) else None

    def exists(self) -> bool:
        """Whether there is such a file."""
        return self.storage.exists(self.path)

    def read(self) -> bytes | None:
        return self.storage.read(self.path)

    def read_part(self, start: int, size: int) -> bytes | None:
        return self.storage.read_part(self.path, start, size)

    def names(self) -> Iterator[str]:
        return self.storage.names(self.path)

    def create(self, data: Bytes) -> bool:
        """Makes the file whole, or not at all; False if the name is taken already."""
        return self.storage.create(self.path, data)

    def create_once(self, data: Bytes) -> bool:
        """`create` by a writer whose bytes nobody else writes. True also where the storage says of a file that it has
        just made that the name was taken: NFS may, and an object store that meets the client's second request."""
        return self.create(data) or self.read() == data

    def replace(self, data: Bytes) -> None:
        self.storage.replace(self.path, data)

    def remove(self) -> None:
        self.storage.remove(self.path)
