"""`dblog` as it is measured: captures and dumps in processes of their own, often from one staged place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from dblog_core.config.settings import Config
from dblog_core.local.servers import guard
from dblog_core.local.servers.daemon import wait_until
from tests.benchmarks.timeline import Point, Timeline
from tests.fix_servers import Database
from tests.nemesis.processes import write_config

Profile: TypeAlias = list[tuple[str, float]]
"""Places of our code and their shares of a process's CPU time, largest first."""
FEW = 3  # segments
SHAPES = 1_000  # more tables than any figure has


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture published and when; all CPU seconds of its process, start included; its peak memory in bytes."""

    timeline: Timeline
    cpu: float
    peak: int


@dataclass(frozen=True, slots=True)
class Dumped:
    """A dump from its request to its last placed chunk; `cpu` of the process of its workers, without its start."""

    rows: int
    seconds: float
    cpu: float
    peak: int

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_per_row(self) -> float:
        """Microseconds."""
        return self.cpu / self.rows * 1e6


@dataclass(frozen=True, slots=True)
class Verified:
    """A verification that found all rows equal: its rows, its time, and that of the source alone, which comes first."""

    rows: int
    seconds: float
    read: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def read_rate(self) -> float:
        return self.rows / self.read


class Child:
    """One process of `dblog_child`."""

    def __init__(self, directory: Path, env: dict[str, str], *arguments: str | Path) -> None:
        self._what = " ".join(str(a) for a in arguments)
        self._errors = directory / f"{arguments[0]}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.dblog_child", *arguments],
                cwd=Path(__file__).parents[2],
                env=env,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        guard.watch(self._process.pid, psutil.Process(self._process.pid).create_time())

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def line(self, timeout: float = 180) -> str:
        """Its next line; empty when it has ended. A child that hangs is killed."""
        deadline = threading.Timer(timeout, self._process.kill)
        deadline.start()
        try:
            assert self._process.stdout is not None
            return self._process.stdout.readline()
        finally:
            deadline.cancel()

    def result(self, timeout: float = 600) -> dict[str, Any]:
        """Waits for its end and returns what it told. Raises AssertionError with its messages where it failed."""
        last = ""
        try:
            while line := self.line(timeout):
                last = line
            code = self._process.wait(timeout)
        finally:
            self.kill()
        assert code == 0, f"{self._what} exited with {code}:\n{self._errors.read_text()[-4000:]}"
        answer: dict[str, Any] = json.loads(last)
        return answer

    def stop(self) -> dict[str, Any]:
        self._process.terminate()
        return self.result(60)

    def kill(self) -> None:
        """`kill -9`, where it still runs."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Ours:
    """Prepared captures of one database: every run begins where `prepare` has left off, with files of its own."""

    def __init__(self, database: Database, directory: Path, **sections: dict[str, Any]) -> None:
        self._database = database
        self._home = directory / "run"
        self._start = directory / "start"
        self._home.mkdir(parents=True)
        self.config: Config = database.config(self._home, **sections)
        self.file, self.env = write_config(self.config, directory)
        self._directory = directory

    def prepare(self) -> None:
        """The present end of the log is staged: the place where every run begins."""
        self.catch_up()
        shutil.copytree(self._home, self._start)
        if self._database.kind == "postgres":
            self._database.query(f"SELECT pg_copy_logical_replication_slot('{self._slot}', '{self._slot}_start')")

    def catch_up(self) -> None:
        """Captures to the present end of the log."""
        self._child("capture", "--until-current").result()

    def fresh(self) -> None:
        """Staging, state and slot as they were when prepared."""
        shutil.rmtree(self._home)
        shutil.copytree(self._start, self._home)
        if self._database.kind == "postgres":
            free = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{self._slot}' AND NOT active"
            wait_until(lambda: bool(self._database.query(free)), timeout=30, what="the capture's slot to be free")
            self._database.query(f"SELECT pg_drop_replication_slot('{self._slot}')")
            self._database.query(f"SELECT pg_copy_logical_replication_slot('{self._slot}_start', '{self._slot}')")

    def profile_capture(self) -> Profile:
        """Where the CPU time of a capture of what has been committed since `prepare` goes."""
        self.fresh()
        return _profile(self._child("capture", "--until-current", profiled=True).result())

    def profile_dump(self, *tables: str) -> Profile:
        """Where the CPU time of the workers of a dump goes."""
        names = [f"{self._database.schema}.{t}" for t in tables]
        return _profile(self._child("dump", *names, profiled=True).result())

    def capture(self, rows: int) -> Captured:
        """Captures what has been committed since `prepare`: so many rows."""
        self.fresh()
        captured = self.capture_once()
        offsets = captured.timeline.rows  # the shape of each table takes one too
        assert rows <= offsets <= rows + SHAPES, f"{offsets} offsets for {rows} rows"
        return captured

    def capture_once(self) -> Captured:
        """Captures from the last place to the present end of the log."""
        return _read_captured(self._child("capture", "--until-current").result())

    @contextmanager
    def capturing(self) -> Iterator[Child]:
        """A capture that runs meanwhile, from where the last one ended; the body may stop it."""
        child = self._child("capture")
        try:
            assert child.line(), f"the capture ended at its start: {child.result()}"
            yield child
        finally:
            child.kill()

    def dump(self, *tables: str) -> Dumped:
        """Dumps tables while a capture runs."""
        names = [f"{self._database.schema}.{t}" for t in tables]
        answer = self._child("dump", *names).result()
        assert answer["state"] == "done", answer
        return Dumped(answer["rows"], answer["seconds"], answer["cpu"], answer["peak"])

    def merge(self) -> None:
        """All that is staged comes into the lake."""
        command = [Path(sys.executable).parent / "dblog", "--config", self.file, "merge", "--once"]
        subprocess.run(command, env=self.env, stdout=subprocess.DEVNULL, check=True)

    def verify(self, table: str) -> Verified:
        """Compares a table with its lake copy while a capture runs."""
        answer = self._child("verify", f"{self._database.schema}.{table}").result()
        assert not answer["differs"], answer
        return Verified(answer["rows"], answer["seconds"], answer["read"])

    @property
    def _slot(self) -> str:
        return self.config.source.slot

    def _child(self, what: str, *rest: str, profiled: bool = False) -> Child:
        env = {**self.env, "DBLOG_PROFILE": "1"} if profiled else self.env
        return Child(self._directory, env, what, self.file, *rest)


def _profile(answer: dict[str, Any]) -> Profile:
    return [(str(place), float(share)) for place, share in answer["profile"]]


def _read_captured(answer: dict[str, Any]) -> Captured:
    points = tuple(Point(*p) for p in answer["points"])
    if len(points) < FEW:  # too few to measure between: what its start costs counts too
        points = (Point(*answer["began"]), *points)
    return Captured(Timeline(points), answer["all_cpu"], answer["peak"])


def stop_capture(child: Child) -> Captured:
    """What a capture published until it was stopped just now."""
    return _read_captured(child.stop())
