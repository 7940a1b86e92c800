"""An Airflow as docs/airflow.md has a user set it up: the installed package, a copy of `dags/`, secrets in variables.

Each component has only the variables that the documentation names for it. The scheduler, whose workers run the tasks,
has all secrets; the API server has that of the state store, for our page; DAG processor and triggerer have none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
import psycopg2
from psycopg2 import sql

from dblog_core.local.servers import airflow_settings
from dblog_core.local.servers.airflow import AirflowServer
from dblog_core.local.servers.airflow_client import AirflowClient
from dblog_core.local.servers.postgres import PostgresServer
from tests.acceptance.secret_texts import shown_in
from tests.acceptance.world import World
from tests.fix_airflow import QUIET_SETTINGS, metadata
from tests.waiting import PATIENCE_SECONDS, wait_until

CAPTURES = ("capture", "capture_standby")
SPARK_SECONDS = 400.0
"""For a run that starts Spark, on a busy machine."""
_DAGS = Path(__file__).parents[2] / "dags"
_SHOWN = 6000  # characters of a task's log
_ENDED = ("success", "failed")
_STATE_PASSWORD = "ACCEPTANCE_STATE_PASSWORD"  # the only secret that the page in the API server needs


class _Airflow(AirflowServer):
    """`environments`: what a component has beside the variables of all of them."""

    def __init__(self, directory: Path, *, environments: dict[str, dict[str, str]], **options: Any) -> None:
        super().__init__(directory, **options)
        self._environments = environments
        self._component = ""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self._environments.get(self._component, {})}

    def start_component(self, name: str) -> None:
        self._component = name
        super().start_component(name)


@dataclass(slots=True)
class AirflowWorld:
    """The DAGs of a world's source. A DAG is named by its last part, such as `merge`.

    `ran`: the DAGs that a scenario has run, with the result that it expected.
    """

    world: World
    server: AirflowServer = field(repr=False)
    client: AirflowClient = field(repr=False)
    metadata: str = field(repr=False)
    ran: set[str] = field(default_factory=set)

    def dag(self, kind: str) -> str:
        return f"dblog_{self.world.name}_{kind}"

    def kinds(self) -> set[str]:
        """The DAGs that Airflow shows. Fails if it also shows an import error."""
        assert self.client.import_errors() == []
        prefix = self.dag("")
        dags = self.client.dags()
        assert [dag for dag in dags if not dag.startswith(prefix)] == []
        return {dag.removeprefix(prefix) for dag in dags}

    def await_kinds(self, *wanted_kinds: str) -> None:
        """Returns once Airflow shows these DAGs and no other one."""
        wait_until(lambda: self.kinds() == set(wanted_kinds), "the DAGs to be parsed", describe=self.kinds)

    def assert_all_ran(self) -> None:
        assert self.kinds() - self.ran == set(), "Airflow shows DAGs that no scenario has run"

    # Runs.

    def run(self, kind: str, conf: dict[str, Any] | None = None, *, ends: str = "success") -> str:
        """Triggers a run with these parameters, waits for its end and returns its id."""
        run = self.client.trigger(self.dag(kind), conf)
        self.await_end(kind, run, ends=ends)
        return run

    def await_end(self, kind: str, run: str, *, ends: str = "success") -> None:
        """Fails if the run ends in another state, and shows what its failed tasks have written."""
        ended = wait_until(
            lambda: state if (state := str(self.client.run(self.dag(kind), run)["state"])) in _ENDED else None,
            f"{kind}/{run} to end",
            timeout=SPARK_SECONDS,
            describe=lambda: self.logs(kind, run),
        )
        assert ended == ends, f"{kind}/{run} is {ended}\n{self.logs(kind, run)}"
        self.ran.add(kind)

    def unpause(self, kind: str) -> None:
        """A DAG that was new begins a run of its schedule then, if it has one."""
        self.client.pause(self.dag(kind), False)

    def approve(self, run: str) -> None:
        """Approves the dump of a run that waits for somebody to do so."""
        dag = self.dag("dump")

        def awaits_approval() -> bool:
            tasks = {task["task_id"]: str(task["state"]) for task in self.client.tasks(dag, run)}
            # Airflow takes an answer for a failure before it has noticed that the asking process has ended.
            log = (self.world.directory / "airflow" / "scheduler" / "log").read_text()
            ended = any("Received executor event" in line and run in line for line in log.splitlines())
            return tasks["approve"] == "awaiting_input" and ended

        wait_until(awaits_approval, f"{run} to wait for an approval", describe=lambda: self.logs("dump", run))
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
        self.client.call("PATCH", path, {"chosen_options": ["Approve"], "params_input": {}})

    def scheduled_run(self, kind: str) -> str:
        """The first run that the schedule of a DAG begins."""

        def first_run() -> str | None:
            runs = self.client.runs(self.dag(kind))
            return next((str(run["dag_run_id"]) for run in runs if run["run_type"] == "scheduled"), None)

        return wait_until(first_run, f"the schedule of {kind} to begin a run")

    def logs(self, kind: str, run: str) -> str:
        """The ends of what the tasks of a run have written."""
        texts = []
        for task in self.client.tasks(self.dag(kind), run):
            texts.append(f"--- {kind} {task['task_id']} [{task['map_index']}]: {task['state']}")
            if task["try_number"]:
                log = self.client.log(self.dag(kind), run, task["task_id"], index=task["map_index"])
                texts.append(log[-_SHOWN:])
        return "\n".join(texts)

    def xcom(self, kind: str, run: str, task: str, key: str = "return_value") -> Any:
        return self.client.xcom(self.dag(kind), run, task, key)

    def await_log(self, kind: str, text: str) -> None:
        """Returns once the newest run of a DAG has written the text."""
        logs = partial(self._newest_logs, kind)
        wait_until(lambda: text in logs(), f"{kind} to write {text!r}", describe=logs)
        self.ran.add(kind)

    def _newest_logs(self, kind: str) -> str:
        newest = self.client.runs(self.dag(kind), limit=1)
        return self.logs(kind, str(newest[0]["dag_run_id"])) if newest else "no run"

    # What runs all the time.

    def bring_to_lake(self, *tables: str) -> None:
        """Returns when these tables equal the source: after a run of the merge, or by a merge that always runs."""
        self.world.catch_up()
        if "merge_standby" not in self.kinds():
            self.run("merge")
            self.world.assert_equal(*tables)
            return
        # It does not wait for a table that takes longer, so no offset says that all tables are up to date.
        differences: list[AssertionError] = []

        def are_equal() -> bool:
            try:
                self.world.assert_equal(*tables)
            except AssertionError as difference:
                differences[:] = [difference]
                return False
            return True

        wait_until(are_equal, f"{tables} to equal the source", describe=lambda: differences)

    def start_captures(self) -> None:
        """Unpauses both captures, and returns once one of them leads and the other one stands by."""
        for kind in CAPTURES:
            self.unpause(kind)
        self.await_pair(CAPTURES, "leading, epoch")
        # What was committed before the log began would not be in it.
        self.world.until_status(lambda s: s["leader"] is not None and s["offset"] is not None, "the log to begin")

    def await_pair(self, kinds: tuple[str, str], leading: str) -> None:
        """Returns once one of two DAGs has written the text, and the other one that it stands by."""

        def roles() -> list[str]:
            texts = [self._newest_logs(kind) for kind in kinds]
            return sorted(leading if leading in text else "standing by" for text in texts if _has_role(text, leading))

        wait_until(
            lambda: roles() == sorted([leading, "standing by"]),
            f"one of {kinds} to write {leading!r}, and the other one to stand by",
            describe=lambda: [self._newest_logs(kind) for kind in kinds],
        )
        self.ran.update(kinds)

    def stop(self, *kinds: str) -> None:
        """Ends what runs all the time, as the documentation says: pauses its DAGs, and marks their runs as failed."""
        for kind in kinds:
            self.client.pause(self.dag(kind))
        for kind in kinds:
            for run in self.client.runs(self.dag(kind), state="running"):
                self.client.mark(self.dag(kind), run["dag_run_id"], "failed")
        wait_until(lambda: not self._busy(kinds), f"the tasks of {kinds} to end", describe=lambda: self._busy(kinds))

    def _busy(self, kinds: tuple[str, ...]) -> list[str]:
        """The DAGs of which a task still runs."""
        query = "/dagRuns/~/taskInstances?state=running"
        return [kind for kind in kinds if self.client.get(f"/dags/{self.dag(kind)}{query}")["total_entries"]]

    def spark_drivers(self) -> list[psutil.Process]:
        """The processes of Java that tasks of this Airflow have started."""
        schedulers = [psutil.Process(pid) for name in self.server.schedulers if (pid := self.server.pid(name))]
        below = [child for scheduler in schedulers for child in scheduler.children(recursive=True)]
        return [child for child in below if _is_java(child)]

    def page(self) -> Any:
        """What our page in Airflow's UI shows of the source."""
        login = {"username": airflow_settings.USER, "password": self.server.password()}
        token = _answer(f"{self.server.url}/auth/token", {}, json.dumps(login).encode())["access_token"]
        url = f"{self.server.url}/dblog/sources/{self.world.name}"
        return _answer(url, {"Authorization": f"Bearer {token}"})

    # The end.

    def assert_no_secret_kept(self) -> None:
        """In Airflow's database, in what its REST API returns of XComs and of rendered templates, and in any file."""
        seen_tables = set()
        for table, content in _tables(self.metadata):
            assert shown_in(content, self.world.secrets) == [], f"Airflow's table {table} holds a secret"
            if self.world.name in content:
                seen_tables.add(table)
        assert {"dag_run", "serialized_dag", "rendered_task_instance_fields", "xcom"} <= seen_tables
        for content in (*self._answers(), json.dumps(self.page())):
            assert shown_in(content, self.world.secrets) == [], content
        logs = list(self.world.directory.glob("airflow/logs/**/*.log"))
        assert {kind for kind in self.ran if any(f"dag_id={self.dag(kind)}/" in str(log) for log in logs)} == self.ran
        self.world.assert_no_secret_written()

    def _answers(self) -> Iterator[str]:
        every = "/dags/~/dagRuns/~/taskInstances"
        tasks = self.client.get(f"{every}?limit=1000")["task_instances"]
        assert any(task["rendered_fields"] for task in tasks)
        yield json.dumps(tasks)
        entries = self.client.get(f"{every}/~/xcomEntries?limit=1000")["xcom_entries"]
        assert entries
        for entry in entries:
            where = f"/dags/{entry['dag_id']}/dagRuns/{entry['run_id']}/taskInstances/{entry['task_id']}"
            path = f"{where}/xcomEntries/{entry['key']}?map_index={entry['map_index']}"
            yield json.dumps(self.client.get(path))


