"""All moments at which a reader of manifests may meet the others: captures, compactors and retention, in small numbers.

The reader runs on a storage whose answers are given beforehand; where they end, every answer that the others make
possible there is tried. For the answers so far the set of all states is known that the storage may be in, so that no
order of steps is left out, and none is gone through twice.

Each step of the others is one request, at any moment. They keep to what `compaction`, `retention` and `Staging.publish`
promise: a block is created while its parts are there, and these go only after it, in order; retention moves the
beginning before it removes the oldest; a capture that was paused may publish a number again that is gone, and removes
it once it has looked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any
from unittest import mock

import orjson

from dblog_core.errors import CorruptSegment
from dblog_core.staging import Staging, compaction_blocks, manifest_runs
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.log_start import Beginning
from dblog_core.staging.manifest import Manifest, join_manifests
from dblog_core.staging.manifest_file import encode_manifest
from dblog_core.staging.sealed_json import seal
from tests.unit.staged import manifest

LATE = 9
"""The epoch of what a paused capture publishes again: it is nobody's."""
Call = tuple[str, str]
Answer = bytes | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Scope:
    """How much happens: segments `before` are published when it begins, and up to `last` later; `late`: numbers that
    are published again; `again`: blocks that a paused compactor makes again; `removals`: moves of the beginning."""

    before: int
    last: int
    late: int = 1
    again: int = 0
    removals: int = 0

    @property
    def blocks(self) -> list[Block]:
        """Those that lie within the scope."""
        levels = range(1, compaction_blocks.LEVELS + 1)
        found = {compaction_blocks.block(level, n) for level in levels for n in range(1, self.last + 1)}
        return sorted(block for block in found if block.last < self.last)


@dataclass(frozen=True, slots=True)
class State:
    """What is stored: of each file its content by its path; and what the others have done and may still do."""

    files: frozenset[tuple[str, int]]
    """Paths, each with the epoch of its manifest."""
    published: int
    begins: int = 1
    made: frozenset[Block] = frozenset()
    """Blocks that were there at some time."""
    removed: frozenset[str] = frozenset()
    late: int = 0
    again: int = 0
    removals: int = 0

    @property
    def paths(self) -> set[str]:
        return {path for path, _ in self.files}

    def create(self, path: str, epoch: int = 1) -> State:
        return replace(self, files=self.files | {(path, epoch)})

    def remove(self, path: str) -> State:
        left = frozenset(file for file in self.files if file[0] != path)
        return replace(self, files=left, removed=self.removed | {path})


def _steps(state: State, scope: Scope) -> Iterator[State]:
    """What each of the others may do next."""
    paths = state.paths
    if state.published < scope.last:
        number = state.published + 1
        yield replace(state.create(_own(number)), published=number)
    for block in scope.blocks:
        parts = [part.path for part in block.parts]
        genuine = all((path, 1) in state.files for path in parts)
        if block not in state.made and genuine and block.last < state.published:
            yield replace(state.create(block.path), made=state.made | {block})
        if block in state.made and block.path not in paths and state.again < scope.again:
            yield replace(state.create(block.path), again=state.again + 1)
        if block.path in paths:
            yield from _remove_parts(state, block)
    yield from _retain(state, scope)
    for number in range(1, state.published + 1):
        path = _own(number)
        if path not in paths and path in state.removed and state.late < scope.late:
            yield replace(state.create(path, LATE), late=state.late + 1)
        over = [block for block in scope.blocks if block.first <= number <= block.last and block.path in paths]
        if (path, LATE) in state.files and (over or number < state.begins):
            yield state.remove(path)


def _remove_parts(state: State, block: Block) -> Iterator[State]:
    """The next part that goes: its own parts have gone before it, and the parts before it too."""
    for part in block.parts:
        if part.path in state.paths:
            if not part.level or all((inner.path, 1) not in state.files for inner in part.parts):
                yield state.remove(part.path)
            if (part.path, LATE) not in state.files:
                return


def _retain(state: State, scope: Scope) -> Iterator[State]:
    if state.removals < scope.removals:
        standing = [block for block in scope.blocks if block.path in state.paths]
        for number in range(state.begins + 1, state.published + 1):
            if not any(block.first < number <= block.last for block in standing):
                yield replace(state, begins=number, removals=state.removals + 1)
    own = [Block(n, n) for n in range(1, scope.last + 1)]
    old = [b for b in (*own, *scope.blocks) if b.path in state.paths and b.last < state.begins]
    if old:
        yield state.remove(min(old, key=lambda block: (block.last, block.level)).path)


def _own(number: int) -> str:
    return Block(number, number).path


@cache
def _content(path: str, epoch: int) -> bytes:
    numbers = [int(part) for part in path.rpartition("/")[2].removesuffix(".json").split("-")]
    own = [manifest(number, number, number, epoch=epoch) for number in range(numbers[0], numbers[-1] + 1)]
    return encode_manifest(own[0] if len(own) == 1 else join_manifests(own, ()))


class _Asked(BaseException):
    """The reader wants an answer that is not given yet."""

    def __init__(self, call: Call) -> None:
        self.call = call


