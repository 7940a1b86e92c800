"""Which segments are joined: aligned blocks of growing size, so that a name follows from a number without a listing.

A block of level 1 stands for 16 segments, one of level 2 for 16 blocks of level 1, and so on. A block is created while
what it stands for is there, and that is removed only after the block is durable. So a reader that looks for a segment
by its own manifest first and then by the blocks of rising levels finds it, whatever is joined and removed in between;
and where a block is found it counts: a manifest beside it is about to be removed, or was never published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FAN = 16
LEVELS = 3

_NAME = re.compile(r"(\d{20})-(\d{20})\.json")


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """Segments `first` to `last`; level 0: a single segment."""

    first: int
    last: int

    @property
    def path(self) -> str:
        if self.first == self.last:
            return f"manifests/{self.first:020d}.json"
        return f"compacted/{self.first:020d}-{self.last:020d}.json"

    @property
    def level(self) -> int:
        size = self.last - self.first + 1
        level = 0
        while size > 1:
            size //= FAN
            level += 1
        return level

    @property
    def parts(self) -> list[Block]:
        """The blocks of the level below."""
        size = (self.last - self.first + 1) // FAN
        return [Block(first, first + size - 1) for first in range(self.first, self.last + 1, size)]


def block(level: int, segment: int) -> Block:
    """The block of a level that a segment lies in."""
    size: int = FAN**level
    first = (segment - 1) // size * size + 1
    return Block(first, first + size - 1)


def over(segment: int) -> list[Block]:
    """All blocks that a segment lies in, the smallest first."""
    return [block(level, segment) for level in range(1, LEVELS + 1)]


def parse_name(name: str) -> Block | None:
    """The block of a file name in `compacted`; None: it is none."""
    numbers = _NAME.fullmatch(name)
    return Block(int(numbers[1]), int(numbers[2])) if numbers else None


def manifest_path(segment: int) -> str:
    """The path of a segment's own manifest."""
    return Block(segment, segment).path
