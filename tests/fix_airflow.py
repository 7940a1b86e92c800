"""A real Airflow with one MySQL source, shared by the tests that ask for it, and what they ask of it."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import LeaseInfo
from dblog_core.lake.lake_status import read_status
from dblog_core.local.servers.airflow import AirflowServer
from dblog_core.local.servers.airflow_client import AirflowClient
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.staging.reader import lines
from dblog_core.state.lease_holder import CAPTURE
from tests.airflow import live_source
from tests.fix_servers import Database
from tests.growing_files import json_lines
from tests.marked import Marked
from tests.waiting import PATIENCE_SECONDS, wait_until

DAGS = Path(__file__).parents[1] / "dags"
CAPTURES = ("dblog_live_capture", "dblog_live_capture_standby")
DUMP = "dblog_live_dump"
MERGE = "dblog_live_merge"
REPLAY = "dblog_live_replay"
VERIFY = "dblog_live_verify"
REPAIR = "dblog_live_repair"
MAINTENANCE = "dblog_live_maintenance"
SPARK_SECONDS = 480.0  # for a run that starts Spark
_ENDED = ("success", "failed")
_WORKED_ON = {"queued", "running"}
QUIET_SETTINGS = {
    # No file of the tests changes: to parse them every ten seconds takes a tenth of a core.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}
"""What the Airflow of the tests has beside `airflow_settings`."""


class Metrics:
    """What Airflow sends of its metrics by StatsD: the newest value of each, by its name without Airflow's prefix."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # A counter is sent once: this process may be busy for long while datagrams arrive.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while line := self._socket.recv(65536).decode():
            for match in re.finditer(r"^airflow\.([^:]+):([-+.\d]+)\|", line, flags=re.MULTILINE):
                self.values[match[1]] = float(match[2])

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Live:
    """An Airflow in which both captures of the source `live` run. Its merge is paused: tests let it run (`merge`), so
    that Spark starts no more often than they need it. `root`: where everything of it lies; `metadata`: the URL of its
    database; `planted`: its configuration with all its secrets."""

    server: AirflowServer
    client: AirflowClient
    database: Database
    config: Config = field(repr=False)
    root: Path
    metrics: Metrics
    metadata: str = field(repr=False)
    planted: Marked = field(repr=False)

    @property
    def notified_file(self) -> Path:
        """Where ended runs are told, a line for each."""
        return self.root / "notified"

    @property
    def late_file(self) -> Path:
        """Where late merges are told, a line for each."""
        return self.root / "late"

    @property
    def notices(self) -> Path:
        """Where what happens to dumps is told, a JSON object a line."""
        return self.root / "notices"

    @property
    def lineage(self) -> Path:
        """Where OpenLineage's events go, a line for each."""
        return self.root / "lineage"

    def table(self, name: str) -> str:
        return f"{self.database.name}.{name}"

    def leader(self) -> LeaseInfo | None:
        with closing(wiring.open_state(self.config)) as state:
            return state.leader(CAPTURE)

    def capturing(self) -> LeaseInfo:
        """The leader, once the log has begun: of a first one that dies before, the next begins at the log's end of
        then."""
        wait_until(lambda: wiring.open_staging(self.config).head(), "the place where the log begins is staged")
        return wait_until(self.leader, "a capture leads")

    def staged_lines(self, **values: Any) -> list[dict[str, Any]]:
        """The lines of the super-changelog that have these values."""
        every = lines(wiring.open_staging(self.config))
        return [line for line in every if all(line[name] == value for name, value in values.items())]

    def write_and_wait(self, table: str, key: int, note: str) -> None:
        """Inserts a row, and returns once the log has brought it. A log that has not begun would begin behind it."""
        self.capturing()
        self.database.execute(f"INSERT INTO {table} VALUES ({key}, '{note}')")
        wait_until(
            lambda: self.staged_lines(table=self.table(table), key={"id": key}), f"row {key} of {table} is staged"
        )

    def dumps(self) -> list[DumpStatus]:
        with closing(wiring.open_state(self.config)) as state:
            return dump_store.list_dumps(state)

    def dump_of(self, run: str) -> DumpStatus | None:
        """The newest dump that a run has requested."""
        run_dumps = [dump for dump in self.dumps() if dump.requested_by == f"airflow:{DUMP}/{run}"]
        return run_dumps[-1] if run_dumps else None

    def begun_dump(self, run: str) -> DumpStatus:
        """The dump of a run, once one of its chunks is placed."""
        return wait_until(
            lambda: dump if (dump := self.dump_of(run)) and dump.chunks else None,
            f"the dump of {run} has placed a chunk",
            describe=lambda: (self.dump_of(run), self.task_states(DUMP, run)),
        )

    def notices_of(self, dump: str) -> list[dict[str, Any]]:
        """What Airflow's notifiers were told of a dump, in order."""
        return [notice for notice in json_lines(self.notices) if notice["dump"] == dump]

    def task_states(self, dag: str, run: str) -> dict[str, set[str]]:
        """By task, those of all its instances."""
        states: dict[str, set[str]] = {}
        for task in self.client.tasks(dag, run):
            states.setdefault(task["task_id"], set()).add(str(task["state"]))
        return states

    def end_of(self, dag: str, run: str, *, timeout: float = PATIENCE_SECONDS) -> str:
        """The state in which a run ends."""
        return wait_until(
            lambda: state if (state := str(self.client.run(dag, run)["state"])) in _ENDED else None,
            f"{dag}/{run} ends",
            timeout=timeout,
            describe=lambda: self.task_states(dag, run),
        )

    def scheduler_log(self) -> list[str]:
        """The lines that the scheduler has written."""
        return (Path(self.server.environment()["AIRFLOW_HOME"]) / "scheduler" / "log").read_text().splitlines()

    def unpause(self, dag: str) -> None:
        """Lets a DAG with a schedule run. Airflow begins a run of its last interval at once. That is marked as done: no
        test looks at it, and it would start Spark."""
        if not self.client.get(f"/dags/{dag}")["is_paused"]:
            return
        self.client.pause(dag, False)
        scheduled = wait_until(lambda: self._runs_of_type(dag, "scheduled"), f"the last interval of {dag} has a run")
        for run in scheduled:
            self.client.mark(dag, run, "success")

    def _runs_of_type(self, dag: str, kind: str) -> list[str]:
        return [run["dag_run_id"] for run in self.client.runs(dag) if run["run_type"] == kind]

    @contextmanager
    def merging(self) -> Iterator[None]:
        """Within it the merge's DAG is not paused: sealed segments start it."""
        self.client.pause(MERGE, False)
        try:
            yield
        finally:
            self.client.pause(MERGE)
            wait_until(lambda: not self._merges(), "no merge goes on", timeout=SPARK_SECONDS, describe=self._merges)

    def _merges(self) -> list[dict[str, set[str]]]:
        """The task of each merge that Airflow has handed to a worker, though its DAG is paused."""
        runs = [run["dag_run_id"] for run in self.client.runs(MERGE, state="running")]
        return [states for run in runs if (states := self.task_states(MERGE, run)).get("merge", set()) & _WORKED_ON]

    def merge(self) -> None:
        """Returns once the lake has all that is sealed now."""
        if self._lake_has_all():
            return
        with self.merging():
            run = self.client.trigger(MERGE)
            assert self.end_of(MERGE, run, timeout=SPARK_SECONDS) == "success"

    def _lake_has_all(self) -> bool:
        head = wiring.open_staging(self.config).head()
        status = read_status(wiring.open_lake(self.config))
        return head is not None and status is not None and status.offset >= head.last_offset


