"""Maintenance changes no row and no cut that is kept; what is older is gone, and says so."""

from __future__ import annotations

import hashlib
import re
import time
from functools import partial
from typing import Any
from unittest import mock

import pytest

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.rewriting import cluster_files, key_overlap
from dblog_core.delta_writer.rewriting.cluster_files import plan_cluster
from dblog_core.delta_writer.rewriting.key_overlap import KeyRange, Overlap, ends_of
from dblog_core.errors import LakeError, RequestError
from dblog_core.lake import cuts, lake_tasks
from dblog_core.lake.lake_status import LakeStatus, history_location
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.lake_engine.tables import checkpoints, log
from dblog_core.lake_engine.tasks import file_upkeep, maintain, upkeep
from dblog_core.maintenance import schedule
from dblog_core.maintenance.maintain_result import MaintainResult
from dblog_core.storage.location import Location
from tests.spark.days import HOUR, ONE, Days
from tests.spark.history_lines import history_rows
from tests.spark.lakes import Crash, TestLake

pytestmark = pytest.mark.one_of(6)


def test_no_row_changes_and_cuts_are_read_up_to_their_age(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    build = days.lake.build
    path = days.lake.table(ONE)
    for n in range(40):
        build.create(ONE, {"id": n, "v": "first"})
    merges = [days.merge()]
    for n in range(2):
        days.now += HOUR
        build.update(ONE, {"id": n, "v": "changed"})
        for key in range(10 + 5 * n, 15 + 5 * n):
            build.delete(ONE, {"id": key})
        merges.append(days.merge())
    before = {cut: days.rows(cut) for cut in merges}
    monkeypatch.setattr(key_overlap, "FILES", 0)  # all files count as mixed

    result = days.maintain()
    (table_result,) = result["tables"]
    assert (
        table_result["table"] == "shop.one"
        and "clustered" not in table_result["done"]  # our own files are few and small
        and (table_result["rows"], table_result["deleted"]) == (30, 0)
    )
    # An hour back is the second merge: it, and those after it, are read as they were.
    assert result["cuts"] == {"oldest": merges[1], "removed": 1}
    status = days.lake.merger().status
    assert {cut: days.rows(cut) for cut in (merges[1], merges[2])} == {
        cut: before[cut] for cut in (merges[1], merges[2])
    }
    assert days.rows(status.merge) == before[merges[2]]
    with pytest.raises(LakeError, match="no cut 1"):
        cuts.cut_of(days.lake.location, merges[0])
    with pytest.raises(LakeError):
        cuts.find_cut(days.lake.location, 40)
    assert status.tables["shop.one"].version == log.version(path) and status.offset == build.offset
    # Staging has what the lake has merged removed, but for the newest segment.
    assert result["staging"]["segment"] == 3 and result["staging"]["held"] == []

    days.now += 24 * HOUR
    result = days.maintain()
    assert result["tables"][0]["removed_files"] > 0 and result["cuts"]["oldest"] == status.merge
    assert sorted(days.lake.rows(ONE, provenance=True), key=lambda row: row["id"]) == before[merges[2]]
    maintained = schedule.read_maintained(days.lake.location)
    assert maintained is not None and maintained.at == days.now and maintained.sizes[0].rows == 30

    build.update(ONE, {"id": 1, "v": "again"})
    days.merge()
    assert [row["v"] for row in days.lake.rows(ONE)][:3] == ["changed", "again", "first"]
    other = TestLake(days.lake.spark, days.lake.staging, days.lake.path.parent / "other")
    other.merge_well()
    assert [row["id"] for row in other.rows(ONE)] == [1], "a new lake begins where staging does"


@pytest.mark.parametrize("beside", [False, True])
def test_a_maintenance_after_the_upkeep_finds_nothing_left_to_put_in_order(
    days: Days, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Files that share their keys are put in order while merges continue, in the turn that a maintenance asks for."""
    monkeypatch.setattr(key_overlap, "FILES", 1)
    monkeypatch.setattr(upkeep, "plan_join", lambda table, at_least: None)
    monkeypatch.setattr(file_upkeep, "join_files", lambda table: 0)
    monkeypatch.setattr(upkeep, "plan_cluster", partial(plan_cluster, target=6000))
    cluster_some = partial(cluster_files.cluster_files, target=6000)
    monkeypatch.setattr(cluster_files, "cluster_files", cluster_some)
    build = days.lake.build
    for begin in range(4):
        for n in range(begin, 400, 4):
            build.create(ONE, {"id": n, "v": hashlib.sha512(str(n).encode()).hexdigest()})
        days.merge()
    assert overlap_of(days.lake.table(ONE)).is_mixed()
    task = lake_tasks.file_task(days.lake.location, MaintainRequest())
    merger = days.lake.merger(**days.options())
    number = 0
    while merger.run_task(beside=beside) is None:
        assert beside
        build.update(ONE, {"id": number, "v": "changed"})
        number += 1
        build.seal()
        merger.run_round(retry_stopped=False)
        merger.compact()
    outcome = lake_tasks.read_outcome(days.lake.location, task.id, MaintainResult)
    assert outcome is not None and outcome.error is None and outcome.result is not None
    (table_result,) = outcome.result.tables
    assert ("clustered" in table_result.did) != beside
    assert not overlap_of(days.lake.table(ONE)).is_mixed(1.5)
    rows = {row["id"]: row["v"] for row in days.lake.rows(ONE)}
    texts = {n: hashlib.sha512(str(n).encode()).hexdigest() for n in range(400)}
    assert rows == texts | dict.fromkeys(range(number), "changed")


def test_a_table_that_we_do_not_write_is_named_and_holds_no_other_up(days: Days) -> None:
    path = days.lake.table(ONE)
    for n in range(2):
        days.lake.build.create(ONE, {"id": n, "v": "first"})
        days.merge()
    statement = f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (id >= 0)"
    days.lake.spark.newSession().sql(statement)
    version = log.version(path)
    result = days.maintain()
    (failed,) = result["failed"]
    assert failed["name"] == str(ONE.table)
    assert failed["error"] == "its files are not joined: it has the constraint positive" and failed["fix"]
    assert result["tables"][0]["done"] == [] and result["tables"][0]["rows"] == 2
    assert days.lake.merger().status.tables[str(ONE.table)].unmaintained == f"{ONE.table}: {failed['error']}"
    assert log.version(path) == version and [row["id"] for row in days.lake.rows(ONE)] == [0, 1]


@pytest.mark.parametrize(
    ("setting", "is_cleaned"),
    [
        (None, True),
        ("'delta.enableChangeDataFeed' = 'true'", True),
        ("'delta.enableRowTracking' = 'true'", True),
        ("'delta.feature.checkpointProtection' = 'supported'", False),
        ("'delta.feature.v2Checkpoint' = 'supported'", False),
    ],
)
def test_the_log_before_the_oldest_cut_is_removed_and_cuts_are_read(
    days: Days, setting: str | None, is_cleaned: bool
) -> None:
    """Of a table that takes MERGEs alone too. Where a feature was dropped, or has checkpoints of its own, Delta alone
    knows where the log may be cut."""
    path = days.lake.table(ONE)
    merges = []
    for n in range(6):
        days.now += HOUR
        days.lake.build.create(ONE, {"id": n, "v": "v"})
        merges.append(days.merge())
        if n in (1, 3):
            checkpoints.write(path)
        if not n and setting is not None:
            days.lake.spark.newSession().sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({setting})")
    before = {cut: days.rows(cut) for cut in merges}
    oldest = days.maintain()["cuts"]["oldest"]
    assert oldest > merges[0]
    remaining_cuts = [cut for cut in merges if cut >= oldest]
    assert {cut: days.rows(cut) for cut in remaining_cuts} == {cut: before[cut] for cut in remaining_cuts}
    commits = [name for name in (path / "_delta_log").names() if name.endswith(".json") and name[0].isdigit()]
    assert (int(min(commits)[:20]) > 0) == is_cleaned, "the table's first commit is gone"
    days.lake.build.create(ONE, {"id": 99, "v": "v"})
    days.merge()
    assert [row["id"] for row in days.lake.rows(ONE)] == [0, 1, 2, 3, 4, 5, 99]


def test_the_log_of_a_history_is_removed_by_age_and_its_lines_stay(days: Days) -> None:
    """By what its commits say of their time, which is today's: a stream may be away for seven days."""
    days.lake.history = True
    path = history_location(days.lake.location, ONE.table)
    for n in range(4):
        days.lake.build.create(ONE, {"id": n, "v": "v"})
        days.merge()
    days.now = time.time() + 7 * 24 * HOUR - 600
    days.maintain()
    assert oldest_commit(path) == 0, "all of it is young"
    days.lake.build.create(ONE, {"id": 4, "v": "v"})
    days.merge()
    days.now += 1200
    days.maintain()
    assert oldest_commit(path) > 0, "the newest version of the first maintenance has a checkpoint"
    days.lake.build.create(ONE, {"id": 5, "v": "v"})
    days.merge()
    assert [line[2] for line in history_rows(days.lake, ONE)] == list(range(6))


def oldest_commit(table: Location) -> int:
    return min(int(name[:20]) for name in (table / "_delta_log").names() if re.fullmatch(r"\d{20}\.json", name))


def overlap_of(path: Location) -> Overlap:
    """Which files share keys."""
    live_files = snapshot.newest(TableFiles.at(path)).files.values()
    return Overlap([KeyRange(live.size, ends_of(live.add["stats"], ["id"])) for live in live_files])


def test_a_crash_in_the_middle_is_finished_by_the_next_merge(days: Days) -> None:
    for n in range(10):
        days.lake.build.create(ONE, {"id": n, "v": "first"})
    days.merge()
    rows = days.lake.rows(ONE, provenance=True)
    task = lake_tasks.file_task(days.lake.location, MaintainRequest())

    def die(name: str) -> None:
        if name == "maintained shop.one":
            raise Crash

    with pytest.raises(Crash):
        days.lake.merger(**days.options(step=die)).run_task()
    days.lake.merge_well(**days.options())
    outcome = lake_tasks.read_outcome(days.lake.location, task.id, MaintainResult)
    assert outcome is not None and outcome.error is None
    assert days.lake.rows(ONE, provenance=True) == rows and len(days.lake.cuts()) == 2


def test_a_table_that_is_not_in_the_lake_is_refused() -> None:
    tools: Any = mock.Mock(status=LakeStatus(merge=1))
    with pytest.raises(RequestError, match="not in the lake"):
        maintain.plan(tools, MaintainRequest(("shop.none",)))
