"""One Spark session for all tests that read or write the lake: its first start costs more than most tests."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog_core.config.settings import Config
from dblog_core.lake.lake_status import own_directory
from dblog_core.lake.spark_submit import COMMIT_MARK, spark_conf
from dblog_core.lake_engine.lake_job import Caller, build_lake
from dblog_core.lake_engine.merge_job import Job
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.lock import lake_lock
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.lake_engine.merging.withheld_keys import StoredDumps, Withheld
from dblog_core.local.packages.spark_jars import fetch_delta_jars, fetch_s3_jars
from dblog_core.wiring import open_staging, open_state

_SMALL_QUERIES = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # Java's room for compiled code would be full after ten minutes, and all be interpreted from then on.
    "-XX:ReservedCodeCacheSize=240m",
    # Hundreds of queries, each its own code: compiling that takes longer than to run it as it is.
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)
"""What halves the time of tests that start Spark, in this process or by spark-submit."""


def pytest_configure(config: pytest.Config) -> None:
    """Benchmarks alone measure Spark as its users have it."""
    if not _measures(config):
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join(_SMALL_QUERIES)


def _measures(config: pytest.Config) -> bool:
    return all("benchmarks" in argument for argument in config.args)


_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.commitInfo.userMetadata": COMMIT_MARK,
    "spark.databricks.delta.snapshotPartitions": "2",  # 50 small tasks for every snapshot otherwise
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.databricks.delta.merge.materializeSource": "none",  # the source is cached, and its files never change
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.variable.substitute": "false",  # a ${env:…} in the name of a column is no variable
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # listing staged files needs no job
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # staged dates are of the proleptic calendar
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""What a session needs that reads and writes Delta tables; its commits carry our mark."""
_SMALL_TABLES = {
    "spark.sql.adaptive.enabled": "false",  # it plans each stage anew
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # a VACUUM has 10,000 tasks otherwise
}
"""A quarter less work for tables of a few rows. Benchmarks, and tests that call spark-submit, have what users have."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_CONF_DIR"] = str(Path(spark_conf.__code__.co_filename).parent / "spark_conf")
    conf = {
        **spark_conf(),
        **_DELTA,
        **({} if _measures(request.config) else _SMALL_TABLES),
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(str(jar) for jar in fetch_delta_jars()),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    if any("bucket" in getattr(item, "fixturenames", ()) for item in request.session.items):  # 659 MB, where asked for
        conf["spark.driver.extraClassPath"] = ":".join(str(jar) for jar in fetch_s3_jars())
    builder = SparkSession.builder.appName("dblog tests")
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def read_lake(spark: SparkSession) -> Callable[[Path], list[dict[str, Any]]]:
    """Reads a Delta table whole: a dict a row."""

    def read(path: Path) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.read.format("delta").load(str(path)).collect()]

    return read


@pytest.fixture
def merged_here(spark: SparkSession) -> Callable[[Config], int]:
    """The merge job in this process's warm session: all that is sealed, as `dblog merge --once` does; its exit code."""

    def merge(config: Config) -> int:
        staging = open_staging(config)
        lake = build_lake(config)
        records = Records(own_directory(lake.location))
        with (
            closing(open_state(config)) as state,
            lake_lock(records.directory, state, ttl=config.state.ttl, wait=30) as check,
        ):
            withheld = Withheld(records)
            dumps = StoredDumps(config)
            merger = Merger(staging, lake, records, withheld, check=check, dumps=dumps)
            return Job(merger, withheld, dumps, Caller(threading.Event(), print)).once()

    return merge


@pytest.fixture
def merge_here(merged_here: Callable[[Config], int]) -> Callable[[Config], None]:
    """As `merged_here`, and no table may stop."""

    def merge(config: Config) -> None:
        assert merged_here(config) == 0

    return merge
