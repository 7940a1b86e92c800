"""Maintenance changes no row and no cut that is kept; what is older is gone, and says so."""

from __future__ import annotations

import hashlib
import re
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.config.settings import Config
from dblog_core.delta_writer.rewriting import cluster_files, key_overlap
from dblog_core.delta_writer.rewriting.cluster_files import plan_cluster
from dblog_core.errors import LakeError, RequestError
from dblog_core.interfaces import Json
from dblog_core.lake import cuts, lake_tasks
from dblog_core.lake.lake_status import LakeStatus, history_location, lake_at
from dblog_core.lake.task_plans import MaintainPlan
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.maintenance import schedule
from dblog_core.maintenance.maintain_result import MaintainResult
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import clustering, join_files, log
from spark_jobs.lake_tasks import file_upkeep, maintain, registry, upkeep
from spark_jobs.lake_tasks.registry import Kind
from tests.spark.history_lines import history_rows
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import Row, table

pytestmark = pytest.mark.one_of(6)

ONE = table("one", id=pa.int64(), v=pa.string())
HOUR = 3600.0


class Days:
    """A lake that is merged once in a while, at times that the test draws; its segments are sealed in 1970."""

    def __init__(self, lake: TestLake, config: Config) -> None:
        self.lake = lake
        self.config = config
        self.now = 1_800_000_000.0

    def options(self, **more: Any) -> Any:
        return {"config": self.config, "now": lambda: self.now, **more}

    def merge(self) -> int:
        """A merge of what was gathered; its cut."""
        self.lake.build.seal()
        return self.lake.merge_well(**self.options())[-1].number

    def maintain(self) -> Json:
        task = lake_tasks.file_task(self.lake.location, MaintainRequest())
        self.lake.merger(**self.options()).run_task()
        outcome = lake_tasks.read_outcome(self.lake.location, task.id, MaintainResult)
        assert outcome is not None and outcome.error is None, outcome
        assert outcome.result is not None
        return outcome.result.to_json()

    def rows(self, cut: int) -> list[Row]:
        version = cuts.cut_of(self.lake.location, cut).tables[str(ONE.table)]
        frame = self.lake.spark.read.format("delta").option("versionAsOf", version).load(str(self.lake.table(ONE)))
        return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(tmp_path / "staging"), "keep": "7d"},
            "state": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
            "lake": {"path": str(tmp_path / "lake"), "keep": "1h"},
        }
    )


@pytest.fixture
def days(lake: TestLake, config: Config, monkeypatch: pytest.MonkeyPatch) -> Days:
    days = Days(lake, config)

    def carry_out(tools: Any, plan: MaintainPlan) -> Any:
        return maintain.carry_out(tools, plan, now=lambda: days.now)

    monkeypatch.setattr(registry, "KINDS", {MaintainPlan.kind: Kind(carry_out, maintain.plan)})
    return days


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
        and ("clustered" in table_result["done"]) != days.lake.marks  # our own files are few and small
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
    with mock.patch.object(maintain, "_hours", return_value=0.0):  # Delta looks at the real clock
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


def _stored_values(days: Days) -> set[str]:
    """The values of v in all data files of the table's directory, live or not."""
    root = days.lake.path / days.lake.table(ONE).path
    return {v for file in root.glob("*.parquet") for v in pq.read_table(file, columns=["v"])["v"].to_pylist()}