@contextmanager
def running_airflow(
    world: World,
    postgres: PostgresServer,
    *,
    meanwhile: Callable[[], object],
    own_dags: Mapping[str, str] | None = None,
) -> Iterator[AirflowWorld]:
    """An Airflow whose home is in the world's directory; `meanwhile`: what to do while it starts; `own_dags`: the texts
    of a user's DAG files, by name."""
    dags = world.directory / "dags"
    shutil.copytree(_DAGS, dags, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (own_dags or {}).items():
        (dags / name).write_text(text)
    with metadata(postgres) as url:
        server = _Airflow(
            world.directory / "airflow",
            dags=dags,
            configs=world.directory,  # where the world's TOML file is
            database=url,
            environment={**QUIET_SETTINGS, **_plain_variables(world)},
            environments=_environments(world),
        )
        try:
            with _in_background(server.start):
                meanwhile()
            yield AirflowWorld(world, server, server.client(), url)
        finally:
            server.kill()


@contextmanager
def _in_background(step: Callable[[], None]) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(step)
        yield
        future.result()


def _plain_variables(world: World) -> dict[str, str]:
    """The variables of a world's processes that no secret is in, and that this process does not have."""
    environment = world.environment()
    return {
        name: value
        for name, value in environment.items()
        if os.environ.get(name) != value and name not in world.variables
    }


def _environments(world: World) -> dict[str, dict[str, str]]:
    secrets = {name: secret.text for name, secret in world.variables.items()}
    return {
        "scheduler": secrets,
        "api-server": {name: text for name, text in secrets.items() if name == _STATE_PASSWORD},
    }


def _answer(url: str, headers: dict[str, str], body: bytes | None = None) -> Any:
    request = Request(url, body, {"Content-Type": "application/json", **headers})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)


def _has_role(text: str, leading: str) -> bool:
    return leading in text or "standing by" in text


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:
        return False


def _tables(url: str) -> Iterator[tuple[str, str]]:
    """Every table of Airflow's database, as text."""
    with closing(psycopg2.connect(url.replace("+psycopg2", ""))) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        for (name,) in cursor.fetchall():
            cursor.execute(sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(name)))
            yield name, "\n".join(row for (row,) in cursor.fetchall())
