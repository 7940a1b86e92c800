"""Retention removes what is old, and nothing that anybody needs: whoever dies, whoever is late, whatever comes back."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dblog_core.errors import CorruptSegment, SegmentTaken, StagingError
from dblog_core.staging import Staging, compaction_blocks, retention
from dblog_core.staging.compaction import Compactor
from dblog_core.staging.log_start import Beginning, Need
from dblog_core.staging.reader import Follower, lines
from dblog_core.staging.retention import Removed, Retention, decide
from tests.simulation.storage import Disk, MemoryStorage
from tests.unit.compaction_world import Clock, Killed
from tests.unit.retention_world import RetentionWorld, Undecided, worlds
from tests.unit.staged import MICROSECONDS, chunk, creates, manifest, table

ORDERS = table()
STEPS = 100
NOW = MICROSECONDS / 1e6 + 1000


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.thorough
def test_all_who_need_something_read_the_same_whatever_is_removed(seed: int) -> None:
    RetentionWorld(seed).run(STEPS)


@pytest.mark.thorough
def test_the_worlds_remove_hold_back_and_die() -> None:
    done = worlds(range(10), STEPS)
    counts = {name: sum(getattr(world, name) for world in done) for name in ("moved", "held", "died", "joined")}
    assert counts["moved"] > 10 and min(counts[name] for name in ("held", "died", "joined")) > 25, counts


def test_soak_of_the_worlds(soak_seed: int) -> None:
    RetentionWorld(soak_seed).run(3 * STEPS)


def _without_beginning() -> contextlib.AbstractContextManager[object]:
    """What was removed is known by its absence alone."""
    return mock.patch.object(Staging, "beginning", return_value=Beginning())


def _needs_forgotten() -> contextlib.AbstractContextManager[object]:
    real = retention.decide
    return mock.patch.object(
        retention,
        "decide",
        lambda manifests, *, head, before, needs: real(manifests, head=head, before=before, needs=()),
    )


def _within_transactions() -> contextlib.AbstractContextManager[object]:
    real = retention.decide
    return mock.patch.object(
        retention, "decide", lambda manifests, **rest: real((replace(m, partial=0) for m in manifests), **rest)
    )


def _newest_first() -> contextlib.AbstractContextManager[object]:
    """Files go before it is recorded that they do."""
    real = Staging.begin_at

    def begin_at(self: Staging, beginning: Beginning) -> None:
        for path in list(Retention(self, keep=0, now=0, over=lambda d: False)._old(beginning.segment)):
            self.storage.remove(path)
        real(self, beginning)

    return mock.patch.object(Staging, "begin_at", begin_at)


FINDERS = {_without_beginning: 0, _needs_forgotten: 0, _within_transactions: 0, _newest_first: 14}
"""The first seed that finds each mistake. The search begins there: a world takes seconds under some of them."""


@pytest.mark.parametrize("mistake", FINDERS, ids=lambda m: m.__name__)
def test_the_worlds_find_mistakes(mistake: Any) -> None:
    with mistake(), pytest.raises((AssertionError, StagingError)):
        worlds(range(FINDERS[mistake], 100), STEPS)


def _fill_staging(disk: Disk, *, joined: bool) -> Staging:
    """Forty segments, each a second older than the next: rows in files, a chunk in every fifth."""
    staging = Staging("/simulated", source="shop", storage=MemoryStorage(disk))
    for number in range(1, 41):
        writer = staging.open_segment(number, 1)
        staging.put_schema(ORDERS)
        writer.add(ORDERS, creates(ORDERS, 10 * number, 3))
        chunks = (chunk(staging, ORDERS, 10 * number + 5, {"id": number}),) if number % 5 == 0 else ()
        new_manifest = manifest(number, 10 * number, 10 * number + 9, files=writer.write(), chunks=chunks)
        staging.publish(replace(new_manifest, sealed_at=MICROSECONDS + number * 1_000_000))
    if joined:
        clock: Any = Clock()
        clock.now = NOW
        for _ in Compactor(staging.handle(), clock, grace=0.0).steps():
            pass
    return staging


def _retain(staging: Staging, *needs: Need, keep: float = 975.0, over: bool = True) -> Removed:
    """Segments up to 24 are old enough."""
    return Retention(staging, keep=keep, now=NOW, over=lambda dump: over).run(needs)


@pytest.fixture(autouse=True)
def rows_in_files() -> Iterator[None]:
    with mock.patch("dblog_core.staging.segment.INLINE_BYTES", 0):
        yield


def test_what_is_old_goes_with_its_files_and_the_rest_is_read_as_before() -> None:
    disk = Disk()
    staging = _fill_staging(disk, joined=False)
    before = list(lines(staging))
    removed = _retain(staging)
    assert (removed.segments, removed.beginning.segment, removed.beginning.offset) == (24, 25, 250)
    assert removed.beginning.sealed_at == MICROSECONDS + 25_000_000 and removed.beginning.held == ()
    assert list(lines(staging.handle())) == [line for line in before if line["offset"] >= 250]
    numbers = sorted(int(p.split("/")[1][:20]) for p in disk.files if p.startswith(("manifests/", "log/")))
    assert numbers == sorted([*range(25, 41)] * 2)
    assert sorted(p.rpartition("/")[2] for p in disk.files if p.startswith("chunks/")) == [
        f"{offset:08d}.parquet" for offset in (255, 305, 355, 405)
    ]
    assert removed.files == 24 + 24 + 4
    assert _retain(staging).segments == 0


def test_a_block_goes_whole_or_stays() -> None:
    staging = _fill_staging(Disk(), joined=True)
    assert _retain(staging).beginning.segment == compaction_blocks.FAN + 1
    assert list(staging.storage.names("compacted")) == ["00000000000000000017-00000000000000000032.json"]


def test_needs_hold_back_and_are_told() -> None:
    staging = _fill_staging(Disk(), joined=False)
    stopped = Need(8, "shop.a is stopped at segment 7")
    output = Need(30, "output x stands there")
    removed = _retain(staging, stopped, output)
    assert (removed.beginning.segment, removed.beginning.held) == (8, (stopped,))
    assert staging.handle().beginning() == removed.beginning
    assert _retain(staging, output).beginning.segment == 25


def test_nothing_goes_where_all_is_kept_nor_the_newest_ever() -> None:
    staging = _fill_staging(Disk(), joined=False)
    assert _retain(staging, keep=math.inf).files == 0
    assert _retain(staging, keep=0.0).beginning.segment == 40
    assert staging.handle().head_number() == 40 and staging.handle().first_number() == 40


def test_an_empty_staging_has_nothing_to_remove() -> None:
    staging = Staging("/simulated", source="shop", storage=MemoryStorage(Disk()))
    assert _retain(staging).beginning.segment == 1 and staging.head() is None


def test_the_beginning_lies_between_transactions() -> None:
    manifests = [replace(manifest(n, n, n), partial=int(n in (2, 3)), sealed_at=n) for n in range(1, 8)]
    segments = [decide(manifests, head=7, before=before, needs=()) for before in range(1, 8)]
    assert [d.segment for d in segments if d] == [1, 2, 2, 2, 5, 6, 7]


class Counted(MemoryStorage):
    """Dies at its n-th change of the disk, before or after it."""

    left: float = math.inf

    def _dies(self, what: str) -> None:
        if what in ("replace", "remove"):
            self.left -= 0.5
            if self.left < 0:
                raise Killed

    def _before(self, what: str, relative: str) -> None:
        super()._before(what, relative)
        self._dies(what)

    def _after(self, what: str, relative: str) -> None:
        super()._after(what, relative)
        self._dies(what)


@pytest.mark.parametrize("joined", [False, True], ids=["single", "joined"])
@pytest.mark.thorough
def test_a_death_at_any_step_and_a_loss_of_power_leave_it_readable_and_the_next_run_ends_it(joined: bool) -> None:
    disk = Undecided()
    before = list(lines(_fill_staging(disk, joined=joined)))
    disk.sync()
    whole = copy.deepcopy(disk)
    _retain(Staging("/simulated", source="shop", storage=MemoryStorage(whole)))
    step = 0.5
    died = True
    while died:
        now = copy.deepcopy(disk)
        storage = Counted(now)
        storage.left = step
        died = False
        follower = Follower(Staging("/simulated", source="shop", storage=MemoryStorage(now)), from_offset=330)
        read = [next(following := follower.lines())]
        try:
            _retain(Staging("/simulated", source="shop", storage=storage))
        except Killed:
            died = True
        for lost in (False, True):
            if lost:
                dice = random.Random(step)
                now.power_cut(lambda dice=dice: dice.random() < 0.3)
            fresh = Staging("/simulated", source="shop", storage=MemoryStorage(now))
            begins = fresh.beginning().offset
            assert list(lines(fresh)) == [line for line in before if line["offset"] >= begins]
            assert fresh.head_number() == 40 and fresh.segment_of(330, fresh.manifest(40)) == 33
            with pytest.raises(SegmentTaken):
                fresh.publish(manifest(3, 30, 39, epoch=2))
        assert read + list(following) == [line for line in before if line["offset"] >= 330]
        _retain(Staging("/simulated", source="shop", storage=MemoryStorage(now)))
        assert _counting(now) == _counting(whole)
        step += 0.5
    assert step > (6 if joined else 50)


@pytest.mark.thorough
def test_a_compactor_passes_over_manifests_of_removed_files_that_a_loss_of_power_has_brought_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction_blocks, "FAN", 2)
    disk = Undecided()
    died = True
    step = 0.5
    before = list(lines(_fill_staging(disk, joined=False)))
    while died:
        now = copy.deepcopy(disk)
        dice = random.Random(step)
        steps = Compactor(Staging("/simulated", source="shop", storage=MemoryStorage(now)), Clock(), grace=10).steps()
        next(steps)  # it has joined the first block, and comes to the second
        storage = Counted(now)
        storage.left = step
        died = False
        try:
            _retain(Staging("/simulated", source="shop", storage=storage))
        except Killed:
            died = True
        now.power_cut(lambda dice=dice: dice.random() < 0.5)
        list(steps)
        fresh = Staging("/simulated", source="shop", storage=MemoryStorage(now))
        begins = fresh.beginning().offset
        assert list(lines(fresh)) == [line for line in before if line["offset"] >= begins]
        step += 2.5
    assert step > 50


def _counting(disk: Disk) -> set[str]:
    return {path for path in disk.files if path != "beginning.json"}


def test_a_reader_that_stands_before_the_beginning_is_told() -> None:
    staging = _fill_staging(Disk(), joined=False)
    late = Follower(staging.handle(), from_offset=30)
    late_lines = late.lines()
    assert next(late_lines)["offset"] == 30
    held_manifest = staging.handle().manifest(3)
    _retain(staging)
    with pytest.raises(CorruptSegment, match="begins at segment 25, offset 250") as caught:
        list(late_lines)
    assert late.is_behind()
    assert "offset 250" in caught.value.fix
    with pytest.raises(CorruptSegment, match="removed by retention"):
        next(staging.manifests(after=3))
    with pytest.raises(CorruptSegment, match="removed by retention"):
        staging.rows(held_manifest.files[0])
    with pytest.raises(CorruptSegment, match="offset 249 has been removed"):
        list(lines(staging, from_offset=249))


def test_a_follower_in_the_middle_goes_on() -> None:
    staging = _fill_staging(Disk(), joined=False)
    follower = Follower(staging.handle(), from_offset=300)
    follower_lines = follower.lines()
    read = [next(follower_lines)["offset"]]
    _retain(staging)
    read += [line["offset"] for line in follower_lines]
    assert read[0] == 300 and read[-1] == 405 and not follower.is_behind()


def test_a_capture_that_wakes_up_with_a_number_that_was_removed_is_fenced() -> None:
    disk = Disk()
    staging = _fill_staging(disk, joined=False)
    late = staging.handle()
    check = late._check_predecessor

    def check_then_retain(number: int) -> None:
        """It stands still right after its look at the segment before, and all is removed meanwhile."""
        check(number)
        _retain(staging)

    with mock.patch.object(late, "_check_predecessor", check_then_retain), pytest.raises(SegmentTaken):
        late.publish(manifest(24, 240, 249, epoch=2))
    assert staging.handle().first_number() == 25 and not disk.files.get("manifests/00000000000000000024.json")


def test_chunk_files_that_nobody_names_go_with_their_dump(tmp_path: Path) -> None:
    disk = Disk()
    staging = _fill_staging(disk, joined=False)
    for name in ("d1/0", "d2/0"):  # of an attempt that broke
        staging.write_chunk(name, "broken", chunk_rows())
    running = lambda dump: dump == "d1"  # noqa: E731
    assert Retention(staging, keep=975, now=NOW, over=running).run([Need(1, "all")]).files == 1
    left = sorted(p for p in disk.files if p.startswith("chunks/"))
    assert len(left) == 8 + 1 and "chunks/d2/0/broken.parquet" in left
    head = staging.manifest(40)
    staging.publish(replace(head, segment=41, first_offset=410, last_offset=409, files=(), tasks={"d2/0": {}}))
    assert _retain(staging, Need(1, "all")).files == 0, "the newest manifest says that it goes on"
    staging.publish(replace(head, segment=42, first_offset=410, last_offset=409, files=()))
    assert _retain(staging, Need(1, "all")).files == 1


def test_a_chunk_whose_watermarks_a_capture_may_still_read_stays(tmp_path: Path) -> None:
    """The capture has stood still for longer than `keep`, and its dump was cancelled: it places what the log says."""
    disk = Disk()
    staging = _fill_staging(disk, joined=False)
    staging.write_chunk("d2/0", "late", chunk_rows())
    head = staging.manifest(40)
    (late,) = [file for file in staging.storage.files("chunks") if file.path.endswith("late.parquet")]
    for segment, commit_time in ((41, late.modified), (42, late.modified + 7200)):
        moved = replace(head, segment=segment, first_offset=410, last_offset=409, files=(), tasks={})
        staging.publish(replace(moved, commit_time=int(commit_time * 1e6)))
        is_removed = _retain(staging, Need(1, "all")).files == 1
        assert is_removed == (segment == 42)


def chunk_rows() -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([{"id": 1}], schema=ORDERS.arrow)


def test_a_manifest_that_cannot_be_read_stops_retention_before_anything_goes() -> None:
    disk = Disk()
    staging = _fill_staging(disk, joined=False)
    disk.files["manifests/00000000000000000009.json"] = b"{}"
    before = dict(disk.files)
    with pytest.raises(CorruptSegment, match="cut short or altered"):
        _retain(staging)
    assert disk.files == before


def test_an_altered_record_of_the_beginning_is_no_beginning() -> None:
    disk = Disk()
    staging = _fill_staging(disk, joined=False)
    _retain(staging)
    disk.files["beginning.json"] = disk.files["beginning.json"].replace(b"25", b"17", 1)
    with pytest.raises(CorruptSegment, match=r"beginning\.json"):
        staging.handle().head()


def test_directories_go_with_their_last_file(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), source="shop")
    for number in range(1, 4):
        writer = staging.open_segment(number, 1)
        staging.put_schema(ORDERS)
        writer.add(ORDERS, creates(ORDERS, 10 * number, 3))
        chunks = (chunk(staging, ORDERS, 10 * number + 5, {"id": number}),) if number == 1 else ()
        staging.publish(manifest(number, 10 * number, 10 * number + 9, files=writer.write(), chunks=chunks))
    _retain(staging, keep=0.0)
    root = tmp_path / "shop"
    assert [len(list((root / name).iterdir())) for name in ("log", "chunks", "manifests")] == [1, 0, 1]
