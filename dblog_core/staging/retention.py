"""Removes the oldest segments of the super-changelog, and nothing that anybody still needs.

What goes is decided on manifests alone (`decide`): whole ones (a segment, or the block that stands for it), the oldest
first, each older than `keep`, ending between transactions, and before everything that a `Need` names. Then:

1. `beginning.json` says where the super-changelog begins from now on, durably. What lies before it counts for nobody:
   a reader that stands there gets an error which says so, a capture that wakes up late is fenced, and whatever is left
   there by a crash, or comes back by a loss of power, is as good as gone;
2. the chunk files that manifests before it name, then these manifests, the oldest first, blocks after their parts;
3. the log files of segments before it, those of crashes included: a file's name tells its segment, and neither a
   capture nor a compactor writes for a segment before the beginning what counts after it;
4. chunk files that nobody names: of dumps that are over, older than `keep`, and named by no manifest that is kept. A
   capture that is behind may still place one: only those go whose watermarks its log has passed;
5. table records that the newest manifest does not name.

Any of it may end anywhere; the next run does the rest. Table versions stay: they are few, and lake tables name them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dblog_core.model.task_id import TaskId
from dblog_core.staging import compaction_blocks, table_records
from dblog_core.staging.changelog import Staging
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.log_start import Beginning, Need
from dblog_core.staging.manifest import Manifest

_LOG_FILE = re.compile(r"log/(\d{20})-")
_RECORDS_SECONDS = 3600.0
"""For which table records stay that a newer manifest no longer names: staging may be copied meanwhile."""
_MANIFEST = re.compile(r"(\d{20})\.json")


_WATERMARK_SECONDS = 3600.0
"""After a chunk's file its watermark is committed, at the latest, and by another clock: a source's."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What one run did. `segments`: how many no longer count; `files`: how many were removed."""

    beginning: Beginning
    segments: int
    files: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The first segment that stays, with its offset and the time it was sealed (microseconds); what held others."""

    segment: int
    offset: int
    sealed_at: int
    held: tuple[Need, ...]


def decide(manifests: Iterable[Manifest], *, head: int, before: float, needs: Sequence[Need]) -> Decision | None:
    """Which segment is the first to stay; None: there is none at all.

    `manifests`: whole ones in order from the beginning on; `head`: the newest segment, which always stays; `before`:
    sealed earlier (microseconds) is old enough to go.
    """
    first: Manifest | None = None
    for manifest in manifests:
        first = first or manifest
        holding = tuple(n for n in needs if n.segment <= manifest.segment)
        young = manifest.segment >= head or manifest.sealed_at >= before
        if young or holding:
            return Decision(first.first, first.first_offset, first.sealed_at, () if young else holding)
        if manifest.partial == 0:  # otherwise a reader would begin within a transaction
            first = None
    return None


class Retention:
    """Retention of one source's staging, by the holder of the lake's lock.

    `keep`: seconds, which may be infinite; `now`: seconds UTC; `over`: whether a dump of that id has ended.
    """

    def __init__(self, staging: Staging, *, keep: float, now: float, over: Callable[[str], bool]) -> None:
        self._staging = staging
        self._storage = staging.storage
        self._now = now
        self._over = over
        self._before = now - keep

    def run(self, needs: Sequence[Need]) -> Removed:
        """Removes what can go. Raises CorruptSegment for a manifest that cannot be read: nothing is removed then."""
        before = self._staging.beginning()
        beginning = self._decide(before, needs)
        self._staging.begin_at(beginning)
        files = self._remove(self._old(beginning.segment))
        files += self._remove(self._orphans(beginning.segment))
        files += self._remove(list(table_records.find_unused(self._staging, before=self._now - _RECORDS_SECONDS)))
        return Removed(beginning, beginning.segment - before.segment, files)

    def _decide(self, before: Beginning, needs: Sequence[Need]) -> Beginning:
        looked = replace(before, looked_at=int(self._now * 1e6), held=())
        head = self._staging.head_number()
        decision = decide(self._manifests(head), head=head, before=self._before * 1e6, needs=needs) if head else None
        if decision is None:
            return looked
        if decision.segment <= before.segment:  # a block over the beginning counts from there on
            first = self._staging.manifest(before.segment)
            return replace(looked, sealed_at=first.sealed_at, held=decision.held)
        return replace(
            looked,
            segment=decision.segment,
            offset=decision.offset,
            sealed_at=decision.sealed_at,
            held=decision.held,
        )

    def _manifests(self, head: int) -> Iterator[Manifest]:
        """The manifests that count, uncut, from the beginning on."""
        number = self._staging.first_number()
        while number <= head:
            manifest = self._staging.manifest(number)
            yield manifest
            number = manifest.segment + 1

    def _old(self, first: int) -> Iterator[str]:
        """Files of what lies before segment `first`, in the order in which they go."""
        old = sorted(self._blocks_before(first), key=lambda b: (b.last, b.level))
        for block in old:
            if (manifest := self._staging.part(block)) is not None:
                yield from (chunk.path for chunk in manifest.chunks)
            yield block.path
        for file in self._storage.files("log"):
            if (name := _LOG_FILE.match(file.path)) and int(name[1]) < first:
                yield file.path

    def _blocks_before(self, first: int) -> Iterator[Block]:
        for name in self._storage.names("manifests"):
            if (digits := _MANIFEST.fullmatch(name)) and int(digits[1]) < first:
                yield Block(int(digits[1]), int(digits[1]))
        for name in self._storage.names("compacted"):
            if (block := compaction_blocks.parse_name(name)) is not None and block.last < first:
                yield block

    def _orphans(self, first: int) -> list[str]:
        """Chunk files that nobody has placed, nor ever will. Manifests are read only where there may be any."""
        over: dict[str, bool] = {}
        orphans: set[str] = set()
        if (head := self._staging.head()) is None:
            return []
        read_upto = (head.commit_time or 0) / 1e6 - _WATERMARK_SECONDS
        for file in self._storage.files("chunks"):
            if file.modified < min(self._before, read_upto) and self._is_over(file.path.split("/")[1], over):
                orphans.add(file.path)
        if orphans:
            unfinished = {TaskId.parse(task).dump for task in head.tasks}
            orphans = {path for path in orphans if path.split("/")[1] not in unfinished}
            for manifest in self._staging.manifests(after=first - 1):
                orphans -= {chunk.path for chunk in manifest.chunks}
        return sorted(orphans)

    def _is_over(self, dump: str, answers: dict[str, bool]) -> bool:
        if dump not in answers:
            answers[dump] = self._over(dump)
        return answers[dump]

    def _remove(self, paths: Iterable[str]) -> int:
        count = 0
        for path in paths:
            self._storage.remove(path)
            count += 1
        return count
