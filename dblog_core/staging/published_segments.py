"""Which segments are published: found by a few probes, with a million segments as with a hundred, joined or not.

Numbers have no gap from where the super-changelog begins (`log_start`) up to the newest one. A segment is there by its
own manifest, or by a block that stands for it (`compaction_blocks`).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from dblog_core.staging import compaction_blocks, log_start
from dblog_core.staging.compaction_blocks import Block, manifest_path
from dblog_core.storage import Storage

_MANIFEST = re.compile(r"(\d{20})\.json")


class PublishedSegments:
    """The numbers of one super-changelog's segments."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._newest = 0  # the newest segment that we know of: where the next search begins

    @property
    def newest_known(self) -> int:
        """The newest segment that was ever seen here; 0: none was. There may be newer ones."""
        return self._newest

    def note(self, number: int) -> None:
        """There is a segment of that number."""
        self._newest = max(self._newest, number)

    def has(self, number: int) -> bool:
        """Whether there is a segment of that number."""
        return self._storage.exists(manifest_path(number)) or self.find_block_over(number) is not None

    def find_block_over(self, number: int) -> Block | None:
        """The largest block that stands for the segment; in this order of looking none is missed (`blocks`)."""
        return self.find_blocks_over([number]).get(number)

    def find_blocks_over(self, numbers: Collection[int]) -> dict[int, Block]:
        """The largest block that stands for each of these segments, where one does. Each block is looked for once,
        after the caller has looked at the own manifests of all these segments, and in the order of the levels."""
        largest: dict[int, Block] = {}
        for level in range(1, compaction_blocks.LEVELS + 1):
            for block in {compaction_blocks.block(level, number): None for number in numbers}:
                if self._storage.exists(block.path):
                    largest |= {number: block for number in numbers if block.first <= number <= block.last}
        return largest

    def find_newest(self) -> int:
        """The newest segment's number; 0: there is none."""
        if not (low := self._find_any()):
            return 0
        step = 1
        while self.has(low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.has(middle) else (low, middle)
        self._newest = low
        return low

    def find_oldest(self) -> int:
        """The oldest segment's number that retention has left; 0: there is none."""
        begins = log_start.read_beginning(self._storage).segment
        low = begins - 1
        high = begins if self.has(begins) else self.find_newest()
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.has(middle) else (middle, high)
        return high

    def _find_any(self) -> int:
        """A segment that is there (0: none). Never one from before the beginning: what a loss of power has brought
        back there has gaps."""
        if self._newest and self.has(self._newest):
            return self._newest
        begins = log_start.read_beginning(self._storage).segment
        return begins if self.has(begins) else max(self._list(), default=0)

    def _list(self) -> list[int]:
        """Numbers that are there, from the directories: where nothing is known, and retention has removed the first."""
        blocks = map(compaction_blocks.parse_name, self._storage.names("compacted"))
        if numbers := [block.last for block in blocks if block]:
            return numbers
        return [int(name[1]) for name in map(_MANIFEST.fullmatch, self._storage.names("manifests")) if name]
