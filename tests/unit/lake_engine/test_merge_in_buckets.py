"""A work in which the log left columns out, folded by buckets of keys, has the rows that it would have at once."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.errors import CorruptSegment, LakeError
from dblog_core.lake import merge_plan
from dblog_core.lake_engine.events import fold, key_buckets, staged_events
from dblog_core.rows import disk_spool, key_spreading
from dblog_core.staging import Staging
from dblog_core.staging.manifest import DataFile
from tests.spark.segments import SegmentBuilder, table
from tests.spark.worlds import Oracle
from tests.unit.delta_writer.tables import check_log, commit_of, newest
from tests.unit.lake_engine.world_lake import Lake, change, fold_large

NOTES = table("notes", id=pa.int64(), n=pa.int64(), big=pa.string())


def in_buckets(tmp_path: Path, name: str) -> Lake:
    lake = Lake(tmp_path, random.Random(name))
    lake.is_large = True
    return lake


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_buckets, "BUCKET_ROWS", 20)
    monkeypatch.setattr(key_buckets, "GROUP_EVENTS", 60)
    monkeypatch.setattr(key_buckets, "DISTRIBUTED_BYTES", 4_000)


def split_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event comes in a batch of its own."""
    batches = Staging.log_batches

    def log_batches(staging: Staging, file: DataFile) -> Iterator[pa.RecordBatch]:
        return (batch.slice(row, 1) for batch in batches(staging, file) for row in range(len(batch)))

    monkeypatch.setattr(Staging, "log_batches", log_batches)
    monkeypatch.setattr(staged_events, "TOGETHER", 1)


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("portion", [1, 32 << 20])
def test_a_table_is_what_the_lines_say_after_every_merge(
    tmp_path: Path, soak_seed: int, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_buckets, "PORTION_BYTES", portion)
    lake = in_buckets(tmp_path, f"buckets {soak_seed}/{portion}")
    oracle = Oracle()
    lake.source.add_unseen_rows(0.3)
    files = []
    for _ in range(5):
        change(lake)
        lake.merge_as_told(oracle)
        check_log(lake.table.path)
        actions = commit_of(lake.table.path, newest(lake.table.path))
        assert [a["txn"]["version"] for a in actions if "txn" in a] == [lake.number]
        files.append(len([a for a in actions if "add" in a and "deletionVector" not in a["add"]]))
    assert max(files) > 1, "several parts, and a file for each"
    kinds = ("chain of key changes", "swap of keys", "unchanged value over updates, a key change and a batch boundary")
    assert [kind for kind in (*kinds, "chunk") if not lake.source.seen[kind]] == []
    assert oracle.seen["withheld row"]


@pytest.mark.parametrize("dumps", [False, True])
@pytest.mark.parametrize("portion", [1, 20_000])
def test_hot_rows_that_are_folded_in_portions_are_what_the_lines_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak_seed: int, portion: int, dumps: bool
) -> None:
    """A few rows with many events, whose values were left out and moved from key to key over the portions' borders:
    a border may lie between the two halves of a change of key."""
    monkeypatch.setattr(key_buckets, "PORTION_BYTES", portion)
    monkeypatch.setattr(key_buckets, "DISTRIBUTED_BYTES", 1)
    monkeypatch.setattr(staged_events, "MAX_ROWS", 100)
    split_batches(monkeypatch)
    lake = in_buckets(tmp_path, f"hot {soak_seed}/{portion}/{dumps}")
    lake.source.worlds = 5
    oracle = Oracle()
    lake.source.add_unseen_rows(0.3)
    merges = 0
    # A seed may draw no chain for a while.
    while merges < 3 or (merges < 30 and not lake.source.seen["chain of key changes"]):
        merges += 1
        for _ in range(12):
            change(lake, dumps=dumps)
        lake.merge_as_told(oracle)
    assert lake.source.seen["chain of key changes"]


def build_notes(path: Path, *, rows: int, stride: int = 1, chained: bool = False) -> tuple[Staging, merge_plan.Work]:
    """Each row is updated once, its large value left out; `chained`: by a change of key, to the next row's."""
    build = SegmentBuilder(Staging(str(path / "staging"), source="shop"))
    for number in range(rows):
        key = {"id": number * stride}
        if chained:
            build.move(NOTES, key, {"id": (number + 1) * stride, "n": 1, "big": None}, unchanged=["big"])
        else:
            build.update(NOTES, {**key, "n": 1, "big": None}, unchanged=["big"])
    build.seal()
    return build.staging, merge_plan.plan_works(build.staging.manifests(), lambda table: 0)[str(NOTES.table)]


