"""Faults of Airflow itself, on its real processes: two schedulers on PostgreSQL, ZooKeeper's lock between the captures,
a live workload, a dump that goes on.

Whatever fails, the log flows again, nothing is lost, repeated or set back, and the lake equals the source in the end.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_records, dump_store
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import LeaseInfo, StateStore
from dblog_core.lake.lake_status import lake_at, read_status
from dblog_core.local.servers.airflow import AirflowServer
from dblog_core.local.servers.airflow_client import AirflowClient
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.state.lease_holder import CAPTURE
from tests.fix_airflow import DAGS, metadata
from tests.fix_day import OfADay
from tests.fix_servers import Database
from tests.nemesis import oracles
from tests.nemesis.processes import Dblog
from tests.nemesis.test_kills import LakeReader, judge, log_start, merge_to_the_end
from tests.nemesis.workload import Writers, create_tables
from tests.waiting import wait_until

SECRET = "FAULTY_PASSWORD"
CAPTURES = ("dblog_faulty_capture", "dblog_faulty_capture_standby")
DUMP = "dblog_faulty_dump"
MERGE = "dblog_faulty_merge"
BEAT_SECONDS = 30  # without a heartbeat, after which Airflow takes a task for dead; of ours elsewhere, 60
DUMP_SECONDS = 480.0  # where its plan was interrupted, a dump begins again
AWAY_SECONDS = 45.0  # many attempts of a task whose attempts follow each other at once
A_DAY = 1  # faults: some of them wait for a heartbeat's limit, and the soak has all
SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(BEAT_SECONDS),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
}
SLOWLY = {"delay_seconds": 3.0, "chunk_size": 5, "workers": 2}
"""A dump that goes on for longer than all faults."""
_TOML = """
[source]
name = "faulty"
kind = "mysql"
host = "{database.server.host}"
port = {database.server.port}
user = "{database.account.user}"
password = "${{{secret}}}"
database = "{database.name}"
tables = ["{database.name}.*"]
[staging]
path = "{root}/staging"
[state]
url = "{state}"
ttl = 4
[lake]
path = "{root}/lake"
"""


@dataclass(slots=True)
class World:
    """An Airflow of two schedulers that captures a source; `state`: what its captures share, in ZooKeeper; `gaps`:
    seconds until the log went on, by fault."""

    airflow: AirflowServer
    client: AirflowClient
    config: Config
    state: StateStore
    gaps: dict[str, float] = field(default_factory=dict)

    def leader(self) -> LeaseInfo | None:
        return self.state.leader(CAPTURE)

    def task(self) -> psutil.Process:
        """The process that captures, once one does; its parent supervises it, and the parent of that is a scheduler."""

        def look() -> psutil.Process | None:
            leader = self.leader()
            try:
                return None if leader is None else psutil.Process(int(leader.holder.rpartition(":")[2]))
            except psutil.NoSuchProcess:
                return None

        return wait_until(look, "a capture leads")

    def attempt(self) -> tuple[psutil.Process, str]:
        """The process that captures, and its DAG, once Airflow takes it for the attempt that runs: after an outage of
        the API server it may have begun another, and the first leads until its next heartbeat is refused. A task's
        process has the id of its attempt as its title."""

        def look() -> tuple[psutil.Process, str] | None:
            task = self.task()
            try:
                title = " ".join(task.cmdline())
            except psutil.NoSuchProcess:
                return None
            for dag in CAPTURES:
                for run in self.client.runs(dag, limit=2):
                    if any(str(task["id"]) in title for task in self.client.tasks(dag, run["dag_run_id"])):
                        return task, dag
            return None

        return wait_until(look, "the capture that leads is one that Airflow knows", describe=self.leader)

    def offset(self) -> int:
        head = wiring.open_staging(self.config).head()
        return 0 if head is None else head.last_offset

    def goes_on(self) -> None:
        """Rows are staged that were not when it was called."""
        begin = self.offset()
        wait_until(lambda: self.offset() > begin, "the log goes on", describe=self.leader)

    def epoch(self) -> int:
        """Of the newest leader, which may be dead."""
        return wait_until(self.leader, "a capture leads").epoch

    def another_leads(self, epoch: int) -> None:
        """ZooKeeper has given the lease to a leader after that of `epoch`, and the log goes on."""
        wait_until(
            lambda: (leader := self.leader()) and leader.epoch > epoch, "another one leads", describe=self.leader
        )
        self.goes_on()

    def dump_of(self, run: str) -> DumpStatus | None:
        run_dumps = [dump for dump in dump_store.list_dumps(self.state) if dump.requested_by == f"airflow:{DUMP}/{run}"]
        return run_dumps[-1] if run_dumps else None

    def finish(self, run: str) -> None:
        """Lets a slow dump, which still goes on, read the rest at once."""
        wait_until(
            lambda: (dump := self.dump_of(run)) and dump.state == "running",
            "the dump still goes on",
            describe=lambda: self.dump_of(run),
        )

        def has_ended() -> bool:
            newest = self.dump_of(run)
            if newest and newest.state not in dump_records.OVER and newest.options.delay:
                control.retune(self.state, newest.id, delay=0, chunk_size=1000)
            return self.client.run(DUMP, run)["state"] in ("success", "failed")

        wait_until(has_ended, "the dump ends", timeout=DUMP_SECONDS, describe=lambda: self.dump_of(run))
        self.check_success(run)

    def check_success(self, run: str) -> None:
        """A dump's run ends well."""
        state = self.client.wait(DUMP, run, timeout=DUMP_SECONDS)
        assert state == "success", self.client.tasks(DUMP, run)


