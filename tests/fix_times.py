"""How long each test and each fixture of a run takes, written while it runs; and the end of a run that takes too long.

`python -m tests.times` prints the last run's file.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

FILE = Path(".local", "test-times.jsonl")
"""Below the directory of the tests' configuration."""

_BEGAN = "DBLOG_TESTS_BEGAN"  # epoch seconds: `make` sets it before the set-up, whose time counts too
_GRACE_SECONDS = 60  # between the end of the tests' processes and that of the run, for pytest's own summary
_FIXTURES = pytest.StashKey[dict[str, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("times").addoption(
        "--run-minutes", type=float, default=0, help="end a run that is not done by then, as a failure; 0: no limit"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Fixtures(), "fixture-times")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Run(config.rootpath / FILE, config.option.run_minutes), "run-times")


class _Fixtures:
    """Where the tests run: the seconds of each fixture's set-up, without those of the fixtures that it asks for."""

    def __init__(self) -> None:
        self._inner: list[float] = []
        """Of each set-up that is under way, the seconds of those inside it."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        self._inner.append(0.0)
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            whole_seconds = time.perf_counter() - began
            inner_seconds = self._inner.pop()
            if self._inner:
                self._inner[-1] += whole_seconds
            seconds = request.session.stash.setdefault(_FIXTURES, {})
            seconds[fixturedef.argname] = seconds.get(fixturedef.argname, 0.0) + whole_seconds - inner_seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report: Any = yield
        report.fixture_seconds = item.session.stash.setdefault(_FIXTURES, {})
        item.session.stash[_FIXTURES] = {}
        return report


class Run:
    """Where the reports arrive: writes them to `file`, and ends a run that is not done after `minutes` (0: never)."""

    def __init__(self, file: Path, minutes: float) -> None:
        self._began = time.time()
        self._file = file
        self._minutes = minutes
        self._stderr = os.dup(2)  # while a test runs in this process, 2 itself leads to what pytest captures
        self._is_over = threading.Event()
        self._has_workers = False
        self._to_come: dict[str, None] = {}
        self._running: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._has_workers = session.config.pluginmanager.hasplugin("dsession")
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text(json.dumps(_machine()) + "\n")
        if self._minutes:
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts so what goes on in its background
                signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Thread(target=self._watch, name="run-limit", daemon=True).start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._to_come.update(dict.fromkeys(item.nodeid for item in session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._to_come.update(dict.fromkeys(test for test in ids if test not in self._seconds))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._to_come.pop(nodeid, None)
        self._running[nodeid] = time.time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        line = {
            "test": report.nodeid,
            "when": report.when,
            "seconds": round(report.duration, 3),
            "outcome": report.outcome,
            "worker": getattr(report, "worker_id", "main"),
            "at": round(time.time() - self._began, 1),
            "load": round(os.getloadavg()[0], 1),
            "fixtures": {name: round(s, 3) for name, s in getattr(report, "fixture_seconds", {}).items()},
        }
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_sessionfinish(self) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        """Waits for the run's end; at the limit kills the processes of the tests, so that each test that runs in one
        is reported as failed (`--max-worker-restart=0`: no other process takes its place)."""
        began = float(os.environ.get(_BEGAN) or self._began)
        if self._is_over.wait(max(0.0, began + 60 * self._minutes - time.time())):
            return
        os.write(self._stderr, self._account().encode())
        if self._has_workers:
            _kill_children()
        else:
            os.kill(os.getpid(), signal.SIGINT)  # wakes a main thread that waits, too
        if not self._is_over.wait(_GRACE_SECONDS):
            os.write(self._stderr, b"dblog: the run does not end by itself, and is ended\n")
            _kill_children()
            os._exit(1)

    def _account(self) -> str:
        """What was running, what was still to come, and the slowest tests so far."""
        running = [f"  {test} for {time.time() - began:.0f} s" for test, began in self._running.items()]
        slowest = sorted(self._seconds.items(), key=lambda test: -test[1])[:20]
        return "\n".join(
            (
                "",
                f"dblog: this run is not done after {self._minutes:g} minutes and ends here, as a failure",
                "running:",
                *(running or ["  nothing"]),
                f"still to come: {len(self._to_come)} tests",
                *(f"  {test}" for test in self._to_come),
                f"the slowest of {len(self._seconds)} so far:",
                *(f"  {seconds:8.1f} s  {test}" for test, seconds in slowest),
                "",
            )
        )


def _kill_children() -> None:
    """All but the guards of the local servers, which end what has lost its starter and outlives it in a session of its
    own."""
    for process in psutil.Process().children(recursive=True):
        try:
            if "dblog_core.local.servers.guard" not in process.cmdline():
                process.kill()
        except psutil.NoSuchProcess:
            continue  # it went with another


def _machine() -> dict[str, object]:
    """What the figures depend on."""
    commit = subprocess.run(("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False)
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "load": os.getloadavg()[0],
    }