def test_keys_with_a_stride_are_spread_over_the_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_buckets, "BUCKET_ROWS", 10)
    monkeypatch.setattr(key_buckets, "GROUP_EVENTS", 1)
    staging, work = build_notes(tmp_path, rows=2_559, stride=1_024)
    parts = fold_large(staging, work, NOTES)
    assert len(parts) == 2_559
    sizes = [len(part) for part in parts]
    assert len(sizes) == key_buckets.MOST_BUCKETS and max(sizes) < 40, sizes


def test_keys_that_changes_lead_between_stand_together(soak_seed: int) -> None:
    dice = np.random.default_rng(soak_seed)
    for count in (0, 1, 30, 300):
        old, new = dice.integers(0, 2**64, 200, np.uint64)[dice.integers(0, 200, (2, count))]
        chains = key_spreading.find_chains(old, new)
        groups: dict[int, set[int]] = {key: {key} for key in (*old.tolist(), *new.tolist())}
        for one, other in zip(old.tolist(), new.tolist(), strict=True):
            together = groups[one] | groups[other]
            groups.update(dict.fromkeys(together, together))
        stands_for = chains.replace(np.array(list(groups), np.uint64)).tolist()
        roots = dict(zip(groups, stands_for, strict=True))
        assert all(key in groups[root] and {roots[k] for k in groups[key]} == {root} for key, root in roots.items())
        assert chains.replace(np.array([5], np.uint64)).tolist() == [5], "a key that did not change"
    line = dice.permutation(100_000).astype(np.uint64)
    chains = key_spreading.find_chains(line[:-1], line[1:])
    assert set(chains.replace(line).tolist()) == {0}


@pytest.mark.parametrize("portion", [1, 20_000])
def test_buckets_that_have_no_room_are_split_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak_seed: int, portion: int
) -> None:
    """Keys that changes of key lead between stay together at each level."""
    monkeypatch.setattr(key_buckets, "PORTION_BYTES", portion)
    monkeypatch.setattr(key_buckets, "DISTRIBUTED_BYTES", 4_000)
    monkeypatch.setattr(key_buckets, "MOST_BUCKETS", 3)
    monkeypatch.setattr(key_buckets, "GROUP_EVENTS", 10)
    monkeypatch.setattr(key_buckets, "BUCKET_ROWS", 20)
    monkeypatch.setattr(key_spreading, "_SLICE", 3)
    monkeypatch.setattr(disk_spool, "_IN_MEMORY", 0)
    monkeypatch.setattr(staged_events, "MAX_ROWS", 20)
    lake = in_buckets(tmp_path, f"split {soak_seed}/{portion}")
    lake.source.add_unseen_rows(0.3)
    oracle = Oracle()
    merges = 0
    while merges < 3 or (merges < 30 and not lake.source.seen["chain of key changes"]):
        merges += 1
        change(lake)
        lake.merge_as_told(oracle)
    assert lake.source.seen["chain of key changes"]


def test_a_bucket_is_split_as_far_as_its_keys_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split_batches(monkeypatch)
    monkeypatch.setattr(key_buckets, "MOST_BUCKETS", 4)
    monkeypatch.setattr(key_buckets, "BUCKET_ROWS", 1)
    monkeypatch.setattr(key_buckets, "GROUP_EVENTS", 1)
    monkeypatch.setattr(staged_events, "MAX_ROWS", 30)
    apart, work = build_notes(tmp_path / "apart", rows=1_000)
    sizes = [len(part) for part in fold_large(apart, work, NOTES)]
    assert sum(sizes) == 1_000 and max(sizes) <= 30
    chained, work = build_notes(tmp_path / "chained", rows=1_000, chained=True)
    assert [len(part) for part in fold_large(chained, work, NOTES)] == [1_001]


def test_keys_that_belong_together_and_have_no_room_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, work = build_notes(tmp_path, rows=1_000, chained=True)
    monkeypatch.setattr(fold, "MOST_HELD_KEYS", 1_001)
    assert len(fold_large(staging, work, NOTES)) == 1_001
    monkeypatch.setattr(fold, "MOST_HELD_KEYS", 1_000)
    with pytest.raises(LakeError, match="1,001 rows of one work") as error_info:
        fold_large(staging, work, NOTES)
    assert error_info.value.where == str(NOTES.table) and "dblog reset" in error_info.value.fix


def test_a_file_that_was_changed_stops_the_fold(tmp_path: Path) -> None:
    lake = in_buckets(tmp_path, "damaged")
    change(lake)
    lake.damage_first_file()
    with pytest.raises(CorruptSegment, match="changed"):
        lake.fold_sealed()


def test_a_local_disk_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging, work = build_notes(tmp_path, rows=10)
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full.open("wb", buffering=0))
    with pytest.raises(LakeError, match="No space left on device") as error_info:
        fold_large(staging, work, NOTES)
    assert "TMPDIR" in error_info.value.fix and error_info.value.where
