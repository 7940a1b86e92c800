"""A lake and a staging that somebody replaces: copied, put back from an older copy, or begun anew.

    source      one log, which only grows; an entry is a row, or the high watermark of a chunk
    capture     seals the next entries of the log into a segment, or a segment that has a mark alone
    staging     segments under an identity; a copy has the identity too, and lacks the chunk files of later
    merger      asks the real `continuity.judge`, records which segments it merges, and brings their lines; it may die
                in between, and the next one asks again

The property, in every state: **a lake that continues a staging has exactly that staging's lines up to its own
segment.** So no merge brings a line twice, leaves one out, or brings lines of two super-changelogs.

A line is known by what made it: a row by its place in the log, so that a copy which reads the log again has the same
line; a chunk and a mark by themselves, since they are other ones each time. Not in these worlds: retention and joined
segments (`tests/unit/lake/test_continuity.py`), and a staging that is replaced while a merger reads it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from dblog_core.lake import continuity
from dblog_core.lake.continuity import UnfinishedMerge
from dblog_core.lake.lake_status import LakeStatus
from dblog_core.lake.merge_plan import Span
from dblog_core.staging import Staging, log_start
from dblog_core.staging.manifest import Manifest
from tests.protocol.capture import Violation
from tests.simulation.storage import Disk, MemoryStorage
from tests.unit.staged import manifest

ROW = "row"
CHUNK = "chunk"
MARK = "mark"
Line = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Segment:
    """`place`: how much of the log is read after it; `sealed_at`: a time that no other segment has."""

    lines: tuple[Line, ...]
    place: int
    sealed_at: int = 0


@dataclass(frozen=True, slots=True)
class StagingState:
    """`chunk_files`: numbers of the entries of the log whose chunk it has."""

    identity: int
    segments: tuple[Segment, ...]
    chunk_files: frozenset[int] = frozenset()

    @property
    def place(self) -> int:
        return self.segments[-1].place

    @property
    def end(self) -> tuple[int, int]:
        """The place of its newest segment, and when that was sealed."""
        return self.place, self.segments[-1].sealed_at

    def lines(self, upto: int) -> tuple[Line, ...]:
        """Those of its first segments."""
        return tuple(line for segment in self.segments[:upto] for line in segment.lines)

    def end_of(self, segment: int) -> int:
        """The last offset: offsets count lines."""
        return len(self.lines(segment))


@dataclass(frozen=True, slots=True)
class Merge:
    """Which segments, up to `segment`, of which staging."""

    identity: str | None
    segment: int
    offset: int
    place: int
    sealed_at: int


@dataclass(frozen=True, slots=True)
class LakeState:
    """`merged`: the last finished merge; `begun`: one that is recorded, and has no outcome."""

    lines: tuple[Line, ...] = ()
    merged: Merge | None = None
    begun: Merge | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How often each thing happens at most."""

    entries: int = 2
    marks: int = 1
    copies: int = 1
    replacements: int = 2
    merges: int = 2


