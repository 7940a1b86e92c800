"""A merge whose work executors of a cluster do, one of which dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

from dblog_core.config.settings import Config
from dblog_core.lake.carrier_choice import WORTH_ROWS
from dblog_core.lake.lake_status import own_directory, read_status, table_location
from dblog_core.lake.merge_dry_run import merge_plan
from dblog_core.lake.spark_submit import run_job
from dblog_core.local.servers.spark_cluster import SparkCluster
from dblog_core.wiring import open_lake, open_staging
from tests.spark.segments import SegmentBuilder, table

pytestmark = pytest.mark.one_of(6)

ITEMS = table("items", id=pa.int64(), v=pa.int64())
COUNT = WORTH_ROWS + 100_000
A_CHUNK = 500_000


@pytest.fixture
def cluster(server_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkCluster]:
    """A cluster of two workers. Merges on it run as a user's do, with the code that Spark and Java compile."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    running = SparkCluster(server_root / "spark")
    running.start()
    yield running
    running.kill()


def config(cluster: SparkCluster, directory: Path) -> Config:
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.cores.max": "64"}
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "postgres", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(directory / "staging")},
            "state": {"url": f"sqlite:///{directory / 'state.db'}"},
            "lake": {"path": str(directory / "lake")},
            "spark": {"master": cluster.url(), "conf": {**loopback, "spark.executor.memory": "768m"}},
        }
    )


def test_a_share_that_is_spread_outlives_an_executor(
    spark: SparkSession, cluster: SparkCluster, tmp_path: Path
) -> None:
    job_config = config(cluster, tmp_path)
    build = SegmentBuilder(open_staging(job_config))
    for first in range(0, COUNT, A_CHUNK):
        ids = np.arange(first, min(first + A_CHUNK, COUNT))
        build.chunk(ITEMS, pa.record_batch([ids, ids * 7], schema=ITEMS.arrow))
    build.seal()
    assert "executors: " in merge_plan(job_config).tables[0].carrier
    messages: list[str] = []
    codes: list[int] = []
    stop = threading.Event()
    merging = threading.Thread(
        target=lambda: codes.append(run_job("merge", job_config, stop=stop, on_line=messages.append))
    )
    merging.start()
    lake = open_lake(job_config)
    victim = cluster.workers[0]
    begun = own_directory(lake) / "merges" / f"{1:012d}.json"
    deadline = time.monotonic() + 600
    while not (begun.exists() and victim.executors()):
        assert merging.is_alive() and time.monotonic() < deadline, messages
        merging.join(0.05)
    victim.kill()
    assert read_status(lake) is None, "it died while there was work to do"
    merging.join(600)
    assert codes == [0], messages
    assert cluster.workers[1].executors()
    place = table_location(lake, ITEMS.table)
    items = spark.read.format("delta").load(str(place))
    checks = functions.count("*"), functions.count_distinct("id"), functions.sum("id"), functions.sum("v")
    ids = np.arange(COUNT)
    assert tuple(items.agg(*checks).collect()[0]) == (COUNT, COUNT, int(ids.sum()), int((ids * 7).sum()))
    commits = [name for name in (place / "_delta_log").names() if name.endswith(".json")]
    assert len(commits) == 2, "the table was made, and all its rows are one commit"
    status = read_status(lake)
    assert status is not None
    merged = status.tables[str(ITEMS.table)].merged
    assert merged is not None and merged.carrier is not None and merged.carrier.startswith("executors: ")
