"""A merge refuses a staging that its lake does not continue: nothing is read of it, and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import read_status
from dblog_core.staging import Staging
from tests.spark.lakes import TestLake
from tests.spark.segments import SegmentBuilder, table

T = table("t", id=pa.int64(), v=pa.string())


@pytest.fixture
def lake(tmp_path: Path) -> TestLake:
    """Segments 1 to 8 are merged, with a row each; COPY has the staging as it was after segment 4."""
    lake = TestLake(None, open_staging(tmp_path), tmp_path / "lake")
    lake.staging.create_identity()
    seal(lake, 0, 4)
    shutil.copytree(tmp_path / "staging", tmp_path / "copy")
    seal(lake, 4, 8)
    lake.merge_well()
    return lake


def open_staging(path: Path) -> Staging:
    return Staging(str(path / "staging"), source="shop")


def seal(lake: TestLake, first: int, end: int, *, rows: int = 1) -> None:
    """Rows `first` to `end`, so many in a segment."""
    for number in range(first, end):
        lake.build.create(T, {"id": number, "v": "x"})
        if (number - first) % rows == rows - 1:
            lake.build.seal()


def put_back(lake: TestLake, path: Path, *, offset: int = 4, segment: int = 4) -> None:
    """The copy in place of the staging; the capture continues behind it."""
    shutil.rmtree(path / "staging")
    if segment:
        shutil.copytree(path / "copy", path / "staging")
    lake.staging = open_staging(path)
    lake.build = SegmentBuilder(lake.staging, offset=offset, segment=segment, _first=offset + 1)
    lake.build._know(T)


def ids(lake: TestLake) -> list[int]:
    return [row["id"] for row in lake.rust_rows(T)]


def refuses(lake: TestLake, *words: str) -> None:
    """The merge fails, with one way out; the lake stays as it is."""
    before = read_status(lake.location)
    with pytest.raises(LakeError) as refusal:
        lake.merge()
    assert all(word in str(refusal.value) for word in words), refusal.value
    assert "`dblog lake adopt`" in refusal.value.fix
    assert read_status(lake.location) == before and ids(lake) == list(range(8))


def test_records_and_claims_name_the_staging(lake: TestLake) -> None:
    identity = lake.staging.identity()
    status = read_status(lake.location)
    assert status is not None and status.staging == identity is not None
    own = lake.path / "_dblog"
    assert orjson.loads((own / "merges/000000000001.json").read_bytes())["staging"] == identity
    assert orjson.loads((own / "mergers/000000000001.json").read_bytes())["staging"] == identity


def test_a_copy_that_is_put_back_is_refused_before_and_after_it_has_passed_the_lake(
    lake: TestLake, tmp_path: Path
) -> None:
    put_back(lake, tmp_path)
    refuses(lake, "the lake is at segment 8", "ends before it, with segment 4")
    seal(lake, 4, 18, rows=2)
    refuses(lake, "segment 8, offset 8, position p8", "ends at offset 12, position p12")


def test_a_copy_that_has_come_to_the_same_offset_and_position_again_is_refused(lake: TestLake, tmp_path: Path) -> None:
    put_back(lake, tmp_path)
    lake.build.sealed_later = 1
    seal(lake, 4, 8)
    refuses(lake, "segment 8, sealed at 1970-01-01T00:00:08.000000Z", "was sealed at 1970-01-01T00:00:08.000001Z")


def test_a_record_of_an_earlier_version_that_says_no_time_is_compared_by_the_rest(
    lake: TestLake, tmp_path: Path
) -> None:
    path = lake.path / "_dblog/merges/000000000001.done.json"
    for file in (path, lake.path / "_dblog/status.json"):
        record = orjson.loads(file.read_bytes())
        assert record.pop("sealed_at") == 8_000_000
        file.write_bytes(orjson.dumps(record))
    put_back(lake, tmp_path)
    lake.build.sealed_later = 1
    seal(lake, 4, 9)
    lake.merge_well()
    status = read_status(lake.location)
    assert status is not None and status.sealed_at == 9_000_001


def test_a_copy_of_now_is_merged_on(lake: TestLake, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "copy")
    shutil.copytree(tmp_path / "staging", tmp_path / "copy")
    put_back(lake, tmp_path, offset=8, segment=8)
    seal(lake, 8, 10)
    lake.merge_well()
    assert ids(lake) == list(range(10))


def test_a_new_staging_is_refused_while_it_is_empty_and_later(lake: TestLake, tmp_path: Path) -> None:
    put_back(lake, tmp_path, offset=0, segment=0)
    refuses(lake, "the lake was merged from staging", "one without an identity")
    lake.staging.create_identity()
    seal(lake, 0, 20)
    refuses(lake, str(lake.staging.identity()))


def test_a_lake_of_an_earlier_version_takes_the_identity_of_the_staging_that_it_continues(tmp_path: Path) -> None:
    lake = TestLake(None, open_staging(tmp_path), tmp_path / "lake")
    seal(lake, 0, 2)
    lake.merge_well()
    identity = lake.staging.create_identity()
    seal(lake, 2, 3)
    lake.merge_well()
    status = read_status(lake.location)
    assert status is not None and status.staging == identity


def test_a_merge_that_was_begun_from_a_lost_segment_is_not_finished_from_another(
    lake: TestLake, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "copy")
    shutil.copytree(tmp_path / "staging", tmp_path / "copy")
    lake.build.update(T, {"id": 0, "v": "y"})
    lake.build.seal()
    lake.merge_until("recorded")
    put_back(lake, tmp_path, offset=8, segment=8)
    refuses(lake, "the merge that is not finished ends with segment 9")
    lake.build.update(T, {"id": 0, "v": "y"})
    lake.build.update(T, {"id": 1, "v": "y"})
    lake.build.seal()
    refuses(lake, "segment 9, offset 9", "ends at offset 10")


def test_a_merge_that_runs_notices_a_copy_that_is_put_back_under_it(lake: TestLake, tmp_path: Path) -> None:
    merger = lake.merger()
    put_back(lake, tmp_path)
    seal(lake, 4, 18, rows=2)
    with pytest.raises(LakeError, match="segment 8, offset 8, position p8"):
        merger.run_round(retry_stopped=True)
    assert ids(lake) == list(range(8))


def test_a_merge_that_runs_looks_again_also_where_offsets_go_on(lake: TestLake, tmp_path: Path) -> None:
    now = [1000.0]
    merger = lake.merger(now=lambda: now[0])
    lake.staging.storage.remove("identity.json")
    lake.staging.create_identity()
    now[0] += 31.0
    seal(lake, 8, 9)
    with pytest.raises(LakeError, match="was merged from staging"):
        merger.run_round(retry_stopped=True)
