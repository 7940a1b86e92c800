"""A storage in memory that lies: it says of a file that it has made that it was there, or makes one after no answer."""

from __future__ import annotations

import random

from dblog_core.storage import Bytes
from tests.simulation.storage import Disk, MemoryStorage, away

SHARE = 0.2
"""Of creates that are put off, and of those that are denied."""

Late = list[tuple[str, bytes]]
"""Files that the storage has not made yet, and will: path and content."""


class Lying(MemoryStorage):
    """`late` gets what is put off, for `land`. `truthful` from then on, where a test comes to its end."""

    def __init__(self, disk: Disk, dice: random.Random, late: Late) -> None:
        super().__init__(disk)
        self.truthful = False
        self.denied = 0
        self._dice = dice
        self._late = late

    def create(self, relative: str, data: Bytes) -> bool:
        if self.truthful:
            return super().create(relative, data)
        lie = self._dice.random()
        if lie < SHARE:
            self._before("create", relative)
            self._late.append((relative, bytes(data)))
            raise away()
        is_created = super().create(relative, data)
        is_denied = is_created and lie <= 2 * SHARE
        self.denied += is_denied
        return is_created and not is_denied


def land(disk: Disk, dice: random.Random, late: Late) -> bool:
    """One of the files that were put off, in any order: it is made if its name is free by now. Whether it was."""
    if not late:
        return False
    path, data = late.pop(dice.randrange(len(late)))
    is_free = path not in disk.files
    if is_free:
        disk.put(path, data, durable=True)
    return is_free
