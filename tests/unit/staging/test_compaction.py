"""Compaction changes where rows lie, and nothing that anybody reads: at any moment, whoever dies, whoever is late."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dblog_core.errors import CorruptSegment, SegmentReplaced, SegmentTaken, StagingError, StagingUnavailable
from dblog_core.staging import Staging, compaction, compaction_blocks, segment
from dblog_core.staging import manifest as manifest_module
from dblog_core.staging.compaction import Compactor
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.manifest import DataFile, Manifest
from dblog_core.staging.published_segments import PublishedSegments
from dblog_core.staging.reader import lines
from tests.simulation.storage import MemoryStorage
from tests.unit.compaction_world import Clock, World
from tests.unit.staged import creates, manifest, publish, root_of, table

ORDERS = table()
SEEDS = range(30)
STEPS = 80


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.thorough
def test_all_read_the_same_whatever_is_joined_removed_and_cut_off(seed: int) -> None:
    World(seed).run(STEPS)


@pytest.mark.thorough
def test_the_worlds_join_and_remove() -> None:
    worlds = [World(seed) for seed in range(16)]
    for world in worlds:
        world.run(STEPS)
    assert sum(w.joined for w in worlds) > 50 and sum(w.removed for w in worlds) > 8
    assert sum(w.landed for w in worlds) > 1, "files that the storage has made later"


def _own_manifest_first() -> contextlib.AbstractContextManager[object]:
    """A reader that finds a segment's own manifest looks no further."""
    real = PublishedSegments.find_blocks_over

    def find_blocks_over(self: PublishedSegments, numbers: Collection[int]) -> dict[int, Block]:
        return real(self, [number for number in numbers if not self._storage.exists(Block(number, number).path)])

    return mock.patch.object(PublishedSegments, "find_blocks_over", find_blocks_over)


def _not_cut() -> contextlib.AbstractContextManager[object]:
    """Joined segments are taken whole."""

    def cut(self: Manifest, **_: object) -> Manifest:
        return self

    return mock.patch.object(Manifest, "cut", cut)


def _removed_at_once() -> contextlib.AbstractContextManager[object]:
    """Files go before the manifest that replaces theirs is there."""
    real = Compactor._join

    def join(self: Compactor, block: Block) -> bool:
        for part in self._parts(block) or ():
            self._remove(part.files, still_named=())
        return real(self, block)

    return mock.patch.object(Compactor, "_join", join)


def _carried_files_removed() -> contextlib.AbstractContextManager[object]:
    """What the block still refers to goes with its parts."""
    real = Compactor._remove
    return mock.patch.object(
        Compactor, "_remove", lambda self, files, *, still_named: real(self, files, still_named=())
    )


def _not_durable() -> contextlib.AbstractContextManager[object]:
    """Parts are removed beside a manifest that a loss of power may take away."""

    def create(self: MemoryStorage, relative: str, data: Any) -> bool:
        self._before("create", relative)
        if relative in self.disk.files:
            return False
        self.disk.put(relative, bytes(data), durable=False)
        if not relative.startswith("compacted/"):
            self.disk.settle(relative.rpartition("/")[0])
        return True

    def settle(self: MemoryStorage, relative: str) -> None:
        if not relative.startswith("compacted/"):
            self.disk.settle(relative.rpartition("/")[0])

    patches = contextlib.ExitStack()
    patches.enter_context(mock.patch.object(MemoryStorage, "create", create))
    patches.enter_context(mock.patch.object(MemoryStorage, "settle", settle))
    return patches


def _head_joined() -> contextlib.AbstractContextManager[object]:
    """The newest segment is joined too."""
    real = Staging.head_number
    return mock.patch.object(Compactor, "steps", _beyond(Compactor.steps, real))


def _beyond(steps: Callable[..., Any], head: Callable[..., int]) -> Callable[..., Any]:
    def run(self: Compactor) -> Any:
        with mock.patch.object(self._staging, "head_number", side_effect=lambda: head(self._staging) + 1):
            yield from steps(self)

    return run


def _schemas_of_the_end() -> contextlib.AbstractContextManager[object]:
    """A part of a block has the shapes of the block's end."""
    return mock.patch.object(Manifest, "_schemas_after", _schemas)


def _schemas(self: Manifest, _: int) -> dict[str, str]:
    return dict(self.schemas)


def _a_file_lost() -> contextlib.AbstractContextManager[object]:
    """A joined manifest loses its last file."""
    real = manifest_module.join_manifests

    def join_manifests(manifests: Any, files: Any) -> Manifest:
        return real(manifests, files[:-1] if len(files) > 1 else files)

    return mock.patch.object(compaction, "join_manifests", join_manifests)


def _taken_is_believed() -> contextlib.AbstractContextManager[object]:
    """A storage that says "taken" is taken to mean another's block."""

    def decide(self: Compactor, block: Block, files: Sequence[DataFile]) -> None:
        parts = [part for place in block.parts if (part := self._staging.part(place)) is not None]
        self._remove(files, still_named=[file for part in parts for file in part.files])

    return mock.patch.object(Compactor, "_decide", decide)