class _Answers:
    """A storage that gives the answers one after the other."""

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        self._answers = answers
        self._given = 0
        self.root = Path("/moments")

    def _ask(self, what: str, path: str) -> Any:
        if self._given == len(self._answers):
            raise _Asked((what, path))
        self._given += 1
        return self._answers[self._given - 1]

    def url(self, path: str) -> str:
        return path

    def exists(self, path: str) -> bool:
        return bool(self._ask("exists", path))

    def read(self, path: str) -> bytes | None:
        answer: bytes | None = self._ask("read", path)
        return answer

    def names(self, directory: str) -> Iterator[str]:
        yield from self._ask("names", directory)

    def settle(self, path: str) -> None:
        """All is durable here."""


def _answer(call: Call, state: State) -> Answer:
    what, path = call
    if what == "names":
        return tuple(sorted(p.rpartition("/")[2] for p in state.paths if p.startswith(f"{path}/")))
    if path == "beginning.json":
        return seal(orjson.dumps(Beginning(state.begins, state.begins).to_json())) if state.begins > 1 else None
    epoch = next((e for p, e in state.files if p == path), None)
    return epoch is not None if what == "exists" else epoch and _content(path, epoch)


class Moments:
    """Goes through all of them for a reader. `reads`: what it does with a staging, from the segment behind `after` to
    the newest, or to `upto`; it gives each manifest that it gets; `comes_again`: one is enough. `seen`: how it has
    ended, and how often."""

    def __init__(
        self,
        scope: Scope,
        reads: Callable[[Staging], Iterator[Manifest]],
        *,
        after: int = 0,
        upto: int | None = None,
        comes_again: bool = False,
    ) -> None:
        self._scope = scope
        self._reads = reads
        self._upto = upto
        self._after = after
        self._comes_again = comes_again
        self._masks: dict[Call, dict[Answer, int]] = {}
        self.seen = {"end": 0, "error": 0}
        own = frozenset((_own(number), 1) for number in range(1, scope.before + 1))
        self._states: list[State] = []
        self._reach: list[int] = []
        """Of each state: those that may follow, itself included, a bit each."""
        self._following: dict[int, int] = {}
        self._find_states(State(own, scope.before), {})
        self._begins: dict[int, int] = {}
        for number, state in enumerate(self._states):
            self._begins[state.begins] = self._begins.get(state.begins, 0) | 1 << number

    def _find_states(self, state: State, numbers: dict[State, int]) -> int:
        if state not in numbers:
            later = [self._find_states(step, numbers) for step in _steps(state, self._scope)]
            numbers[state] = len(self._states)
            self._states.append(state)
            self._reach.append(reduce(or_, (self._reach[number] for number in later), 1 << numbers[state]))
        return numbers[state]

    def explore(self) -> None:
        """Raises AssertionError for a moment at which the reader is wrong."""
        for published in range(self._scope.before, self._scope.last + 1):
            may_be = [number for number, state in enumerate(self._states) if state.published == published]
            self._explore((), sum(1 << number for number in may_be), published)

    def _explore(self, answers: tuple[Answer, ...], may_be: int, published: int) -> None:
        """`may_be`: the states in which the storage may have been at the last answer; `published`: how many segments
        there were at the first."""
        taken: list[Manifest] = []
        next_call: Call | None = None
        error: CorruptSegment | None = None
        try:
            taken.extend(self._reads(Staging("/moments", source="shop", storage=_Answers(answers))))
        except _Asked as asked:
            next_call = asked.call
        except CorruptSegment as fault:
            error = fault
        begins = min(number for number, mask in self._begins.items() if mask & may_be)
        after = self._after
        for part in taken:
            assert part.first == after + 1, f"segment {part.first} follows {after}"
            assert part.epoch != LATE or begins > part.segment, f"{part.segment} is nobody's"
            after = part.segment
        if next_call is not None:
            for answer, mask in self._answers_to(next_call).items():
                if left := self._later(may_be) & mask:
                    self._explore((*answers, answer), left, published)
        elif error is not None:
            self.seen["error"] += 1
            assert begins > after + 1, f"{error} after {after}, and the log begins at {begins}"
        else:
            self.seen["end"] += 1
            wanted = published if self._upto is None else self._upto
            wanted = min(wanted, self._after + 1) if self._comes_again else wanted
            assert after >= wanted, f"it ends with {after}, and {published} were published"

    def _later(self, mask: int) -> int:
        """Those that may follow one of these."""
        if mask not in self._following:
            self._following[mask] = reduce(or_, (self._reach[number] for number in _bits(mask)))
        return self._following[mask]

    def _answers_to(self, call: Call) -> dict[Answer, int]:
        if call not in self._masks:
            masks = self._masks[call] = {}
            for number, state in enumerate(self._states):
                answer = _answer(call, state)
                masks[answer] = masks.get(answer, 0) | 1 << number
        return self._masks[call]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@contextmanager
def small_blocks(fan: int, levels: int, width: int) -> Iterator[None]:
    """Blocks of `fan` parts, and `width` segments that are read at a time to begin with."""
    with (
        mock.patch.object(compaction_blocks, "FAN", fan),
        mock.patch.object(compaction_blocks, "LEVELS", levels),
        mock.patch.object(manifest_runs, "FIRST_WIDTH", width),
    ):
        yield
