"""The report of where a run's time went, and the limit that ends a run which takes too long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import times
from tests.fix_times import FILE
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
_IGNORING_SIGINT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""
_TESTS = """
import threading, time
import pytest

@pytest.fixture(scope="module")
def server():
    time.sleep(0.2)

@pytest.fixture
def database(request):
    request.getfixturevalue("server")

def test_short(database):
    assert True

def test_for_ever():
    threading.Event().wait()

def test_after_that():
    assert True
"""


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    """pytest on the tests above, with nothing of this project but the plugin, as a shell's background starts it."""
    directory.mkdir()
    (directory / "test_made.py").write_text(_TESTS)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly -p tests.fix_times\n")
    return subprocess.Popen(
        (sys.executable, "-c", _IGNORING_SIGINT, sys.executable, "-m", "pytest", *options),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DBLOG_TESTS_BEGAN": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.thorough
def test_a_run_that_is_not_done_in_time_ends_as_a_failure_and_says_where_it_was(tmp_path: Path) -> None:
    limit = "--run-minutes=0.2"  # so much that a busy machine comes to the second test
    alone = start(tmp_path / "alone", limit)
    in_a_worker = start(tmp_path / "worker", limit, "-n", "1", "--max-worker-restart=0")
    for process in (alone, in_a_worker):
        printed, account = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode != 0
        assert "not done after 0.2 minutes" in account and "does not end by itself" not in account
        running, rest = account.split("still to come: 1 tests")
        assert "test_made.py::test_for_ever for " in running
        assert "test_made.py::test_after_that" in rest
        assert "s  test_made.py::test_short" in rest
        summary = printed.splitlines()[-1]
        assert "1 passed" in summary, printed
        assert ("1 failed" in summary) == (process is in_a_worker), printed


def test_the_time_of_a_run_is_told_by_directory_file_and_fixture(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--run-minutes=2", "--deselect=test_made.py::test_for_ever", "-n", "1")
    printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, printed
    machine, *lines = [json.loads(line) for line in (tmp_path / "run" / FILE).read_text().splitlines()]
    (whole,) = times.sum_times(lines, lambda test: test.partition("::")[0]).values()
    assert len(whole.tests) == 2 and whole.setup >= 0.2
    fixtures = times.fixtures(lines)
    assert fixtures["server"][0] == fixtures["database"][0] == 1
    assert fixtures["server"][1] >= 0.2
    assert fixtures["server"][1] + fixtures["database"][1] <= whole.setup + 0.01, "no time is counted twice"
    report = times.report(machine, lines, slowest=1)
    assert "test_made.py::test_short" in report and "test_after_that" not in report
