"""Manifests that are read ahead are what was published, at whatever moment others join, remove or publish again; and
how few requests it takes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dblog_core.errors import StagingError
from dblog_core.staging import Staging, compaction_blocks, manifest_runs, published_segments
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.manifest_runs import Run
from dblog_core.staging.published_segments import PublishedSegments
from tests.simulation.storage import Disk, MemoryStorage
from tests.unit.compaction_world import World
from tests.unit.manifest_moments import Moments, Scope, small_blocks
from tests.unit.retention_world import RetentionWorld
from tests.unit.staged import manifest
from tests.unit.staging.test_staging import test_a_missing_segment_is_an_error_and_never_the_end as find_hole

BLOCKS = [(2, 2, 2), (2, 2, 3), (4, 1, 4)]
"""Of how many parts, in how many levels, and how many segments are read at a time."""
SCOPES = [Scope(3, 5, late=1, again=1), Scope(3, 5, late=1, removals=1), Scope(3, 5, late=0, removals=2)]


def _explore(
    blocks: tuple[int, int, int], scope: Scope, after: int, upto: int | None = None, *, comes_again: bool = False
) -> Moments:
    def reads(staging: Staging) -> Iterator[Manifest]:
        yield from staging.manifests(after, upto, comes_again=comes_again)

    with small_blocks(*blocks):
        moments = Moments(scope, reads, after=after, upto=upto, comes_again=comes_again)
        moments.explore()
    return moments


@pytest.mark.one_of(4)
@pytest.mark.parametrize("upto", [None, 3])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(
    ("blocks", "scope"), [pair for pair in product(BLOCKS, SCOPES) if pair != (BLOCKS[1], SCOPES[1])], ids=str
)
@pytest.mark.thorough
def test_at_any_moment_all_that_was_published_is_read_and_nothing_else(
    blocks: tuple[int, int, int], scope: Scope, after: int, upto: int | None
) -> None:
    moments = _explore(blocks, scope, after, upto)
    assert moments.seen["end"] and bool(moments.seen["error"]) is bool(scope.removals)


@pytest.mark.parametrize("scope", SCOPES, ids=str)
@pytest.mark.parametrize("blocks", BLOCKS[::2], ids=str)
@pytest.mark.thorough
def test_who_comes_again_gets_the_next_segment_at_any_moment(blocks: tuple[int, int, int], scope: Scope) -> None:
    moments = _explore(blocks, scope, 1, comes_again=True)
    assert moments.seen["end"]


def _probed_before() -> contextlib.AbstractContextManager[object]:
    """The blocks are looked for before the manifests are read."""
    real = manifest_runs._read_own

    def read_run(storage: Any, segments: PublishedSegments, first: int, last: int, **_: bool) -> Run:
        blocks = segments.find_blocks_over(range(first, last + 1))
        if (block := blocks.get(first)) is not None and (data := storage.read(block.path)) is not None:
            return Run([(block, data)])
        found, is_missing = real(storage, first, last)
        own = [(Block(number, number), data) for number, data in found.items() if number not in blocks]
        return Run(own, is_missing and not blocks)

    return mock.patch.object(manifest_runs, "read_run", read_run)


def _lowest_level_alone() -> contextlib.AbstractContextManager[object]:
    """A larger block is not looked for."""
    return _asking(lambda numbers: [(1, number) for number in numbers])


def _largest_level_first() -> contextlib.AbstractContextManager[object]:
    """The levels are looked at from the largest blocks on."""
    return _asking(lambda numbers: [(level, n) for level in range(compaction_blocks.LEVELS, 0, -1) for n in numbers])


def _asking(order: Callable[[Collection[int]], list[tuple[int, int]]]) -> contextlib.AbstractContextManager[object]:
    def find_blocks_over(self: PublishedSegments, numbers: Collection[int]) -> dict[int, Block]:
        found: dict[int, Block] = {}
        for level, number in order(numbers):
            block = compaction_blocks.block(level, number)
            if self._storage.exists(block.path):
                found[number] = max(found.get(number, block), block, key=lambda one: one.level)
        return found

    return mock.patch.object(PublishedSegments, "find_blocks_over", find_blocks_over)


def _beyond_the_block() -> contextlib.AbstractContextManager[object]:
    """That no block stands for the first segment counts for those beyond its block."""
    real = PublishedSegments.find_blocks_over

    def find_blocks_over(self: PublishedSegments, numbers: Collection[int]) -> dict[int, Block]:
        return real(self, list(numbers)[:1])

    return mock.patch.object(PublishedSegments, "find_blocks_over", find_blocks_over)


def _own_manifest_first() -> contextlib.AbstractContextManager[object]:
    """A segment's own manifest counts, whatever block stands for it."""
    real = manifest_runs.read_run

    def read_run(storage: Any, segments: PublishedSegments, first: int, last: int, **_: bool) -> Run:
        found, _ = manifest_runs._read_own(storage, first, last)
        own = [(Block(number, number), data) for number, data in found.items()]
        return Run(own, False) if own else real(storage, segments, first, first)

    return mock.patch.object(manifest_runs, "read_run", read_run)


def _missing_is_the_end() -> contextlib.AbstractContextManager[object]:
    """Where the super-changelog begins is not asked at its end."""
    return mock.patch.object(Staging, "_check_segment")


