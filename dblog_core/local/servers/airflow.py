"""A real Airflow on loopback: API server, scheduler with LocalExecutor, triggerer and DAG processor."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from dblog_core import user_cache
from dblog_core.errors import LocalError
from dblog_core.local.servers import airflow_settings, ports
from dblog_core.local.servers.airflow_client import AirflowClient
from dblog_core.local.servers.daemon import Daemon

# Each is started singly: `airflow standalone` leaves orphans when it is stopped, and log servers would listen on every
# interface (the logs are read from the files, since all is one machine).
_COMPONENTS = {
    "api-server": ("api-server",),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
_SCHEDULER = ("scheduler", "--skip-serve-logs")
_DATABASE = "airflow.db"
_START_SECONDS = 120.0  # 8 to 14 on two idle cores
_TASKS_END_SECONDS = 40.0  # for running tasks to see their stop flag, or for Spark to be killed
_ASK_AGAIN_SECONDS = 5.0
_ENDING = b"Shutting down LocalExecutor"  # what a scheduler logs once it ends
_PAUSE_SECONDS = 0.2


class AirflowServer:
    """Airflow whose home is `directory`, with the DAGs in `dags` and the sources' configurations in `configs`.

    `database`: a SQLAlchemy URL; default SQLite in the home. `environment`: for all tasks, such as a source's password.
    `schedulers`: more than one, `scheduler`, `scheduler-2` …, want a database that is a server.
    """

    name = "airflow"

    def __init__(
        self,
        directory: Path,
        *,
        dags: Path,
        configs: Path,
        database: str | None = None,
        environment: Mapping[str, str] | None = None,
        detached: bool = False,
        schedulers: int = 1,
    ) -> None:
        self.schedulers = ["scheduler", *(f"scheduler-{number}" for number in range(2, schedulers + 1))]
        self._components = {**_COMPONENTS, **dict.fromkeys(self.schedulers, _SCHEDULER)}
        self._home = directory.absolute()
        self._dags = dags.absolute()
        self._configs = configs.absolute()
        self._database = database or f"sqlite:///{self._home / _DATABASE}"
        self._environment = dict(environment or {})
        self._sessions: dict[str, int] = {}  # of what this object has started
        self._asked: dict[str, _Asked] = {}  # the schedulers, since the last `stop`
        self._daemons = {
            name: Daemon(f"airflow {name}", self._home / name, detached=detached) for name in self._components
        }

    @property
    def port(self) -> int:
        return ports.remember_port(self._home / "port")

    @property
    def url(self) -> str:
        return f"http://{ports.HOST}:{self.port}"

    def client(self, user: str = airflow_settings.USER) -> AirflowClient:
        return AirflowClient(self.url, user=user, password=self.password(user))

    def password(self, user: str = airflow_settings.USER) -> str:
        """What one of the local users signs in with."""
        return airflow_settings.password(self._home, user)

    def start(self) -> None:
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in self._components:
            (self._home / name).mkdir(exist_ok=True)
        # At each start: an upgrade may bring other settings; the secrets stay.
        airflow_settings.write(self._home, port=self.port, dags=self._dags, database=self._database)
        self._migrate()
        for name in self._components:
            if name == "scheduler":  # last, since a task that finds no API server fails at once
                self._daemons["api-server"].wait(self.client().answers, _START_SECONDS)
            self.start_component(name)
        self._daemons["scheduler"].wait(self.ready, _START_SECONDS)

    def ready(self) -> bool:
        return bool(self._daemons["api-server"].pid) and self.client().healthy()

    def stop(self) -> None:
        """Tells the running tasks to stop, waits for them, and ends the components; nothing is left running."""
        self._asked = {name: _Asked(self._daemons[name].log_size()) for name in self.schedulers}
        self._ask_schedulers()  # no more tasks are started; those that run are waited for
        if pid := self._daemons["triggerer"].pid:
            os.kill(pid, signal.SIGTERM)
        # Before the workers are killed: a capture commits what it has read when it is asked to stop.
        self._end_tasks()
        for name in self.schedulers:
            self._end_scheduler(name)
        # The triggerer needs a second signal: it waits ten seconds for triggers that hold nothing.
        for name in ("triggerer", "dag-processor", "api-server"):
            self.stop_component(name)

    def _ask_schedulers(self) -> None:
        """SIGTERM to each scheduler until it ends: from then on it starts no task.

        It ends by an exception that the signal raises. The exception is lost while the scheduler forks a worker (Python
        ignores it in the hooks of a fork) or runs a destructor.
        """
        deadline = time.monotonic() + _TASKS_END_SECONDS
        waiting = [name for name in self.schedulers if self._daemons[name].pid]
        while waiting and time.monotonic() < deadline:
            for name in waiting:
                self._ask(name)
            time.sleep(_PAUSE_SECONDS)
            waiting = [name for name in waiting if self._daemons[name].pid and not self._is_ending(name)]

    def _ask(self, name: str) -> None:
        asked = self._asked[name]
        pid = self._daemons[name].pid
        if pid and time.monotonic() >= asked.until:
            asked.until = time.monotonic() + _ASK_AGAIN_SECONDS
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # somebody may have stopped it

    def _is_ending(self, name: str) -> bool:
        return _ENDING in self._daemons[name].log_from(self._asked[name].log_size)

    def _end_scheduler(self, name: str) -> None:
        """Ends its idle workers until it has ended, since one may begin, or be without its title yet, at any look.

        LocalExecutor miscounts when it asks its idle workers to end, and then waits for one forever. A SIGTERM would
        tear a scheduler out of its orderly end once that has begun, so it gets a signal without meaning.
        """
        deadline = time.monotonic() + _TASKS_END_SECONDS
        while self._daemons[name].pid and time.monotonic() < deadline:
            for worker in self._workers():
                _signal(worker, signal.SIGKILL)
            time.sleep(_PAUSE_SECONDS)
        self.stop_component(name, how=signal.SIGCONT)

    def kill(self) -> None:
        for name in self._components:
            self.kill_component(name)

    def address(self) -> str:
        return f"{self.url}, user {airflow_settings.USER}, password in {self._home / airflow_settings.PASSWORDS}"

    def start_component(self, name: str) -> None:
        """Starts api-server, dag-processor, triggerer or a scheduler, without waiting for it."""
        self._daemons[name].start([_program(), *self._components[name]], ready=lambda: True, env=self.environment())
        if pid := self._daemons[name].pid:
            self._sessions[name] = pid

    def stop_component(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        pid = self._daemons[name].pid
        try:
            self._daemons[name].stop(how, timeout=_TASKS_END_SECONDS)
        finally:
            _kill_session(pid)

    def kill_component(self, name: str) -> None:
        """`kill -9` of a component with all that it has started, also where it is dead itself already."""
        pid = self._daemons[name].pid or self._sessions.get(name)
        self._daemons[name].kill()
        _kill_session(pid)

    def environment(self) -> dict[str, str]:
        """What the components, and `airflow` by hand, run with beside the machine's own variables."""
        return {
            "AIRFLOW_HOME": str(self._home),
            "DBLOG_CONFIG_DIR": str(self._configs),
            "AIRFLOW_CONN_DBLOG_SPARK": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "PATH": os.pathsep.join([str(_program().parent), os.environ.get("PATH", os.defpath)]),  # spark-submit too
            "NO_COLOR": "1",
            **self._environment,
        }

    def pid(self, component: str) -> int | None:
        """The process of a component; None: it does not run."""
        return self._daemons[component].pid

    def scheduler_of(self, task: psutil.Process) -> str:
        """Which of the schedulers runs a task. Raises LocalError if no scheduler does."""
        above = {process.pid for process in task.parents()}
        for name in self.schedulers:
            if self.pid(name) in above:
                return name
        raise LocalError(f"no scheduler of this Airflow runs the process {task.pid}", where=str(self._home))

    def task_processes(self) -> list[psutil.Process]:
        """The processes that supervise a running task, one for each; the task itself is their child."""
        return [worker for worker in self._workers() if "<idle>" not in _title(worker)]

    def _workers(self) -> list[psutil.Process]:
        """LocalExecutor's processes, by the titles that they give themselves."""
        pids = [pid for name in self.schedulers if (pid := self._daemons[name].pid)]
        children = [child for pid in pids for child in _children(pid)]
        return [child for child in children if _title(child).startswith("airflow worker -- LocalExecutor")]

    def _migrate(self) -> None:
        done = self._home / "migrated"
        mark = f"{version('apache-airflow')} {self._database}"
        if done.exists() and done.read_text() == mark:
            return
        file = self._home / _DATABASE
        if self._database == f"sqlite:///{file}" and not file.exists():
            part = file.with_suffix(".part")
            shutil.copyfile(new_database(), part)
            part.rename(file)
        else:
            _run_migrations(self._home, self.environment())
        done.write_text(mark)

    def _end_tasks(self) -> None:
        """SIGTERM to every task's supervisor, which hands it on without a time limit, until none is left."""
        deadline = time.monotonic() + _TASKS_END_SECONDS
        told_pids: set[int] = set()
        while (running := self.task_processes()) and time.monotonic() < deadline:
            for process in running:
                # Once each: a second SIGTERM would cut the orderly end short.
                if process.pid not in told_pids:
                    told_pids.add(process.pid)
                    _signal(process, signal.SIGTERM)
            time.sleep(_PAUSE_SECONDS)


