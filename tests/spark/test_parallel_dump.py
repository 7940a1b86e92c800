"""A dump whose workers are tasks of a Spark cluster, under a live workload: executors and the driver are killed."""

from __future__ import annotations

import threading
import venv
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.lake.spark_submit import run_job
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.spark_cluster import SparkCluster
from tests.fix_servers import Database
from tests.nemesis import oracles
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.test_kills import judge_log, log_start
from tests.nemesis.workload import Writers, create_tables
from tests.waiting import wait_until

pytestmark = pytest.mark.one_of(4)

WORKERS = 2
NewDatabase = Callable[[MysqlServer], Database]


@pytest.fixture
def cluster(server_root: Path) -> Iterator[SparkCluster]:
    running = SparkCluster(server_root / "spark-dump", workers=WORKERS + 1)
    running.start()
    yield running
    running.kill()


def asked_for(config: Config) -> DumpStatus | None:
    with closing(wiring.open_state(config)) as state:
        return next((dump for dump in dump_store.list_dumps(state) if dump.requested_by == dump_records.USER), None)


def rows(config: Config) -> int:
    asked_tasks = asked_for(config)
    return 0 if asked_tasks is None else asked_tasks.rows


@pytest.mark.one_of(10)
@pytest.mark.in_turn
def test_a_dump_on_executors_outlives_some_of_them_and_its_driver(
    database: Database, cluster: SparkCluster, zookeeper_url: str, tmp_path: Path
) -> None:
    create_tables(database)
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    config = database.config(
        tmp_path,
        state={"url": zookeeper_url, "ttl": 4.0},
        dump={"chunk_size": 25, "workers": WORKERS, "delay": 0.3},
        spark={"master": cluster.url(), "conf": {**loopback, "spark.executor.memory": "512m"}},
    )
    start = oracles.source_rows(database)
    reference = log_start(database)
    dblog = Dblog(config, tmp_path)
    try:
        dblog.run("capture", "--until-current")
        dblog.start("capture")
        with Writers(database, seed=1) as writers:
            driver = dblog.start("dump", "--all", "--spark", "--wait")
            wait_until(lambda: rows(config) > 0, "executors have read a chunk")
            victim = next(worker for worker in cluster.workers if worker.executors())
            victim.kill()
            before = rows(config)
            wait_until(lambda: rows(config) > before, "the others go on")
            assert any("java" in process.name() for process in psutil.Process(driver.pid).children(recursive=True))
            kill(driver)
            asked_tasks = asked_for(config)
            assert asked_tasks is not None and asked_tasks.state == "running", "it died while there was work to do"
            dblog.run("set", asked_tasks.id, "delay=0")
            dblog.run("work", "--once", "--spark", timeout=400)
            asked_tasks = asked_for(config)
            assert asked_tasks is not None and asked_tasks.state == "done"
        assert not writers.faults, writers.faults
        dblog.run("capture", "--until-current")
        judge_log(config, database, start, reference())
        assert asked_tasks.rows >= sum(map(len, start.values())) / 2, "tables shrink and grow meanwhile"
    except BaseException:
        print(dblog.output())
        raise
    finally:
        dblog.close()


def test_an_executor_without_dblog_is_told_as_such(
    mysql: MysqlServer, new_database: NewDatabase, tmp_path: Path
) -> None:
    database = new_database(mysql)
    create_tables(database)
    venv.create(tmp_path / "bare")
    conf = {"spark.pyspark.python": str(tmp_path / "bare" / "bin" / "python")}
    config = database.config(tmp_path, spark={"master": "local[1]", "conf": conf})
    submit(config, DumpRequest(tables=None))
    messages: list[str] = []
    assert run_job("dump", config, stop=threading.Event(), on_line=messages.append) == 1
    message = next(line for line in messages if "an executor cannot work" in line)
    assert "ModuleNotFoundError: No module named" in message
    assert "see that each has dblog" in messages[messages.index(message) + 1]
