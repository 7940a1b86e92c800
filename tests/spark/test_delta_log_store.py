"""Spark's commits while another driver commits, on an object store and on a file system: none overwrites the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog_core.config.settings import S3Config
from dblog_core.errors import LakeError
from spark_jobs import delta_log_store
from spark_jobs.session import reach_s3
from tests.fix_s3 import Bucket
from tests.s3_proxy import Answer, S3Proxy

SECONDS = 120  # a deadline, for a machine that is busy
SETTINGS = ("spark.delta.logStore.file.impl", "spark.delta.logStore.s3.impl")
OURS = "dblog.CreateIfAbsentLogStore"
CONFLICT = b"<?xml version='1.0'?><Error><Code>ConditionalRequestConflict</Code><Message>try again</Message></Error>"


def version(number: int) -> str:
    return f"_delta_log/{number:020d}.json"


def delta_options(settings: S3Config) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": settings.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": settings.access_key,
        "AWS_SECRET_ACCESS_KEY": settings.secret_key.get_secret_value(),
    }


class Lake:
    """A bucket that Spark reaches through a proxy, and another driver without one."""

    def __init__(self, spark: SparkSession, bucket: Bucket, proxy: S3Proxy) -> None:
        self.spark, self.proxy, self._bucket = spark, proxy, bucket

    def url(self, name: str) -> str:
        return f"s3://{self._bucket.name}/{name}"

    def make(self, name: str) -> str:
        """A table of the rows 0 to 4, in version 0."""
        self.spark.range(5).coalesce(1).write.format("delta").save(self.url(name))
        return self.url(name)

    def append_from_afar(self, url: str, *rows: int) -> None:
        """Another driver commits: delta-rs, whose commits on S3 are created if absent."""
        options = delta_options(self._bucket.settings)
        rows_table = pa.table({"id": pa.array(rows, pa.int64())})
        deltalake.write_deltalake(url, rows_table, mode="append", schema_mode="merge", storage_options=options)

    def rows(self, url: str) -> list[int]:
        return sorted(row[0] for row in self.spark.read.format("delta").load(url).collect())

    def rows_from_afar(self, url: str) -> list[int]:
        table = deltalake.DeltaTable(url, storage_options=delta_options(self._bucket.settings))
        rows = deltalake.QueryBuilder().register("t", table).execute("SELECT id FROM t").read_all()
        return sorted(pa.table(rows)["id"].to_pylist())

    def commit_late(self, url: str, statement: Callable[[], object]) -> None:
        """The statement's commit has looked for its version, and stands still before it writes it. Meanwhile another
        driver makes that version."""
        stands, go = threading.Event(), threading.Event()

        def hold(send: Callable[[], Answer]) -> Answer:
            stands.set()
            assert go.wait(SECONDS), "the commit was never let go"
            return send()

        self.proxy.fail_put(version(1), hold)
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(statement)
            assert stands.wait(SECONDS), done
            self.append_from_afar(url, 7)
            go.set()
            with suppress(PySparkException, Py4JJavaError):  # where both cannot be had, ours ends with an error
                done.result(SECONDS)


@pytest.fixture
def lake(spark: SparkSession, bucket: Bucket) -> Iterator[Lake]:
    proxy = S3Proxy(bucket.settings)
    with proxy.serving() as endpoint:
        reach_s3(spark, bucket.settings.model_copy(update={"endpoint": endpoint}))
        yield Lake(spark, bucket, proxy)


def driver_conf(spark: SparkSession) -> Any:
    assert spark.sparkContext._jvm is not None
    return spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().conf()


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    """The driver's settings without our log store, which it has again afterwards."""
    settings = driver_conf(spark)
    assert [settings.get(name) for name in SETTINGS] == [OURS, OURS]
    for name in SETTINGS:
        settings.remove(name)
    yield settings
    for name in SETTINGS:
        settings.set(name, OURS)


def delete_all(spark: SparkSession, url: str) -> None:
    DeltaTable.forPath(spark, url).delete()


def merge(spark: SparkSession, url: str) -> None:
    source = spark.range(3, 10).alias("s")
    table = DeltaTable.forPath(spark, url).alias("t")
    table.merge(source, "t.id = s.id").whenNotMatchedInsertAll().execute()


