"""Faults of reading lake and log: they are raised, and what was read in part does not count later."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.errors import LakeError, SegmentReplaced
from dblog_core.staging.manifest import DataFile
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from dblog_core.verify.judge import lake_hashes
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin
from dblog_core.verify.window_positions import Interrupted
from tests.unit.verify.judge.world import T, World, append_row, kinds_of, lake_alone, lake_row

KEYS = 8


def test_a_segment_that_is_joined_with_others_while_it_is_read_is_read_in_its_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, random.Random(3))
    for _ in range(20):
        world.write(KEYS)
    world.seal()
    comparison, seen = world.reading(0)
    read: list[str] = []
    log_batches = world.staging.log_batches

    def fail_once(file: DataFile, **options: Any) -> Iterator[pa.RecordBatch]:
        yield from log_batches(file, **options)
        read.append(file.path)
        if len(read) == 1:
            raise SegmentReplaced("segment 1 was joined with others", where="staging")

    monkeypatch.setattr(world.staging, "log_batches", fail_once)
    assert kinds_of(world.judge.compare(comparison)) == world.right_kinds(comparison, seen)
    assert len(read) > 1


def test_a_version_that_is_gone_is_an_error(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(1)])
    with pytest.raises(LakeError, match="no longer shows version 9"):
        judge.compare(Comparison(T, Pin(9, 0, 0, 0)))


def test_who_is_asked_to_stop_reads_no_further(tmp_path: Path) -> None:
    stop = threading.Event()
    world = World(tmp_path, random.Random(3))
    world.write(KEYS)
    world.seal()
    comparison, _ = world.reading(0)
    judge = Judge(world.staging, Location(LocalStorage(tmp_path / "lake", temporary="x")), stop=stop)
    stop.set()
    with pytest.raises(Interrupted):
        judge.compare(comparison)


@pytest.mark.parametrize("side", ["lake", "log"])
def test_what_was_read_in_part_does_not_count_in_the_next_comparison(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, random.Random(3))
    for _ in range(20):
        world.write(KEYS)
    world.seal()
    world.merge()
    append_row(world.table, lake_row(99))
    for _ in range(20):
        world.write(KEYS)
    world.seal()
    comparison, seen = world.reading(world.merged)
    where, name = (lake_hashes, "row_stretches") if side == "lake" else (world.staging, "log_batches")
    read = getattr(where, name)
    fault = LakeError("the disk is full", fix="make room")
    faults = iter([None, fault] if side == "lake" else [fault])

    def fail_once(*args: Any, **options: Any) -> Iterator[Any]:
        yield from read(*args, **options)
        if next(faults, None) is not None:
            raise fault

    monkeypatch.setattr(where, name, fail_once)
    with pytest.raises(LakeError, match="disk is full"):
        world.judge.compare(comparison)
    assert kinds_of(world.judge.compare(comparison)) == {**world.right_kinds(comparison, seen), 99: "extra"}