@pytest.mark.parametrize(
    "mutant",
    [_probed_before, _lowest_level_alone, _largest_level_first, _beyond_the_block, _own_manifest_first,
     _missing_is_the_end],
)  # fmt: skip
@pytest.mark.thorough
def test_a_mistake_of_the_reader_is_found(mutant: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    with mutant():
        for blocks, scope, after in product(BLOCKS, SCOPES, (0, 1)):
            try:
                _explore(blocks, scope, after)
            except AssertionError:
                return
    raise AssertionError("no moment shows it")


def test_a_hole_that_is_not_looked_for_is_found(tmp_path: Path) -> None:
    with mock.patch.object(PublishedSegments, "newest_known", 0), pytest.raises(pytest.fail.Exception):
        find_hole(Staging(str(tmp_path), source="shop"))


@pytest.mark.thorough
@pytest.mark.parametrize("world", [World, RetentionWorld])
@pytest.mark.parametrize("seed", range(4))
def test_the_worlds_of_compaction_and_retention_read_ahead(world: type[World], seed: int) -> None:
    """With runs that reach over several small blocks too."""
    with mock.patch.object(manifest_runs, "FIRST_WIDTH", 2 + seed):
        world(seed).run(80)


class Requests(MemoryStorage):
    """Counts what is asked; `faults`: paths that cannot be read."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.asked: list[str] = []
        self.faults: set[str] = set()

    def settle(self, relative: str) -> None:
        """No request on an object store."""

    def _before(self, what: str, relative: str) -> None:
        self.asked.append(f"{what} {relative}")
        if relative in self.faults:
            raise StagingError("cannot be used", where=relative)


@pytest.fixture
def storage() -> Requests:
    return Requests(Disk())


def _staging(storage: Requests, segments: int) -> Staging:
    staging = Staging("/simulated", source="shop", storage=storage)
    for number in range(1, segments + 1):
        staging.publish(manifest(number, number, number))
    storage.asked.clear()
    return Staging("/simulated", source="shop", storage=storage)


@pytest.mark.parametrize(("after", "segments"), [(20, 21), (21, 21)])
def test_the_newest_segment_takes_six_requests_and_so_does_a_look_for_one(
    storage: Requests, after: int, segments: int
) -> None:
    staging = _staging(storage, segments)
    assert [m.segment for m in staging.manifests(after)] == list(range(after + 1, segments + 1))
    asked = Counter(call.split("/")[0] for call in storage.asked)
    own = asked.pop("read manifests") + asked.pop("exists manifests", 0)
    assert own == 2 and asked == {"exists compacted": 3, "read beginning.json": 1}


@pytest.mark.parametrize("newest", [21, 32])
def test_the_newest_segment_takes_five_requests_where_the_reader_comes_again(storage: Requests, newest: int) -> None:
    """Also where the next one would lie in another block."""
    staging = _staging(storage, newest)
    assert [m.segment for m in staging.manifests(newest - 1, comes_again=True)] == [newest]
    assert Counter(call.split("/")[0] for call in storage.asked) == {"read manifests": 2, "exists compacted": 3}


def test_catching_up_takes_less_than_a_request_and_a_quarter_a_segment(storage: Requests) -> None:
    staging = _staging(storage, 640)
    assert [m.segment for m in staging.manifests()] == list(range(1, 641))
    assert len(storage.asked) < 1.25 * 640


def test_who_takes_one_segment_alone_waits_for_one_more_at_most(storage: Requests) -> None:
    staging = _staging(storage, 100)
    assert next(staging.manifests(40)).segment == 41
    assert sum(call.startswith("read") for call in storage.asked) == 2


def test_a_fault_or_damage_behind_the_first_is_met_when_it_is_its_turn(storage: Requests) -> None:
    for fault in ("unread", "damaged"):
        staging = _staging(storage, 9)
        path = Block(6, 6).path
        if fault == "unread":
            storage.faults.add(path)
        else:
            storage.disk.files[path] = b"{}"
        manifests = staging.manifests()
        assert [next(manifests).segment for _ in range(5)] == [1, 2, 3, 4, 5]
        with pytest.raises(StagingError):
            next(manifests)
        storage = Requests(Disk())


def test_what_waits_in_memory_has_a_bound(storage: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = _staging(storage, 40)
    monkeypatch.setattr(manifest_runs, "_AHEAD_BYTES", 1000)
    sizes = [len(run.parts) for run in _runs(staging, monkeypatch)]
    assert max(sizes) <= 3 and sum(sizes) == 40


def _runs(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    runs: list[Run] = []
    real = manifest_runs.read_run
    monkeypatch.setattr(manifest_runs, "read_run", lambda *asked, **more: runs.append(real(*asked, **more)) or runs[-1])
    numbers = [m.segment for m in staging.manifests()]
    assert all(later == earlier + 1 for earlier, later in pairwise(numbers))
    return runs


def test_each_segment_is_durable_before_the_first_of_them_is_handed_out(storage: Requests) -> None:
    settled: list[str] = []
    staging = _staging(storage, 9)
    with mock.patch.object(storage, "settle", settled.append):
        manifests = staging.manifests()
        assert next(manifests).segment == 1 and settled == [Block(1, 1).path, Block(2, 2).path]
        assert len(list(manifests)) == 8 and settled == [Block(number, number).path for number in range(1, 10)]


def test_a_reader_for_whom_all_is_moved_again_and_again_comes_to_the_end(storage: Requests) -> None:
    """Each time that it begins again, what it has read ahead is moved before its turn."""
    staging = _staging(storage, 40)
    taken: list[int] = []
    while (first := next(staging.manifests(len(taken)), None)) is not None:
        taken.append(first.segment)
    assert taken == list(range(1, 41))
    assert published_segments.PublishedSegments(storage).find_newest() == 40
