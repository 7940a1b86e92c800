"""Joins small segments into large ones beside the capture: fewer files, and not one offset or printed line changes.

What is joined, and how it is named, stands in `blocks`. For each block of 16 segments, or 16 blocks of a level:

1. its parts are read, and their small files are written again as one a table version; large files and chunks stay
   where they are, and only the reference moves;
2. the manifest of the block is created if absent, which makes it durable. From here on readers take it, and a reader
   that stands within it takes the rest of it (`Manifest.cut`);
3. after a grace time, in which a reader that has read a part's manifest can read its files, the parts' own files that
   the
   block does not refer to are removed, and then the parts' manifests; soon, where all rows lie in manifests.

Any of it may end anywhere: what has not come to 2 is a leftover that no manifest names, what has is finished by the
next one that looks. Two that do this at once (one is a leader that has lost its lease) differ only in names: the block
that is created first counts. A capture's number stays taken: `Staging.publish` looks for a block over it.

A block is joined only if a later segment is there, so that the newest manifest is always one of its own; if it ends
where a transaction ends, since a merge stops nowhere else; and up to a size that a merge can take at once.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dblog_core.errors import CorruptSegment, DblogError
from dblog_core.interfaces import Clock
from dblog_core.staging import compaction_blocks
from dblog_core.staging.changelog import Staging
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.manifest import DataFile, Manifest, join_manifests
from dblog_core.staging.manifest_file import encode_manifest

log = logging.getLogger(__name__)

GRACE = 600.0  # seconds for which what was joined stays readable under its old names
_WITHOUT_FILES = 10.0  # seconds, where no file goes: who has read such a manifest has all that it names
_TICK = 1.0  # seconds between two looks
_REST = 4.0  # times as long as a step took: so compaction takes a fifth of one core at most
_LARGE = 4 << 20  # bytes: a file of that size is not written again
_MAX_BYTES = 32 << 20  # of files that are written again for one block
_MAX_ROWS = 400_000  # of one block, chunks included


class Compactor:
    """Compacts one source's staging; `staging` is a handle of its own. `grace`: seconds."""

    def __init__(self, staging: Staging, clock: Clock, *, grace: float = GRACE) -> None:
        self._staging = staging
        self._clock = clock
        self._grace = grace
        self._next: dict[int, int] = {}  # level -> first segment of the next block to look at
        self._undecided: dict[Block, list[DataFile]] = {}  # blocks of which it is not known whether they were created
        self._due: list[tuple[float, Block]] = []  # when the parts of a block can go

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set. A fault is reported, and the next look begins again."""
        while not self._clock.wait(stop, _TICK):
            try:
                began = self._clock.monotonic()
                for _ in self.steps():
                    if self._clock.wait(stop, _REST * (self._clock.monotonic() - began)):
                        return
                    began = self._clock.monotonic()
            except DblogError as error:
                log.warning("compaction: %s", error)
                self.again()

    def again(self) -> None:
        """After a fault: the next look begins again."""
        self._next = {}
        self._due = []

    def steps(self) -> Iterator[None]:
        """All that can be done now, a block at a time."""
        if not self._next:
            self._begin()
        head = self._staging.head_number()
        for level in range(1, compaction_blocks.LEVELS + 1):
            while (block := compaction_blocks.block(level, self._next[level])).last < head:
                worked = self._join(block)
                self._next[level] = block.last + 1
                if worked:
                    yield
        while self._due and self._due[0][0] <= self._clock.time():
            self._remove_parts(self._due[0][1])
            heapq.heappop(self._due)
            yield

    def _begin(self) -> None:
        """Finds what was joined already, and which files of it must be removed."""
        storage = self._staging.storage
        blocks = [block for name in storage.names("compacted") if (block := compaction_blocks.parse_name(name))]
        # By two listings: of a busy source's blocks most are too large to be joined further, and stay.
        paths = {block.path for block in blocks} | {f"manifests/{name}" for name in storage.names("manifests")}
        first = max(1, self._staging.first_number())
        self._due = []
        for block in blocks:
            if block.parts[-1].path in paths:
                self._later(block)
        begin = {level: compaction_blocks.block(level, first).first for level in range(1, compaction_blocks.LEVELS + 1)}
        for level, start in begin.items():
            # In this level's order: of what lies before its last block, the rest cannot be joined.
            begin[level] = max([start, *(b.last + 1 for b in blocks if b.level >= level)])
        self._next = begin

    def _later(self, block: Block, parts: Sequence[Manifest] | None = None, *, seen: float = 0.0) -> None:
        """Has the parts of a block that is there removed once their time has come, if they are there still. `seen`:
        since when it is known to be there, where that may be later than it says."""
        if not self._staging.storage.exists(block.parts[-1].path) or (manifest := self._staging.part(block)) is None:
            return
        old = parts if parts is not None else [m for p in block.parts if (m := self._staging.part(p)) is not None]
        still_named = {f.path for f in manifest.files}
        files = any(f.path and f.path not in still_named for m in old for f in m.files)
        grace = self._grace if files else min(self._grace, _WITHOUT_FILES)
        heapq.heappush(self._due, (max(manifest.joined_at / 1e6, seen) + grace, block))

    def _join(self, block: Block) -> bool:
        """Joins what can be joined; whether it did."""
        if self._staging.storage.exists(block.path):  # another capture's work, or ours that was not known to be there
            self._decide(block, self._undecided.pop(block, []))
            self._later(block, seen=self._clock.time())
            return False
        if (parts := self._parts(block)) is None:
            return False
        self._staging.storage.settle(block.parts[-1].path)  # its capture may not have come to that yet
        try:
            files = self._undecided.get(block) or self._rewrite_files(block, parts)
        except CorruptSegment:
            if block.first >= self._staging.beginning().segment:
                raise
            return False  # retention has begun to remove the block's parts: files go first
        manifest = replace(join_manifests(parts, files), joined_at=int(self._clock.time() * 1e6))
        # Until an answer is certain the files stay: the block that names them may come to be there later.
        self._undecided[block] = files
        if not self._staging.storage.create(block.path, encode_manifest(manifest)):
            self._decide(block, files)
        del self._undecided[block]
        self._later(block, parts)
        return True

    def _decide(self, block: Block, files: Sequence[DataFile]) -> None:
        """Removes what nobody names of the files that we have written for a block which is there.

        A storage that says "taken" may mean our own attempt, whose answer was lost. Only what the block names tells:
        it stays as it is, and no other comes in its place.
        """
        if files and (manifest := self._staging.part(block)) is not None:
            parts = [m for part in block.parts if (m := self._staging.part(part)) is not None]
            self._remove(files, still_named=[file for m in (manifest, *parts) for file in m.files])

    def _parts(self, block: Block) -> list[Manifest] | None:
        """The manifests of a block's parts, if it can be joined."""
        manifests: list[Manifest] = []
        for part in block.parts:
            if (manifest := self._staging.part(part)) is None:
                return None
            manifests.append(manifest)
        rows = sum(f.rows for m in manifests for f in m.files) + sum(c.rows for m in manifests for c in m.chunks)
        size = sum(f.bytes for m in manifests for f in m.files if f.bytes < _LARGE)
        fits = rows <= _MAX_ROWS and size <= _MAX_BYTES
        return manifests if fits and manifests[-1].partial == 0 else None

    def _rewrite_files(self, block: Block, parts: Sequence[Manifest]) -> list[DataFile]:
        """The block's files: small ones of a table version as one. Durable when it returns."""
        small: dict[str, list[DataFile]] = {}
        stay: list[DataFile] = []
        for file in (f for m in parts for f in m.files):
            if file.bytes < _LARGE:
                small.setdefault(file.schema, []).append(file)
            else:
                stay.append(file)
        writer = self._staging.open_segment(block.last, parts[-1].epoch)
        for schema, files in small.items():
            for file in files:
                for batch in self._staging.log_batches(file):
                    writer.add(self._staging.schema(schema), batch)
        return [*writer.write(), *stay]

    def _remove_parts(self, block: Block) -> None:
        """Removes what the block stands for: first files, then the manifests that name them, in order."""
        manifest = self._staging.part(block)
        if manifest is None:
            return  # joined itself, and removed: its parts went first
        self._staging.storage.settle(block.path)
        for part in block.parts:
            if part.level and self._staging.storage.exists(part.parts[-1].path):
                self._remove_parts(part)
            if (old := self._staging.part(part)) is not None:
                self._remove(old.files, still_named=manifest.files)
                self._staging.storage.remove(part.path)

    def _remove(self, files: Sequence[DataFile], *, still_named: Sequence[DataFile]) -> None:
        paths = {f.path for f in still_named}
        for file in files:
            if file.path and file.path not in paths:
                self._staging.storage.remove(file.path)