def one_of_two_schedulers_is_killed(world: World) -> None:
    """The one whose task leads, with all that it runs."""
    name = world.airflow.scheduler_of(world.task())
    epoch = world.epoch()
    world.airflow.kill_component(name)
    world.another_leads(epoch)
    world.airflow.start_component(name)


def both_schedulers_are_killed(world: World) -> None:
    epoch = world.epoch()
    for name in world.airflow.schedulers:
        world.airflow.kill_component(name)
    for name in world.airflow.schedulers:
        world.airflow.start_component(name)
    world.another_leads(epoch)


def a_scheduler_is_killed_and_its_tasks_live_on(world: World) -> None:
    """The process alone, as the kernel kills one that takes too much memory. What ran goes on; what it has left is
    ended before another takes its place, as systemd does: workers keep its sessions with the database open, and its
    locks."""
    task = world.task()
    name = world.airflow.scheduler_of(task)
    (scheduler,) = [p for p in task.parents() if p.pid == world.airflow.pid(name)]
    scheduler.kill()
    world.goes_on()
    assert task.is_running()
    world.airflow.kill_component(name)
    world.airflow.start_component(name)
    world.goes_on()


def the_triggerer_is_killed(world: World) -> None:
    """The bell is silent meanwhile; what was sealed is merged once it is back."""
    world.client.pause(MERGE, False)
    world.airflow.kill_component("triggerer")
    world.goes_on()
    sealed = world.offset()
    world.airflow.start_component("triggerer")

    def is_merged() -> bool:
        status = read_status(lake_at(world.config.lake.path))
        return status is not None and status.offset >= sealed

    wait_until(is_merged, "what was sealed without a triggerer is merged")
    world.client.pause(MERGE)


def the_api_server_is_away_for_longer_than_a_heartbeats_limit(world: World) -> None:
    """The capture goes on without it."""
    task = world.task()
    world.airflow.kill_component("api-server")
    began = time.monotonic()
    while time.monotonic() < began + BEAT_SECONDS + 15:
        world.goes_on()
    assert task.is_running(), "a capture lives through an outage"
    world.airflow.start_component("api-server")
    wait_until(world.client.answers, "the API server is back")
    world.attempt()
    world.goes_on()


def the_api_server_is_away_when_a_dump_begins(world: World) -> None:
    """No attempt of a task can begin without it; the attempts last until it is back."""
    schedulers = [psutil.Process(world.airflow.pid(name)) for name in world.airflow.schedulers]
    for scheduler in schedulers:
        scheduler.suspend()
    run = world.client.trigger(DUMP, {"chunk_size": 1000})
    world.airflow.kill_component("api-server")
    for scheduler in schedulers:
        scheduler.resume()
    began = time.monotonic()
    while time.monotonic() < began + AWAY_SECONDS:
        world.goes_on()
    world.airflow.start_component("api-server")
    wait_until(world.client.answers, "the API server is back")
    world.check_success(run)
    world.attempt()


def the_leading_task_is_killed(world: World) -> None:
    task = world.task()
    epoch = world.epoch()
    task.kill()
    world.another_leads(epoch)


def the_supervisor_of_the_leading_task_is_killed(world: World) -> None:
    """The task leaves by itself."""
    task = world.task()
    epoch = world.epoch()
    supervisor = task.parent()
    assert supervisor is not None
    supervisor.kill()
    wait_until(lambda: _has_ended(task), "the orphan leaves")
    world.another_leads(epoch)


