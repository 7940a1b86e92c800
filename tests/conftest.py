"""What all tests share: the servers, and the seeds of the long runs."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest_plugins = (
    "tests.fix_dumps",
    "tests.fix_servers",
    "tests.fix_s3",
    "tests.fix_spark",
    "tests.fix_verify",
    "tests.fix_day",
    "tests.fix_times",
    "tests.fix_turns",
    "tests.fix_order",
)

hypothesis.settings.register_profile("dblog", deadline=None, print_blob=True)  # a busy machine is no failure
hypothesis.settings.load_profile("dblog")


_BEGAN = pytest.StashKey[float]()
_STATUS = pytest.StashKey[int]()
_LEFT_OVER = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak", "seeded long runs (tests that ask for `soak_seed`)")
    group.addoption("--soak-seeds", type=int, default=1, help="how many seeds each of them runs with")
    group.addoption("--soak-first", type=int, default=None, help="the first seed; default: another one every time")
    group.addoption("--soak-minutes", type=float, default=0, help="start no seeded run after that time; 0: no limit")
    group.addoption("--day-minutes", type=float, default=30, help="how long the day of everything takes")
    parser.addoption(
        "--lake-way",
        choices=["mark", "copy", "spread"],
        help="how rows of the lake go; default: by the first seed",
    )
    parser.addoption("--pictures", type=Path, default=None, help="where pictures of Airflow's pages are kept")
    parser.addoption("--bench", choices=["quick", "usual", "full"], default="usual", help="how much benchmarks measure")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.option.soak_first = config.workerinput["soak first"]
    elif config.option.soak_first is None:
        config.option.soak_first = secrets.randbelow(1_000_000)
    config.stash[_BEGAN] = time.monotonic()
    config.stash[_LEFT_OVER] = []


def pytest_report_header(config: pytest.Config) -> str:
    first, count = config.option.soak_first, config.option.soak_seeds
    return f"soak: --soak-first={first} --soak-seeds={count}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "soak_seed" in metafunc.fixturenames:
        first, count = metafunc.config.option.soak_first, metafunc.config.option.soak_seeds
        metafunc.parametrize("soak_seed", range(first, first + count))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["soak first"] = node.config.option.soak_first


@pytest.fixture(autouse=True)
def _within_the_minutes(request: pytest.FixtureRequest) -> None:
    minutes = request.config.option.soak_minutes
    if minutes and "soak_seed" in request.fixturenames:
        spent = (time.monotonic() - request.config.stash[_BEGAN]) / 60
        if spent > minutes:
            pytest.skip(f"the {minutes:g} minutes that were asked for are over")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Threads that would keep this process from ending: a failed test's, since the others wait for theirs."""
    deadline = time.monotonic() + 20
    while (left := _left_over()) and time.monotonic() < deadline:
        time.sleep(0.1)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left over"] = left
    else:
        session.config.stash[_LEFT_OVER].extend(left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    node.config.stash[_LEFT_OVER].extend(getattr(node, "workeroutput", {}).get("left over", []))


def _left_over() -> list[str]:
    return [t.name for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    for report in terminalreporter.stats.get("passed", []):
        for text in (value for name, value in report.user_properties if name == "told"):
            terminalreporter.line(f"{report.nodeid}: {text}")
    if left := config.stash[_LEFT_OVER]:
        terminalreporter.line(f"threads that tests left running: {', '.join(left)}", red=True)
        config.stash[_STATUS] = exitstatus or 1


def pytest_unconfigure(config: pytest.Config) -> None:
    if _STATUS in config.stash:
        sys.stdout.flush()
        os._exit(config.stash[_STATUS])
