"""Staged files that are cut short, changed, missing or too new: the merge stops before them, with the file's name.

Rounds, records, cuts and the reading of files are the real ones. In place of Spark's part, which comes after reading,
the ids of the rows are put into a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.clock import SystemClock
from dblog_core.errors import CorruptSegment, LakeError
from dblog_core.lake.lake_status import State, read_status
from dblog_core.lake_engine.events.fold import fold_work
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.lake_engine.merging.table_merge import Share, TableMerge
from dblog_core.staging import Staging, manifest, segment
from dblog_core.staging.compaction import Compactor
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.unit.staged import root_of

ONE = table("one", id=pa.int64(), v=pa.string())
OTHER = table("other", id=pa.int64())


@pytest.fixture
def merged_ids(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The ids that were merged, by table."""
    rows: dict[str, list[int]] = {str(ONE.table): [], str(OTHER.table): []}

    def apply(self: TableMerge, share: Share) -> Applied:
        work = share.work
        schema = self._staging.schema(work.schema)
        for folded in fold_work(self._staging, work, schema):
            rows[work.table] += [key["id"] for key in folded["key"].to_pylist()]
        return Applied(work.table, work.rows)

    monkeypatch.setattr(TableMerge, "apply", apply)
    return rows


@pytest.fixture
def lake(tmp_path: Path) -> TestLake:
    return TestLake(mock.Mock(spec=SparkSession), Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip_byte(path: Path) -> None:
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :])


def _flipped_at_its_end(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])


def _missing(path: Path) -> None:
    path.unlink()


DAMAGES: tuple[Callable[[Path], None], ...] = (_cut_short, _flip_byte, _flipped_at_its_end, _missing)


@contextmanager
def _with_damage(path: Path, damage: Callable[[Path], None]) -> Iterator[None]:
    good = path.read_bytes()
    damage(path)
    yield
    path.write_bytes(good)


def _anew(lake: TestLake) -> TestLake:
    """The same lake and staging, as another process sees them: nothing is remembered."""
    return TestLake(lake.spark, Staging(str(root_of(lake.staging).parent), source="shop"), lake.path)


def _stops_before(lake: TestLake, path: Path, segment_number: int) -> None:
    """Twice: what comes before the damage is merged, and nothing after it."""
    for _ in range(2):
        with pytest.raises(CorruptSegment) as error:
            _anew(lake).merge()
        assert str(path) in str(error.value)
        status = read_status(lake.location)
        assert status is not None and status.segment == segment_number
        assert all(t.state is not State.STOPPED for t in status.tables.values())


@pytest.fixture
def segments(lake: TestLake) -> list[Path]:
    """Five segments with rows of their own in their manifests, and the files of these."""
    for number in range(1, 6):
        lake.build.create(ONE, {"id": number, "v": f"v{number}"})
        lake.build.seal()
    root = root_of(lake.staging) / "manifests"
    return [root / f"{number:020d}.json" for number in range(1, 6)]


def test_a_manifest_or_the_rows_in_it_that_are_damaged_stop_the_merge_before_them(
    lake: TestLake, merged_ids: dict[str, list[int]], segments: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for damage in DAMAGES:
        with _with_damage(segments[2], damage):
            _stops_before(lake, segments[2], 2)
    assert merged_ids[str(ONE.table)] == [1, 2]
    with monkeypatch.context() as older:
        older.setattr(manifest, "_READABLE", {manifest.FORMAT - 1})
        # The segment up to which the lake has all is looked at first: it shows whether this is the lake's staging.
        with pytest.raises(LakeError, match=r"00002\.json: .*newer(.|\n)*upgrade dblog"):
            _anew(lake).merge()
    _anew(lake).merge_well()
    assert merged_ids[str(ONE.table)] == [1, 2, 3, 4, 5]


def test_a_damaged_block_stops_the_merge_before_it(lake: TestLake, merged_ids: dict[str, list[int]]) -> None:
    for number in range(1, 19):
        lake.build.create(ONE, {"id": number, "v": "v"})
        lake.build.seal()
    for grace in (600.0, 0.0):
        for _ in Compactor(lake.staging.handle(), SystemClock(), grace=grace).steps():
            pass
    (block,) = (root_of(lake.staging) / "compacted").iterdir()
    for damage in DAMAGES[:3]:  # a block that is missing is a first segment that is missing
        with _with_damage(block, damage), pytest.raises(CorruptSegment) as error:
            _anew(lake).merge()
        assert str(block) in str(error.value) and read_status(lake.location) is None
    _anew(lake).merge_well()
    assert merged_ids[str(ONE.table)] == list(range(1, 19))


@pytest.mark.parametrize("kind", ["log", "chunks", "schemas"])
def test_a_damaged_file_of_a_table_stops_that_table_alone(
    lake: TestLake, merged_ids: dict[str, list[int]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", 0)
    if kind == "chunks":
        lake.build.chunk(ONE, [{"id": 1, "v": "a"}])
    else:
        lake.build.create(ONE, {"id": 1, "v": "a"})
    lake.build.create(OTHER, {"id": 1})
    sealed = lake.build.seal()
    named = {
        "log": next((f.path for f in sealed.files if f.table == str(ONE.table)), ""),
        "chunks": sealed.chunks[0].path if sealed.chunks else "",
        "schemas": f"schemas/{ONE.fingerprint}.json",
    }
    path = root_of(lake.staging) / named[kind]
    for damage in DAMAGES:
        with _with_damage(path, damage):
            _anew(lake).merge()
        status = read_status(lake.location)
        assert status is not None
        assert status.tables[str(ONE.table)].state is State.STOPPED
        assert str(path) in str(status.tables[str(ONE.table)].error), damage
        assert status.tables[str(OTHER.table)].state is not State.STOPPED
        assert merged_ids == {str(ONE.table): [], str(OTHER.table): [1]}
    _anew(lake).merge_well()
    assert merged_ids == {str(ONE.table): [1], str(OTHER.table): [1]}