def two_copies_of_the_leading_task_run(world: World) -> None:
    """A machine stands still until Airflow has taken its task for dead and started another; then it wakes up."""
    task, dag = world.attempt()
    supervisor = task.parent()
    epoch = world.epoch()
    assert supervisor is not None
    run, tries = _attempts(world, dag)
    for process in (supervisor, task):
        process.send_signal(signal.SIGSTOP)
    try:
        world.another_leads(epoch)
        wait_until(lambda: _attempts(world, dag) > (run, tries), "Airflow has started another attempt")
    finally:
        for process in (supervisor, task):
            process.send_signal(signal.SIGCONT)
    world.goes_on()
    wait_until(lambda: _has_ended(task), "the first copy leaves")


def _has_ended(task: psutil.Process) -> bool:
    try:
        return not task.is_running() or task.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _attempts(world: World, dag: str) -> tuple[str, int]:
    """The newest run of a DAG, and how often its task was begun."""
    newest = world.client.runs(dag, limit=1)[0]["dag_run_id"]
    return newest, max(int(task["try_number"]) for task in world.client.tasks(dag, newest))


def a_capture_is_cleared_while_it_runs(world: World) -> None:
    task, dag = world.attempt()
    epoch = world.epoch()
    world.client.clear(dag, world.client.runs(dag, limit=1)[0]["dag_run_id"])
    wait_until(lambda: _has_ended(task), "the task ends")
    world.another_leads(epoch)


FAULTS: tuple[Callable[[World], None], ...] = (
    one_of_two_schedulers_is_killed,
    both_schedulers_are_killed,
    a_scheduler_is_killed_and_its_tasks_live_on,
    the_triggerer_is_killed,
    the_api_server_is_away_for_longer_than_a_heartbeats_limit,
    the_api_server_is_away_when_a_dump_begins,
    the_leading_task_is_killed,
    the_supervisor_of_the_leading_task_is_killed,
    two_copies_of_the_leading_task_run,
    a_capture_is_cleared_while_it_runs,
)


@pytest.fixture
def database(mysql: MysqlServer, new_database: Callable[[MysqlServer], Database]) -> Database:
    made_database = new_database(mysql)
    create_tables(made_database)
    return made_database


@pytest.fixture
def world(database: Database, postgres: PostgresServer, zookeeper_url: str, tmp_path: Path) -> Iterator[World]:
    sources = tmp_path / "sources"
    sources.mkdir()
    file = sources / "faulty.toml"
    file.write_text(_TOML.format(database=database, root=tmp_path, secret=SECRET, state=zookeeper_url))
    environment = {SECRET: database.account.password, **SETTINGS}
    config = database.config(tmp_path, source={"name": "faulty"}, state={"url": zookeeper_url, "ttl": 4})
    with metadata(postgres) as url, closing(wiring.open_state(config)) as state:
        airflow = AirflowServer(
            tmp_path / "home", dags=DAGS, configs=sources, database=url, environment=environment, schedulers=2
        )
        try:
            airflow.start()
            client = airflow.client()
            wait_until(lambda: {MERGE, *CAPTURES} <= set(client.dags()), "the DAGs are parsed", describe=client.dags)
            for dag in CAPTURES:
                client.pause(dag, False)
            client.pause(MERGE)  # so that not all of the time is Spark's
            yield World(airflow, client, config, state)
        finally:
            airflow.kill()


@pytest.mark.timeout(3600)
@pytest.mark.one_of(8)
def test_whatever_fails_of_airflow_the_log_flows_again_and_nothing_is_lost(
    world: World,
    database: Database,
    of_a_day: OfADay,
    soak_seed: int,
    merge_here: Callable[[Config], None],
    read_lake: LakeReader,
    tmp_path: Path,
) -> None:
    order = of_a_day(FAULTS, A_DAY)
    random.Random(soak_seed).shuffle(order)
    start = oracles.source_rows(database)
    reference = log_start(database)
    world.task()
    with Writers(database, seed=soak_seed) as writers:
        world.goes_on()
        run = world.client.trigger(DUMP, SLOWLY)
        wait_until(lambda: world.dump_of(run), "the dump is filed")
        for fault in order:
            began = time.monotonic()
            print(fault.__name__, flush=True)
            fault(world)
            world.gaps[fault.__name__] = round(time.monotonic() - began, 1)
        world.finish(run)
    assert not writers.faults, writers.faults
    wait_until(lambda: world.state.leader("merge") is None, "no merge of Airflow's goes on")
    dblog = Dblog(world.config, tmp_path)
    try:
        merge_to_the_end(dblog, world.config, merge_here)  # the capture is Airflow's until the end
        judge(world.config, database, start, reference(), read_lake)
    finally:
        print(dblog.output())
        dblog.close()
    print(f"seconds until the log went on: {world.gaps}")
