"""A lake that is taken over to another staging: after the dumps it equals the source, whatever the staging was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.errors import LakeError
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import State, history_location, read_status
from dblog_core.lake.task_requests import AdoptRequest
from dblog_core.lake.task_results import AdoptResult
from dblog_core.staging import Staging
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import SegmentBuilder, table

pytestmark = pytest.mark.one_of(3)

T = table("t", id=pa.int64(), v=pa.string())
STAGINGS = ("older copy", "older copy, passed", "new", "another")
STEPS = ("recorded", "requested shop.t", "aged shop.t", "done")


def _merge_rows(lake: TestLake, path: Path) -> None:
    """Rows 0 to 7 by segments 1 to 8; COPY has four of them."""
    lake.staging.create_identity()
    for number in range(8):
        lake.build.create(T, {"id": number, "v": "old"})
        lake.build.seal()
        if number == 3:
            shutil.copytree(path / "staging", path / "copy")
    lake.merge_well()


def _replace_staging(lake: TestLake, path: Path, kind: str) -> None:
    shutil.rmtree(path / "staging")
    is_copy = kind.startswith("older")
    if is_copy:
        shutil.copytree(path / "copy", path / "staging")
    lake.staging = Staging(str(path / "staging"), source="shop")
    begin = 4 if is_copy else 0
    lake.build = SegmentBuilder(lake.staging, offset=begin, segment=begin, _first=begin + 1)
    if kind != "another":
        lake.staging.create_identity()
    if is_copy:
        lake.build._know(T)
    for number in range(20 if kind in ("older copy, passed", "another") else 0):
        lake.build.update(T, {"id": number % 8, "v": f"again {number}"})
        if number % 2:
            lake.build.seal()


def _dump(lake: TestLake, dump: str) -> list[dict[str, object]]:
    """A full dump of the source as it is now: rows 1 to 3 are gone."""
    rows: list[dict[str, object]] = [{"id": number, "v": "now"} for number in (0, 4, 5, 9)]
    since = lake.build.offset
    since_segment = lake.build.segment + 1
    lake.build.chunk(T, rows, dump=dump)
    lake.build.finished(T, dump, since=since, since_segment=since_segment)
    lake.build.seal()
    return rows


@pytest.mark.parametrize("kind", STAGINGS)
def test_after_an_adoption_and_its_dump_the_lake_equals_the_source(lake: TestLake, tmp_path: Path, kind: str) -> None:
    lake.history = True
    _merge_rows(lake, tmp_path)
    _replace_staging(lake, tmp_path, kind)
    with pytest.raises(LakeError, match=r"segment 8|was merged from staging"):
        lake.merge()
    task = lake_tasks.file_task(lake.location, AdoptRequest()).id
    lake.merge_well()
    outcome = lake_tasks.read_outcome(lake.location, task, AdoptResult)
    assert outcome is not None and outcome.result is not None, outcome
    assert outcome.result == AdoptResult(lake.staging.identity() or "", {"shop.t": "dump1"})
    status = read_status(lake.location)
    assert status is not None and status.staging == outcome.result.staging
    assert status.tables["shop.t"].state is State.INCOMPLETE and lake.dumps.asked == [("shop.t", [])]
    rows = _dump(lake, "dump1")
    lake.merge_well()
    assert lake.rows(T) == rows
    status = read_status(lake.location)
    assert status is not None and status.tables["shop.t"].state is State.OK
    lines = lake.spark.read.format("delta").load(str(history_location(lake.location, T.table)))
    old = [row._dblog_offset for row in lines.orderBy("_dblog_offset").collect() if row._dblog_offset <= 0]
    assert old == list(range(-7, 1)), "in their order, before all others"
    assert {row.id for row in lines.where("_dblog_offset > 0 AND v = 'now'").collect()} == {0, 4, 5, 9}


def test_an_adoption_that_died_is_finished_by_the_next_merge(lake: TestLake, tmp_path: Path, soak_seed: int) -> None:
    _merge_rows(lake, tmp_path)
    _replace_staging(lake, tmp_path, "new")
    lake_tasks.file_task(lake.location, AdoptRequest())
    step = STEPS[soak_seed % len(STEPS)]

    def die(name: str) -> None:
        if name == step:
            raise Crash

    with pytest.raises(Crash):
        lake.merger(step=die)
    again = lake_tasks.file_task(lake.location, AdoptRequest()).id
    rows = _dump(lake, "by hand")
    lake.merge_well()
    assert lake.rows(T) == rows
    outcome = lake_tasks.read_outcome(lake.location, again, AdoptResult)
    assert outcome is not None and outcome.error is None, "who asks again learns that it is done"
    assert not lake_tasks.waiting_tasks(lake.location)


def test_a_merge_of_the_lost_staging_that_was_not_finished_is_given_up(lake: TestLake, tmp_path: Path) -> None:
    _merge_rows(lake, tmp_path)
    lake.build.update(T, {"id": 0, "v": "lost"})
    lake.build.seal()
    lake.merge_until("applied shop.t")
    _replace_staging(lake, tmp_path, "new")
    lake_tasks.file_task(lake.location, AdoptRequest())
    rows = _dump(lake, "by hand")
    lake.merge_well()
    assert lake.rows(T) == rows


def test_a_lake_that_continues_its_staging_is_not_adopted(lake: TestLake, tmp_path: Path) -> None:
    _merge_rows(lake, tmp_path)
    task = lake_tasks.file_task(lake.location, AdoptRequest()).id
    before = lake.rows(T, provenance=True)
    lake.merger().run_task()
    outcome = lake_tasks.read_outcome(lake.location, task, AdoptResult)
    assert outcome is not None and "nothing to adopt" in (outcome.error or "")
    assert lake.rows(T, provenance=True) == before