@pytest.mark.parametrize("purge_after", [None, "0s"])
def test_a_deleted_row_is_gone_from_every_file_by_its_age(
    days: Days, monkeypatch: pytest.MonkeyPatch, purge_after: str | None
) -> None:
    """One of a hundred: far below the share from which files are written anew at once."""
    days.lake.vectors = True
    build = days.lake.build
    lake = days.config.lake.model_copy(update={"keep": "2h", "purge_after": purge_after})
    days.config = days.config.model_copy(update={"lake": lake})
    for n in range(100):
        build.create(ONE, {"id": n, "v": "secret" if n == 7 else f"v{n}"})
    days.merge()
    days.maintain()
    days.now += HOUR
    build.delete(ONE, {"id": 7})
    days.merge()
    for hours, purged in ((0, purge_after is not None), (1, purge_after is None), (1, False)):
        days.now += hours * HOUR
        (table_result,) = days.maintain()["tables"]
        assert ("purged" in table_result["done"]) == purged, hours
    assert table_result["deleted"] == 0 and "secret" in _stored_values(days)  # a cut that is kept may be read still
    days.now += 3 * HOUR
    with mock.patch.object(maintain, "_hours", return_value=0.0):  # Delta looks at the real clock
        days.maintain()
    assert "secret" not in _stored_values(days) and len(days.lake.rows(ONE)) == 99
    maintained = schedule.read_maintained(days.lake.location)
    assert maintained is not None and maintained.sizes[0].marked_at is None


def test_a_maintenance_beside_merges_leaves_no_deleted_row_in_a_file(days: Days) -> None:
    """Merges continue while it is prepared; what they mark meanwhile is of the next one."""
    build = days.lake.build
    for n in range(100):
        build.create(ONE, {"id": n, "v": "secret" if n == 7 else f"v{n}"})
    days.merge()
    days.maintain()
    build.delete(ONE, {"id": 7})
    days.merge()
    days.now += 3 * HOUR
    task = lake_tasks.file_task(days.lake.location, MaintainRequest())
    merger = days.lake.merger(**days.options())
    assert merger.run_task(beside=True) is None
    build.update(ONE, {"id": 8, "v": "changed"})
    build.seal()
    merger.run_round(retry_stopped=False)
    while merger.run_task(beside=True) is None:
        merger.compact()
    outcome = lake_tasks.read_outcome(days.lake.location, task.id, MaintainResult)
    assert outcome is not None and outcome.error is None
    live = DeltaTable(str(days.lake.table(ONE).local)).file_uris()
    assert "secret" not in {v for file in live for v in pq.read_table(file, columns=["v"])["v"].to_pylist()}
    rows = {row["id"]: row["v"] for row in days.lake.rows(ONE)}
    assert rows == {n: "changed" if n == 8 else f"v{n}" for n in range(100) if n != 7}


