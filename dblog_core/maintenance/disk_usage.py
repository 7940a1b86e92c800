"""How much room staging and lake take, as far as it can be counted within a given time: who asks should not wait.

A Delta table's newest version is read from its log, old versions and leftovers by listing its directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dblog_core.lake import table_commits
from dblog_core.maintenance.schedule import TableSize
from dblog_core.storage import Storage
from dblog_core.storage.location import Location

STAGED = {"log": ("log",), "chunks": ("chunks",), "manifests": ("manifests", "compacted")}
"""What lies in staging, and in which of its directories."""

_EVERY = 256  # files between two looks at the clock


class Patience:
    """Ends after `seconds`; None: never."""

    def __init__(self, seconds: float | None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._deadline = None if seconds is None else monotonic() + seconds

    def over(self) -> bool:
        return self._deadline is not None and self._monotonic() >= self._deadline


@dataclass(frozen=True, slots=True)
class Room:
    """Files, and their bytes."""

    files: int
    bytes: int


def of_staging(storage: Storage, patience: Patience) -> dict[str, Room | None]:
    """The room of each part of staging; None where patience was over first."""
    return {name: _sum(storage, directories, patience) for name, directories in STAGED.items()}


def of_table(path: Location, name: str, patience: Patience) -> TableSize | None:
    """The size of a Delta table, whose rows are not counted; None where there is none, or patience was over first."""
    from dblog_core.delta_writer import snapshot
    from dblog_core.delta_writer.files import TableFiles

    if patience.over() or table_commits.version(path) is None:
        return None
    if (disk := _sum(path.storage, (path.path,), patience)) is None:
        return None
    sizes = [live.size for live in snapshot.newest(TableFiles.at(path)).files.values()]
    return TableSize(name, len(sizes), sum(sizes), None, None, disk.files, disk.bytes)


def _sum(storage: Storage, directories: tuple[str, ...], patience: Patience) -> Room | None:
    files = size = 0
    for directory in directories:
        for file in storage.files(directory):
            files += 1
            size += file.bytes
            # Reading the clock for each file would cost as much as counting it.
            if files % _EVERY == 0 and patience.over():
                return None
    return Room(files, size)
