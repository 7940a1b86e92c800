"""Files below one root, behind one Protocol: what staging and the lake's own records are written through.

A file system is enough (local, or shared with hard links and fsync, such as NFS); an object store stands behind the
same few methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

Bytes: TypeAlias = "bytes | pa.Buffer"


@dataclass(frozen=True, slots=True)
class Stored:
    """A file as a listing shows it: its path below the root, its bytes, and when it was written (seconds, UTC)."""

    path: str
    bytes: int
    modified: float


class Storage(Protocol):
    """Files below one root; `tests/contract/test_storage.py` says what each method promises.

    Paths are relative to the root, with `/`. What a call has written is durable when it returns. Any call may raise
    StagingUnavailable, and StagingError where rights are missing.
    """

    def url(self, relative: str) -> str:
        """The file's name, as people, error messages and Spark take it."""

    def exists(self, relative: str) -> bool: ...

    def read(self, relative: str) -> bytes | None:
        """The file's bytes; None if there is no such file."""

    def read_part(self, relative: str, start: int, size: int) -> bytes | None:
        """`size` bytes from `start` on, fewer where the file ends before; None if there is no such file."""

    def names(self, directory: str) -> Iterator[str]:
        """Names in a directory, in no order; none if it is missing."""

    def files(self, directory: str) -> Iterator[Stored]:
        """All files below a directory, at any depth, in no order; none if it is missing. What is written or removed
        meanwhile may be in it or not."""

    def create(self, relative: str, data: Bytes) -> bool:
        """Makes the file whole, or not at all; False if the name is taken already."""

    def create_missing(self, files: Mapping[str, Bytes]) -> None:
        """Makes those of the files whose names are not taken, each whole or not at all. Under every name a file is
        durable then."""

    def settle(self, relative: str) -> None:
        """Makes durable that the file has its name: a `create` may have failed between the two."""

    def replace(self, relative: str, data: Bytes) -> None:
        """Writes the file, whole at any moment, over an older one of the name."""

    def write_directory(self, directory: str, files: Mapping[str, Bytes]) -> None:
        """Makes a new directory with these files. Where that fails, what was written is removed again."""

    def remove(self, relative: str) -> None:
        """Removes the file, and directories below `log` and `chunks` that are empty then; no error if it is gone
        already. A loss of power may bring it back."""
