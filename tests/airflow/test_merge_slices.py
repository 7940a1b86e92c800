"""A merge that runs all the time in the real Airflow, and its standby."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import LakeStatus, lake_at, read_status
from dblog_core.staging import Staging
from tests.fix_airflow import MERGE, SPARK_SECONDS, Live
from tests.spark.segments import SegmentBuilder, table
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the servers too

T = table("t", id=pa.int64(), v=pa.string())
SLICES = ("dblog_alltime_merge", "dblog_alltime_merge_standby")
_TOML = """
[source]
name = "alltime"
kind = "mysql"
database = "shop"
tables = ["shop.t"]
[staging]
path = "{root}/staging"
[state]
url = "sqlite:///{root}/state.db"
ttl = 4
[lake]
path = "{root}/lake"
[airflow]
merge = "continuous"
"""


@pytest.fixture
def staged(live: Live, tmp_path: Path) -> Iterator[SegmentBuilder]:
    """The staging of a source that Airflow merges all the time, for as long as the test takes."""
    file = live.root / "sources" / "alltime.toml"
    file.write_text(_TOML.format(root=tmp_path))
    build = SegmentBuilder(Staging(str(tmp_path / "staging"), source="alltime"))
    try:
        live.client.parse_again(MERGE)
        wait_until(lambda: set(SLICES) <= set(live.client.dags()), "the DAGs are parsed", describe=live.client.dags)
        yield build
    finally:
        for dag in SLICES:
            live.client.pause(dag)
        for dag, run in running_slices(live):
            live.client.mark(dag, run, "failed")
        wait_until(lambda: not running_slices(live), "no slice goes on", describe=lambda: running_slices(live))
        file.unlink()
        live.client.parse_again(MERGE)


def running_slices(live: Live) -> list[tuple[str, str]]:
    """DAG and run of each."""
    return [(dag, run["dag_run_id"]) for dag in SLICES for run in live.client.runs(dag, state="running")]


def logs_of(live: Live, runs: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What each run has written, where its task has begun."""
    return {
        (dag, run): live.client.log(dag, run, "merge")
        for dag, run in runs
        if live.task_states(dag, run).get("merge") == {"running"}
    }


@pytest.mark.one_of(8)
def test_one_run_merges_at_once_and_the_other_takes_over(live: Live, staged: SegmentBuilder, tmp_path: Path) -> None:
    def write_and_wait(number: int) -> None:
        staged.create(T, {"id": number, "v": "v"})
        staged.seal()
        wait_until(
            lambda: (read_status(lake_at(str(tmp_path / "lake"))) or LakeStatus()).offset == number,
            f"row {number} is in the lake",
            timeout=SPARK_SECONDS,
            describe=lambda: logs_of(live, running_slices(live)),
        )

    def run_that_says(words: str) -> tuple[str, str] | None:
        logs = logs_of(live, running_slices(live))
        return next((run for run, text in logs.items() if words in text), None)

    write_and_wait(1)
    merging = wait_until(lambda: run_that_says("Spark has started"), "a run merges")
    standby = wait_until(lambda: run_that_says("standing by"), "the other one stands by")
    assert {merging[0], standby[0]} == set(SLICES)
    write_and_wait(2)
    dag, run = merging
    live.client.mark(dag, run, "failed")
    write_and_wait(3)
    wait_until(lambda: (text := logs_of(live, [standby]).get(standby)) and "Spark has started" in text, "it took over")
