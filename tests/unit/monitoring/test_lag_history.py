"""The recent past of a capture's lag, as the log of manifests tells it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dblog_core.monitoring import lag_history
from dblog_core.monitoring.lag_history import LagHistory, Point, Waiting
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark, Manifest
from dblog_core.storage.local import LocalStorage

SECOND = 1_000_000


class World:
    """A staging area that grows by segments of ten rows."""

    def __init__(self, root: Path) -> None:
        self.staging = Staging(source="shop", storage=LocalStorage(root))
        self._segment = 0

    def seal(self, *, committed: float | None, sealed: float, rows: int = 10) -> None:
        self._segment += 1
        first = self._segment * 10
        at = None if committed is None else int(committed * SECOND)
        self.staging.publish(
            Manifest("shop", self._segment, 1, first, first + rows - 1, "p", 0, "log", at, int(sealed * SECOND))
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_is_the_time_from_the_last_commit_to_the_sealing(world: World) -> None:
    world.seal(committed=100, sealed=100.5)  # what the first has brought is not known: no transaction before it is
    world.seal(committed=101, sealed=103.5)
    world.seal(committed=104, sealed=104.25, rows=3)
    assert LagHistory(world.staging).look() == [Point(int(103.5e6), 2.5, 10), Point(int(104.25e6), 0.25, 3)]


def test_segments_without_a_newer_transaction_tell_nothing(world: World) -> None:
    world.seal(committed=None, sealed=1)
    world.seal(committed=100, sealed=100)
    world.seal(committed=100, sealed=900)  # chunks alone, or nothing
    world.seal(committed=99, sealed=901)  # another server's clock
    world.seal(committed=950, sealed=951)
    assert [point.at for point in LagHistory(world.staging).look()] == [951 * SECOND]


def test_a_look_reads_only_what_is_new_and_no_more_than_it_may(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_history, "_AT_ONCE", 5)
    for number in range(20):
        world.seal(committed=number, sealed=number + 0.5)
    history = LagHistory(world.staging)
    read = list[int]()
    manifests = world.staging.manifests

    def count_manifests(after: int = 0, upto: int | None = None):  # type: ignore[no-untyped-def]
        for manifest in manifests(after=after, upto=upto):
            read.append(manifest.segment)
            yield manifest

    monkeypatch.setattr(world.staging, "manifests", count_manifests)
    assert len(history.look()) == 4 and read == [16, 17, 18, 19, 20]
    world.seal(committed=21, sealed=21.5)
    assert len(history.look()) == 5 and read == [16, 17, 18, 19, 20, 21]


def test_it_does_not_grow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_history, "KEPT", 3)
    for number in range(9):
        world.seal(committed=number, sealed=number)
    assert [point.at for point in LagHistory(world.staging).look()] == [6 * SECOND, 7 * SECOND, 8 * SECOND]


def test_what_waits_is_as_old_as_the_oldest_line_that_is_missing(world: World) -> None:
    """Not as the time between two commits: the first change after a quiet night is no night behind."""
    world.seal(committed=100, sealed=101)
    world.seal(committed=30_000, sealed=30_001)
    world.seal(committed=30_004, sealed=30_005)
    head = world.staging.head()
    waiting = Waiting()
    assert head is not None

    def seconds(offset: int) -> float:
        return waiting.seconds(world.staging, head, offset, now=30_008)

    assert seconds(19) == 7 and seconds(20) == 7, "a line of the second segment"
    assert seconds(29) == 3
    assert seconds(39) == 0, "nothing is missing"
    assert seconds(19) == 7


def test_of_joined_segments_it_is_the_lines_own_commit_that_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.seal(committed=100, sealed=101)
    head = world.staging.head()
    assert head is not None
    marks = tuple(LogMark(at, "t", "shop.a", "p", int(when * SECOND)) for at, when in ((12, 60), (15, 80)))
    joined = replace(head, first_segment=1, segment=2, ends=(12, 19), marks=marks)
    monkeypatch.setattr(world.staging, "manifest", lambda _: joined)
    assert Waiting().seconds(world.staging, head, 11, now=110) == 50
    assert Waiting().seconds(world.staging, head, 12, now=110) == 30
    assert Waiting().seconds(world.staging, head, 15, now=110) == 9, "nothing tells when: as it was sealed"