@dataclass(slots=True)
class _Asked:
    """A scheduler that is asked to end: how long its log was before, in bytes, and until when it is waited for."""

    log_size: int
    until: float = 0.0


def new_database() -> Path:
    """An empty one in SQLite, made once for this version of Airflow: each new home would take 4 s for it."""
    return user_cache.cache_entry(f"airflow-database-{version('apache-airflow')}", _fill) / _DATABASE


def _fill(directory: Path) -> None:
    home = directory / "home"
    home.mkdir()
    database = directory / _DATABASE
    _run_migrations(home, {"AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}"})
    # Only the database is shared: settings and secrets belong to each home.
    shutil.rmtree(home)


def _run_migrations(home: Path, environment: Mapping[str, str]) -> None:
    command = [str(_program()), "db", "migrate"]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if result.returncode:
        raise LocalError(f"`airflow db migrate` failed:\n{result.stderr[-2000:]}", where=str(home))


def _program() -> Path:
    return Path(sys.executable).with_name("airflow")


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _children(pid: int) -> list[psutil.Process]:
    """None of a process that has ended meanwhile."""
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, how: signal.Signals) -> None:
    try:
        process.send_signal(how)
    except psutil.NoSuchProcess:
        return  # it has ended by itself, which is what we want


def _kill_session(leader: int | None) -> None:
    """The last resort: tasks have process groups of their own, and orphans other parents, but all keep the session."""
    if leader is None:
        return
    left = [process for pid in psutil.pids() if (process := _member(leader, pid))]
    for process in left:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(left, timeout=10)


def _member(leader: int, pid: int) -> psutil.Process | None:
    """The process, if it is of the session of `leader`. Others of it end meanwhile."""
    try:
        return psutil.Process(pid) if os.getsid(pid) == leader else None
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None