def _silence_is_believed() -> contextlib.AbstractContextManager[object]:
    """What is not there after an attempt without an answer is taken never to come."""
    real = Compactor._join

    def join(self: Compactor, block: Block) -> bool:
        try:
            return real(self, block)
        except StagingUnavailable:
            parts = [part for place in block.parts if (part := self._staging.part(place)) is not None]
            self._remove(self._undecided.pop(block, []), still_named=[file for part in parts for file in part.files])
            raise

    return mock.patch.object(Compactor, "_join", join)


@pytest.mark.one_of(4)
@pytest.mark.parametrize(
    "mutant",
    [_own_manifest_first, _not_cut, _removed_at_once, _carried_files_removed, _not_durable, _head_joined,
     _schemas_of_the_end, _a_file_lost, _taken_is_believed, _silence_is_believed],
)  # fmt: skip
@pytest.mark.thorough
def test_a_mistake_is_found(mutant: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    with mutant():
        for seed in SEEDS:
            try:
                World(seed).run(STEPS)
            except (AssertionError, StagingError):
                return
    raise AssertionError("no seed shows it")


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    monkeypatch.setattr(segment, "INLINE_BYTES", 0)
    return Staging(str(tmp_path), source="shop")


def _compact(staging: Staging, clock: Any, *, grace: float) -> None:
    for _ in Compactor(staging.handle(), clock, grace=grace).steps():
        pass


def _files(staging: Staging) -> list[str]:
    return [str(p.relative_to(root_of(staging))) for p in root_of(staging).rglob("*") if p.is_file()]


@pytest.mark.thorough
def test_a_thousand_segments_become_a_few_files_after_the_grace_time(staging: Staging) -> None:
    clock: Any = Clock()
    last = compaction_blocks.FAN**2 * 2 + compaction_blocks.FAN + 3
    for number in range(1, last + 1):
        publish(staging, number, number, number, (ORDERS, creates(ORDERS, number, 1)))
    before = list(lines(staging))
    _compact(staging, clock, grace=100)
    assert len(_files(staging)) > 2 * last, "nothing is removed before its time"
    clock.now += 101
    _compact(staging, clock, grace=100)
    left = _files(staging)
    assert sum(name.startswith("manifests/") for name in left) == last % compaction_blocks.FAN
    assert sum(name.startswith("compacted/") for name in left) == 2 + 1
    assert sum(name.startswith("log/") for name in left) == last % compaction_blocks.FAN + 2 + 1
    assert not [p for p in (root_of(staging) / "log").iterdir() if not any(p.iterdir())], "empty directories go too"
    assert list(lines(staging)) == list(lines(staging.handle())) == before


def test_the_newest_segment_is_never_joined(staging: Staging) -> None:
    clock: Any = Clock()
    for number in range(1, compaction_blocks.FAN + 1):
        publish(staging, number, number, number, (ORDERS, creates(ORDERS, number, 1)))
    _compact(staging, clock, grace=0)
    assert not list(staging.storage.names("compacted"))
    publish(staging, compaction_blocks.FAN + 1, compaction_blocks.FAN + 1, compaction_blocks.FAN)
    _compact(staging, clock, grace=0)
    assert list(staging.storage.names("compacted")) == [Block(1, compaction_blocks.FAN).path.rpartition("/")[2]]


def test_a_block_ends_where_a_transaction_ends(staging: Staging) -> None:
    clock: Any = Clock()
    for number in range(1, compaction_blocks.FAN + 2):
        staging.publish(replace(manifest(number, 1, 0), partial=int(number == compaction_blocks.FAN)))
    _compact(staging, clock, grace=0)
    assert not list(staging.storage.names("compacted"))


def test_a_reader_of_an_old_manifest_is_told_that_its_files_were_moved(staging: Staging) -> None:
    clock: Any = Clock()
    manifests = [
        publish(staging, number, number, number, (ORDERS, creates(ORDERS, number, 1)))
        for number in range(1, compaction_blocks.FAN + 2)
    ]
    _compact(staging, clock, grace=0)
    _compact(staging, clock, grace=0)
    with pytest.raises(SegmentReplaced) as caught:
        staging.rows(manifests[0].files[0])
    assert caught.value.transient
    (root_of(staging) / manifests[-1].files[0].path).unlink()
    with pytest.raises(CorruptSegment, match="missing"):
        staging.rows(manifests[-1].files[0])


def test_a_capture_that_wakes_up_after_its_number_was_joined_and_removed_is_fenced(staging: Staging) -> None:
    clock: Any = Clock()
    for number in range(1, compaction_blocks.FAN + 2):
        publish(staging, number, number, number, (ORDERS, creates(ORDERS, number, 1)))
    _compact(staging, clock, grace=0)
    _compact(staging, clock, grace=0)
    before = _files(staging)
    with pytest.raises(SegmentTaken):
        staging.handle().publish(manifest(compaction_blocks.FAN, compaction_blocks.FAN, compaction_blocks.FAN, epoch=2))
    assert _files(staging) == before


def test_a_term_begins_without_a_question_for_each_block_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are too large to be joined further are many on a busy source: each question is a request on S3."""
    staging = Staging(str(tmp_path), source="shop")
    for number in range(1, 400):
        staging.storage.create(compaction_blocks.block(1, 16 * number).path, b"")
    paths_read: list[str] = []
    exists = staging.storage.exists

    def asking(path: str) -> bool:
        paths_read.append(path)
        return exists(path)

    monkeypatch.setattr(staging.storage, "exists", asking)
    Compactor(staging, Clock())._begin()
    assert len(paths_read) < 10