@dataclass(frozen=True, slots=True)
class World:
    """One state. `log`: its entries; `left`: how often each thing may still happen."""

    staging: StagingState
    lake: LakeState
    left: Limits
    log: tuple[str, ...] = ()
    copy: StagingState | None = None

    @classmethod
    def begin(cls, limits: Limits) -> World:
        return cls(StagingState(1, (Segment((), 0),)), LakeState(), limits)

    def freeze(self) -> Hashable:
        return self

    def steps(self) -> Iterator[tuple[str, World]]:
        """What can happen next. Raises Violation where a lake that continues the staging has other lines."""
        self._check()
        for steps in (self._write(), self._capture(), self._replace(), self._merge()):
            for label, world in steps:
                yield label, world._renumber_times()

    # The source and its capture -------------------------------------------------------------------------------------

    def _write(self) -> Iterator[tuple[str, World]]:
        if not self.left.entries:
            return
        left = replace(self.left, entries=self.left.entries - 1)
        yield "a row is written", replace(self, log=(*self.log, ROW), left=left)
        files = self.staging.chunk_files | {len(self.log)}
        staging = replace(self.staging, chunk_files=files)
        yield "a chunk is staged", replace(self, log=(*self.log, CHUNK), staging=staging, left=left)

    def _capture(self) -> Iterator[tuple[str, World]]:
        for place in range(self.staging.place + 1, len(self.log) + 1):
            lines = tuple(self._lines(self.staging.place, place))
            yield f"the log up to {place} is sealed", self._publish(Segment(lines, place))
        if self.left.marks:
            mark = Segment(((MARK, self.left.marks),), self.staging.place)
            yield "a mark is sealed", replace(self._publish(mark), left=replace(self.left, marks=self.left.marks - 1))

    def _lines(self, start: int, end: int) -> Iterator[Line]:
        for number in range(start, end):
            if self.log[number] == ROW or number in self.staging.chunk_files:
                yield self.log[number], number

    def _publish(self, segment: Segment) -> World:
        segments = (*self.staging.segments, replace(segment, sealed_at=len(self._times())))
        return replace(self, staging=replace(self.staging, segments=segments))

    def _times(self) -> dict[int, int]:
        """The times at which its segments were sealed, each with its number in the order of their first appearance."""
        stagings = [self.staging] if self.copy is None else [self.staging, self.copy]
        records = [record for record in (self.lake.merged, self.lake.begun) if record is not None]
        times = [segment.sealed_at for staging in stagings for segment in staging.segments]
        times += [record.sealed_at for record in records]
        return {time: number for number, time in enumerate(dict.fromkeys(times))}

    def _renumber_times(self) -> World:
        """The same state, with its numbers for times: only whether two are the same counts."""
        numbers = self._times()
        if all(time == number for time, number in numbers.items()):
            return self

        def renumber_staging(staging: StagingState) -> StagingState:
            segments = (replace(segment, sealed_at=numbers[segment.sealed_at]) for segment in staging.segments)
            return replace(staging, segments=tuple(segments))

        def renumber_record(record: Merge | None) -> Merge | None:
            return None if record is None else replace(record, sealed_at=numbers[record.sealed_at])

        lake = self.lake
        return replace(
            self,
            staging=renumber_staging(self.staging),
            copy=None if self.copy is None else renumber_staging(self.copy),
            lake=replace(lake, merged=renumber_record(lake.merged), begun=renumber_record(lake.begun)),
        )

    # Who replaces the staging ---------------------------------------------------------------------------------------

    def _replace(self) -> Iterator[tuple[str, World]]:
        if self.left.copies:
            yield "it is copied", replace(self, copy=self.staging, left=replace(self.left, copies=self.left.copies - 1))
        if not self.left.replacements:
            return
        after = replace(self, left=replace(self.left, replacements=self.left.replacements - 1))
        if self.copy is not None:
            yield "the copy is put back", replace(after, staging=self.copy)
        for place in range(len(self.log) + 1):
            new = StagingState(after.left.replacements + 2, (Segment((), place, len(self._times())),))
            yield f"one is begun anew at {place}", replace(after, staging=new)

    # The lake -------------------------------------------------------------------------------------------------------

    def _merge(self) -> Iterator[tuple[str, World]]:
        if not _may_merge(self.staging, self.lake):
            return
        lake = self.lake
        if lake.begun is not None:
            lines = self.staging.lines(lake.begun.segment)[len(lake.lines) :]
            merged = LakeState((*lake.lines, *lines), lake.begun)
            yield "the merge is finished", replace(self, lake=merged)
        elif self.left.merges and len(self.staging.segments) > (lake.merged.segment if lake.merged else 0):
            left = replace(self.left, merges=self.left.merges - 1)
            head = len(self.staging.segments)
            identity = _open(self.staging).identity()
            begun = Merge(identity, head, self.staging.end_of(head), *self.staging.end)
            yield "a merge begins", replace(self, lake=replace(lake, begun=begun), left=left)

    def _check(self) -> None:
        merged = self.lake.merged
        if merged is None or not _may_merge(self.staging, replace(self.lake, begun=None)):
            return
        lines = self.staging.lines(merged.segment)
        if lines != self.lake.lines:
            raise Violation(f"the lake continues a staging of {lines}, and has {self.lake.lines}")


@cache
def _open(state: StagingState) -> Staging:
    """A real staging with these segments, of which it has no row."""
    staging = Staging(source="shop", storage=MemoryStorage(Disk()))
    log_start.create_identity(staging.storage, lambda: f"{state.identity}")
    for number in range(1, len(state.segments) + 1):
        staging.publish(_manifest(state, number))
    return staging


def _manifest(state: StagingState, number: int) -> Manifest:
    segment = state.segments[number - 1]
    bare = manifest(number, state.end_of(number - 1) + 1, state.end_of(number))
    return replace(bare, log_position=f"log{segment.place}", position=f"{segment.place}", sealed_at=segment.sealed_at)


@cache
def _may_merge(staging: StagingState, lake: LakeState) -> bool:
    """What the product says."""
    return continuity.judge(_open(staging), _status(lake), _unfinished_merge(lake)).may_merge


def forget_answers() -> None:
    """Before the product says something else, and after."""
    _open.cache_clear()
    _may_merge.cache_clear()


def _status(lake: LakeState) -> LakeStatus | None:
    if (merge := lake.merged) is None:
        return None
    status = LakeStatus(1, merge.segment, merge.offset, f"log{merge.place}", staging=merge.identity)
    return replace(status, sealed_at=merge.sealed_at)


def _unfinished_merge(lake: LakeState) -> UnfinishedMerge | None:
    if (merge := lake.begun) is None:
        return None
    first = lake.merged.segment + 1 if lake.merged is not None else 1
    span = Span(first, merge.segment, len(lake.lines) + 1, merge.offset, f"log{merge.place}", None, merge.sealed_at)
    return UnfinishedMerge(2, span, merge.identity)
