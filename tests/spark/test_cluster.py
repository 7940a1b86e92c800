"""A merge whose work executors of a cluster do, one of which dies."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

from dblog_core.config.settings import Config
from dblog_core.errors import CorruptSegment
from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import own_directory, read_status, table_location
from dblog_core.lake.spark_submit import run_job
from dblog_core.local.servers.spark_cluster import SparkCluster
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from dblog_core.wiring import open_lake, open_staging
from spark_jobs.events import staged_events
from tests.spark.lakes import TestLake
from tests.spark.segments import SegmentBuilder, table

pytestmark = pytest.mark.one_of(6)

DOCUMENTS = table("documents", id=pa.int64(), data=pa.binary())
COUNT = 225_000
SIZE = 320
"""So many that neither the driver folds them, nor compares their files itself."""


@pytest.fixture
def cluster(server_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkCluster]:
    """A cluster of two workers. Merges on it run as a user's do, with the code that Spark and Java compile."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    running = SparkCluster(server_root / "spark")
    running.start()
    yield running
    running.kill()


def config(cluster: SparkCluster, directory: Path) -> Config:
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "postgres", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(directory / "staging")},
            "state": {"url": f"sqlite:///{directory / 'state.db'}"},
            "lake": {"path": str(directory / "lake")},
            "spark": {"master": cluster.url(), "conf": {**loopback, "spark.executor.memory": "768m"}},
        }
    )


def test_a_merge_on_a_cluster_outlives_an_executor(spark: SparkSession, cluster: SparkCluster, tmp_path: Path) -> None:
    job_config = config(cluster, tmp_path)
    chance = random.Random(1)
    build = SegmentBuilder(open_staging(job_config))
    rows: dict[int, str] = {}
    for first in range(0, COUNT, 25_000):
        part = {n: chance.randbytes(SIZE) for n in range(first, first + 25_000)}
        build.chunk(DOCUMENTS, [{"id": n, "data": data} for n, data in part.items()])
        rows |= {n: hashlib.sha256(data).hexdigest() for n, data in part.items()}
    build.seal()
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
    lake_frame = spark.read.format("delta").load(str(table_location(lake, DOCUMENTS.table)))
    # In parts that are small enough for Spark to send with a task's own result: larger ones pass through its store.
    digests = lake_frame.select("id", functions.sha2("data", 256).alias("digest")).repartition(32).toArrow()
    assert dict(zip(digests["id"].to_pylist(), digests["digest"].to_pylist(), strict=True)) == rows
    assert digests.num_rows == COUNT
    assert list((own_directory(lake) / "checkpoints").names()) == []


@pytest.mark.parametrize("directory", ["staging", "a [b] {c} * d"])
def test_executors_compare_the_files_of_large_works(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    monkeypatch.setattr(staged_events, "CHECKED_HERE", 0)
    lake = TestLake(spark, Staging(str(tmp_path / directory), source="shop"), tmp_path / "lake")
    for first in (1, 11, 21):
        lake.build.chunk(DOCUMENTS, [{"id": n, "data": b"x"} for n in range(first, first + 10)])
    lake.build.seal()
    work = merge_plan.plan_works(lake.staging.manifests(), lambda table: 0)["shop.documents"]
    staged_events.check_files(spark, lake.staging, work)
    assert staged_events.read_events(spark, lake.staging, work, DOCUMENTS).count() == 30
    storage = lake.staging.storage
    assert isinstance(storage, LocalStorage)
    path = storage.path(work.chunks[1].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(CorruptSegment, match="was changed") as caught:
        staged_events.check_files(spark, lake.staging, work)
    assert caught.value.where == str(path)
    path.unlink()
    with pytest.raises(CorruptSegment, match="missing"):
        staged_events.check_files(spark, lake.staging, work)