@pytest.mark.parametrize("beside", [False, True])
def test_a_maintenance_after_the_upkeep_finds_nothing_left_to_put_in_order(
    days: Days, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Files that share their keys are put in order while merges continue, in the turn that a maintenance asks for."""
    days.lake.marks = True
    spark_clusters: list[object] = []
    monkeypatch.setattr(clustering, "cluster", lambda *arguments: spark_clusters.append(arguments))
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
    assert clustering.overlap(days.lake.table(ONE), ["id"]).is_mixed()
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
    assert spark_clusters == [] and not clustering.overlap(days.lake.table(ONE), ["id"]).is_mixed(1.5)
    rows = {row["id"]: row["v"] for row in days.lake.rows(ONE)}
    texts = {n: hashlib.sha512(str(n).encode()).hexdigest() for n in range(400)}
    assert rows == texts | dict.fromkeys(range(number), "changed")


def test_a_large_file_is_left_to_spark(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    days.lake.marks = True
    spark_clusters: list[object] = []
    monkeypatch.setattr(clustering, "cluster", lambda *arguments: spark_clusters.append(arguments))
    monkeypatch.setattr(key_overlap, "FILES", 0)
    monkeypatch.setattr(cluster_files, "LARGEST", 10)
    days.lake.build.create(ONE, {"id": 1, "v": "first"})
    days.merge()
    assert "clustered" in days.maintain()["tables"][0]["done"] and len(spark_clusters) == 1


@pytest.mark.parametrize("is_protected", [False, True])
def test_the_log_before_the_oldest_cut_is_removed_and_cuts_are_read(
    days: Days, marks: bool, is_protected: bool
) -> None:
    """`is_protected`: a feature was dropped, so that Delta alone knows where the log may be cut."""
    path = days.lake.table(ONE)
    merges = []
    for n in range(6):
        days.now += HOUR
        days.lake.build.create(ONE, {"id": n, "v": "v"})
        merges.append(days.merge())
        if n in (1, 3):
            DeltaTable(str(path.local)).create_checkpoint()
        if not n and is_protected:
            protect = "SET TBLPROPERTIES ('delta.feature.checkpointProtection' = 'supported')"
            days.lake.spark.newSession().sql(f"ALTER TABLE delta.`{path}` {protect}")
    before = {cut: days.rows(cut) for cut in merges}
    oldest = days.maintain()["cuts"]["oldest"]
    assert oldest > merges[0]
    remaining_cuts = [cut for cut in merges if cut >= oldest]
    assert {cut: days.rows(cut) for cut in remaining_cuts} == {cut: before[cut] for cut in remaining_cuts}
    commits = [name for name in (path / "_delta_log").names() if name.endswith(".json") and name[0].isdigit()]
    # A table that Spark alone writes keeps its log as long as Delta does.
    assert (int(min(commits)[:20]) > 0) == (marks and not is_protected), "the table's first commit is gone"
    days.lake.build.create(ONE, {"id": 99, "v": "v"})
    days.merge()
    assert [row["id"] for row in days.lake.rows(ONE)] == [0, 1, 2, 3, 4, 5, 99]


def test_the_log_of_a_history_is_removed_by_age_and_its_lines_stay(days: Days, marks: bool) -> None:
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
    # The newest version of the first maintenance has a checkpoint; a history that Spark alone writes keeps its log.
    assert (oldest_commit(path) > 0) == marks
    days.lake.build.create(ONE, {"id": 5, "v": "v"})
    days.merge()
    assert [line[2] for line in history_rows(days.lake, ONE)] == list(range(6))


def oldest_commit(table: Location) -> int:
    return min(int(name[:20]) for name in (table / "_delta_log").names() if re.fullmatch(r"\d{20}\.json", name))


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


def test_a_key_lies_in_few_files_after_clustering(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured by the Delta log: with how many files a file shares its keys, before and after."""
    path = lake_at(str(tmp_path)) / "one"
    mixed = spark.range(8000).select("id", F.md5(F.col("id").cast("string")).alias("v")).repartition(8)
    mixed.write.format("delta").save(str(path))
    before = clustering.overlap(path, ["id"])
    assert 7.9 < before.files <= 8.0 and before.is_mixed()
    small = {name: str(40_000) for name in join_files._SETTINGS if "FileSize" in name}
    monkeypatch.setattr(join_files, "_SETTINGS", {**join_files._SETTINGS, **small})
    clustering.cluster(spark, path, ["id"])
    after = clustering.overlap(path, ["id"])
    assert len(after.sizes) >= 4 and after.files <= 3 and not after.is_mixed()
    assert spark.read.format("delta").load(str(path)).agg(F.sum("id"), F.count("*")).first() == (8000 * 7999 / 2, 8000)


def test_a_table_that_is_not_in_the_lake_is_refused() -> None:
    tools: Any = mock.Mock(status=LakeStatus(merge=1))
    with pytest.raises(RequestError, match="not in the lake"):
        maintain.plan(tools, MaintainRequest(("shop.none",)))


def test_what_delta_says_of_a_table_comes_with_its_name() -> None:
    place = maintain.Place("shop.one", lake_at("/nowhere"), history=True)
    damaged = mock.Mock(side_effect=AnalysisException("the log is damaged\tat org.apache"))
    with pytest.raises(LakeError, match="cannot be maintained") as caught, maintain._name_errors(place):
        damaged()
    assert caught.value.where == "shop.one__history" and "org.apache" not in caught.value.message
