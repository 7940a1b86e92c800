"""Manifests of segments that follow each other, read ahead: that no block stands for them is asked once for several.

The order of looking is what counts (`compaction_blocks`). Own manifests of several segments are read, and then a block
over them is looked for. If it is not there, it did not stand for any of them when they were read, and each of these is
what was published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dblog_core.errors import StagingError
from dblog_core.staging import compaction_blocks
from dblog_core.staging.compaction_blocks import Block, manifest_path
from dblog_core.staging.published_segments import PublishedSegments
from dblog_core.storage import Storage

FIRST_WIDTH = 2
"""Segments that are read at a time to begin with: who takes one alone has waited for one too many."""
MOST_WIDTH = 16
_AHEAD_BYTES = 4 << 20  # of manifests that wait in memory


@dataclass(frozen=True, slots=True)
class Run:
    """What stands for segments that follow each other: manifests of their own, or that of one block.

    `is_cut_off`: the segment behind them was not there when they were read, nor a block over it, if that was asked.
    Retention may have removed it, unless the super-changelog begins before it, by a later look.
    """

    parts: Sequence[tuple[Block, bytes]] = ()
    is_cut_off: bool = False


def end_of_run(first: int, width: int) -> int:
    """Up to which segment to read from `first` on: within one block of 16, where a question serves for all."""
    return max(first + FIRST_WIDTH - 1, min(first + width - 1, compaction_blocks.block(1, first).last))


def read_run(storage: Storage, segments: PublishedSegments, first: int, last: int, *, asks_end: bool = True) -> Run:
    """The run that begins with segment `first`, and ends with `last` or before it. A fault of the storage beyond the
    first segment ends it too: it is met by a run that begins there. `asks_end`: whether a block stands for the segment
    behind it is asked too."""
    while True:
        own, is_missing = _read_own(storage, first, last)
        has_next = is_missing and (asks_end or not own)
        blocks = segments.find_blocks_over([*own, first + len(own)] if has_next else own)
        if (block := blocks.get(first)) is None:
            end = min(blocks, default=last + 1)
            parts = [(Block(number, number), data) for number, data in own.items() if number < end]
            return Run(parts, is_missing and not blocks)
        if (data := storage.read(block.path)) is not None:
            return Run([(block, data)])
        # It has been joined with others in between.


def _read_own(storage: Storage, first: int, last: int) -> tuple[dict[int, bytes], bool]:
    """The own manifests from `first` on, up to `last` or before it; and whether the one behind them was not there."""
    own: dict[int, bytes] = {}
    size = 0
    for number in range(first, last + 1):
        try:
            data = storage.read(manifest_path(number))
        except StagingError:
            if number == first:
                raise
            break
        if data is None:
            return own, True
        own[number] = data
        size += len(data)
        if size > _AHEAD_BYTES:
            break
    return own, False
