"""Two mergers of one lake on an object store: one that was suspended within its commit overwrites nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.errors import LeaseLost
from dblog_core.lake.lake_status import lake_at
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from tests.fix_s3 import Bucket
from tests.hadoop_s3 import reach_s3
from tests.s3_proxy import Answer, S3Proxy
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

pytestmark = pytest.mark.one_of(6)

SECONDS = 300  # a deadline, for a machine that is busy
ONE = table("one", id=pa.int64(), v=pa.string())
TWO = table("two", id=pa.int64(), v=pa.string())


@pytest.fixture
def proxy(bucket: Bucket) -> S3Proxy:
    return S3Proxy(bucket.settings)


@pytest.fixture
def s3_lake(spark: SparkSession, tmp_path: Path, bucket: Bucket, proxy: S3Proxy) -> Iterator[TestLake]:
    """All that writes the lake passes the proxy."""
    with proxy.serving() as endpoint:
        settings = bucket.settings.model_copy(update={"endpoint": endpoint})
        reach_s3(spark, settings)
        lake = TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
        lake.location = lake_at(f"s3://{bucket.name}/the lake", s3=settings)
        yield lake


def transactions(lake: TestLake, schema: TableSchema) -> Counter[int]:
    """How often each merge's number stands in the table's log."""
    numbers = Counter[int]()
    directory = lake.table(schema) / "_delta_log"
    for name in directory.names():
        if name.endswith(".json"):
            actions = map(orjson.loads, ((directory / name).read() or b"").splitlines())
            numbers.update(action["txn"]["version"] for action in actions if "txn" in action)
    return numbers


@pytest.mark.parametrize("way", ["mark", "copy"])
@pytest.mark.parametrize("held", ["one/_delta_log", "two/_delta_log"])
def test_a_merger_that_was_suspended_within_its_commit_overwrites_nothing(
    s3_lake: TestLake, proxy: S3Proxy, way: str, held: str
) -> None:
    lake = s3_lake
    lake.vectors = way != "copy"
    rows: dict[int, Row] = {}

    def change(number: int) -> None:
        rows.update({key: {"id": key, "v": f"{number}"} for key in (1, number)})
        for schema in (ONE, TWO):
            lake.build.create(schema, rows[number])
            lake.build.update(schema, rows[1])
        lake.build.seal()

    for number in (1, 2):
        change(number)
        lake.merge_well()
    stands, go = threading.Event(), threading.Event()

    def hold(send: object) -> Answer:
        stands.set()
        assert go.wait(SECONDS), "the commit was never let go"
        assert callable(send)
        answer = send()
        assert isinstance(answer, Answer)
        return answer

    change(3)
    schema = ONE if held.startswith("one") else TWO
    version = (log.version(lake.table(schema)) or 0) + 1
    proxy.fail_put(f"{held}/{version:020d}.json", hold)
    with ThreadPoolExecutor(1) as thread:
        sleeper = lake.merger()
        asleep = thread.submit(lambda: [None for _ in iter(lambda: sleeper.run_round(retry_stopped=False), None)])
        assert stands.wait(SECONDS), asleep
        change(4)
        lake.merge_well()
        left = {schema.table: lake.rows(schema, provenance=True) for schema in (ONE, TWO)}
        go.set()
        error = asleep.exception(SECONDS)
    assert error is None or isinstance(error, LeaseLost), error
    assert left == {schema.table: lake.rows(schema, provenance=True) for schema in (ONE, TWO)}
    for schema in (ONE, TWO):
        assert lake.rows(schema) == [rows[key] for key in sorted(rows)]
        assert set(transactions(lake, schema).values()) == {1}
    change(5)
    lake.merge_well()
    assert lake.rows(ONE) == lake.rows(TWO) == [rows[key] for key in sorted(rows)]