STATEMENTS: dict[str, Callable[[SparkSession, str], object]] = {
    "append": lambda spark, url: spark.range(100, 102).write.format("delta").mode("append").save(url),
    "merge": merge,
    "delete": delete_all,
    "alter": lambda spark, url: spark.sql(f"ALTER TABLE delta.`{url}` ADD COLUMNS (more INT)"),
    "optimize": lambda spark, url: spark.sql(f"OPTIMIZE delta.`{url}` ZORDER BY (id)"),
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_commit_that_was_held_up_overwrites_no_other_drivers_version(lake: Lake, name: str) -> None:
    url = lake.make(name)
    lake.commit_late(url, lambda: STATEMENTS[name](lake.spark, url))
    rows = lake.rows(url)
    assert rows.count(7) == 1, rows
    assert rows == lake.rows_from_afar(url)
    lake.append_from_afar(url, 50)
    assert lake.rows(url) == sorted([*rows, 50])


@pytest.mark.usefixtures("conf")
def test_deltas_own_log_store_loses_the_other_drivers_rows(lake: Lake) -> None:
    """Which is why it is not used: where this fails, Delta or Hadoop has mended it."""
    url = lake.make("unsafe")
    lake.commit_late(url, lambda: STATEMENTS["append"](lake.spark, url))
    assert lake.rows(url) == [0, 1, 2, 3, 4, 100, 101]


def answer_conflict(send: Callable[[], Answer]) -> Answer:
    return Answer(409, CONFLICT)


def send_and_answer_conflict(send: Callable[[], Answer]) -> Answer:
    send()
    return Answer(409, CONFLICT)


def send_and_lose_answer(send: Callable[[], Answer]) -> None:
    send()


@pytest.mark.parametrize("fault", [answer_conflict, send_and_answer_conflict, send_and_lose_answer])
def test_a_commit_whose_answer_is_lost_or_wrong_is_made_once(
    lake: Lake, fault: Callable[[Callable[[], Answer]], Answer | None]
) -> None:
    url = lake.make(fault.__name__)
    lake.proxy.fail_put(version(1), fault)
    STATEMENTS["append"](lake.spark, url)
    assert lake.proxy.is_done
    assert lake.rows(url) == [0, 1, 2, 3, 4, 100, 101]
    assert [row["version"] for row in DeltaTable.forPath(lake.spark, url).history().collect()] == [1, 0]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_log_store_that_the_user_has_set_stays(spark: SparkSession, conf: Any, name: str) -> None:
    conf.set(name, "io.delta.storage.S3SingleDriverLogStore")
    delta_log_store.install(spark)
    assert conf.get(name) == "io.delta.storage.S3SingleDriverLogStore"
    (other,) = set(SETTINGS) - {name}
    assert conf.get(other) == OURS
    conf.remove(name)
    delta_log_store.install(spark)
    assert [conf.get(name) for name in SETTINGS] == [OURS, OURS]


def test_a_driver_that_does_not_take_it_does_not_begin(
    spark: SparkSession, conf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log_store, "_SOURCE", "class Broken {")
    with pytest.raises(LakeError, match="does not take the log store") as caught:
        delta_log_store.install(spark)
    assert "logStore.SCHEME.impl" in (caught.value.fix or "")
    assert not any(map(conf.contains, SETTINGS))


class Store:
    """A log store of the driver's: ours, unless another class is named."""

    def __init__(self, spark: SparkSession, name: str = OURS) -> None:
        self._jvm = spark.sparkContext._jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()
        assert self._jvm is not None
        utils = self._jvm.org.apache.spark.util.Utils
        kind = utils.classForName(name, True, False)
        self._store = kind.getConstructors()[0].newInstance(self._jvm.PythonUtils.toArray([self._conf]))

    def write(self, path: Path, line: str, *, overwrite: bool = False) -> bool:
        """False where the file is another's."""
        assert self._jvm is not None
        lines = self._jvm.java.util.ArrayList()
        lines.add(line)
        try:
            self._store.write(
                self._jvm.org.apache.hadoop.fs.Path(f"file:{path}"), lines.iterator(), overwrite, self._conf
            )
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.nio.file.FileAlreadyExistsException":
                raise
            return False
        return True


def test_of_many_writers_of_one_version_on_a_file_system_one_makes_it(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(spark)
    log = tmp_path / "50% a `b`" / "_delta_log"
    log.mkdir(parents=True)
    with ThreadPoolExecutor(8) as threads:
        for number in range(20):
            path = log / f"{number:020d}.json"
            texts = [f"{number} {writer}" for writer in range(8)]
            made = list(threads.map(lambda text, path=path: store.write(path, text), texts))
            assert made.count(True) == 1
            assert path.read_text() == texts[made.index(True)] + "\n"
    assert len(list(log.iterdir())) == 20, "nothing else is left"


def test_a_file_of_the_same_bytes_is_our_own(spark: SparkSession, tmp_path: Path) -> None:
    """NFS repeats a request whose answer was lost."""
    store = Store(spark)
    assert store.write(tmp_path / "1.json", "one") and store.write(tmp_path / "1.json", "one")
    assert not store.write(tmp_path / "1.json", "two")
    assert store.write(tmp_path / "1.json", "two", overwrite=True)
    assert (tmp_path / "1.json").read_text() == "two\n"


def test_a_file_system_that_takes_no_file_says_so(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Py4JJavaError, match=r"FileSystemException: .*Not a directory"):
        Store(spark).write(tmp_path / "file" / "1.json", "one")