@contextmanager
def metadata(server: PostgresServer) -> Iterator[str]:
    """The URL of a database for what Airflow keeps: SQLite refuses some of what is asked at the same time."""
    name = f"airflow_{secrets.token_hex(4)}"
    server.create_database(name)
    try:
        account = f"{server.admin.user}:{server.admin.password}"
        yield f"postgresql+psycopg2://{account}@{server.host}:{server.port}/{name}"
    finally:
        server.drop_database(name)


@pytest.fixture(scope="package")
def live(
    mysql: MysqlServer, postgres: PostgresServer, server_root: Path, request: pytest.FixtureRequest
) -> Iterator[Live]:
    name = f"t_{secrets.token_hex(4)}"
    mysql.create_database(name)
    database = Database(mysql, name, mysql.create_capture_user(name, user=f"dblog_{name}"))
    database.execute(*live_source.TABLES)
    root = server_root / "airflow"
    configs = root / "sources"
    configs.mkdir(parents=True)
    engine = ("local", "spark")[request.config.option.soak_first % 2]
    planted = live_source.configuration(database, root, engine=engine)
    text, variables = planted.with_variables()
    (configs / "live.toml").write_text(text)
    (configs / "broken.toml").write_text("[source]\nname = 'broken'\n")
    library = root / "library"
    library.mkdir()
    (library / "file_notifier.py").write_text(live_source.NOTIFIERS)
    metrics = Metrics()
    events = {"type": "file", "log_file_path": str(root / "lineage"), "append": True}
    environment = {
        **QUIET_SETTINGS,
        **variables,
        "PYTHONPATH": os.pathsep.join((str(library), str(DAGS.parent))),  # of this checkout, whatever is installed
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_PORT": str(metrics.port),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(events),
        # Each event is a process of its own, which is killed after ten seconds: a busy machine takes longer.
        "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": f"{PATIENCE_SECONDS:.0f}",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }
    columns = planted.data["source"]["columns"]
    state = {"url": f"sqlite:///{root}/state.db", "ttl": 4}
    config = database.config(root, source={"name": "live", "columns": columns}, state=state)
    with metadata(postgres) as url:
        server = AirflowServer(root / "home", dags=DAGS, configs=configs, database=url, environment=environment)
        try:
            server.start()
            client = server.client()
            wait_until(lambda: {MERGE, *CAPTURES} <= set(client.dags()), "the DAGs are parsed", describe=client.dags)
            client.pause(MERGE)
            for dag in CAPTURES:
                client.pause(dag, False)
            yield Live(server, client, database, config, root, metrics, url, planted)
        finally:
            metrics.close()
            server.kill()  # its data goes as well
