"""How a task that runs the engine ends: when told to, when its supervisor dies, and with a reason in plain words.

Each runs in a process of its own: a task's main thread, its signal handler and its parent are what this is about.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.airflow.test_factory import write

_TASK = """
import os, signal, sys, threading
from dblog_core import capture
from dblog_core.airflow.capture import CaptureSensor
from dblog_core.errors import SourceRefused

def stand_in(config, *, stop, slice_seconds, file, on_status):
    assert threading.current_thread() is not threading.main_thread()
    assert str(file.path) == sys.argv[1] and file.load(file.path) == config
    on_status(capture.CaptureStatus(True, 3, 7, 70, "here", 0.2, 10.0, 0, "me"))
    print("running", os.getpid(), flush=True)
    if {refuse}:
        raise SourceRefused("the grant X is missing", fix="GRANT X")
    stop.wait()
    return capture.CaptureOutcome.STOPPED

capture.run_capture = stand_in
task = CaptureSensor(task_id="capture", config_file=sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
print(task.execute({{}}), flush=True)
"""
_SUPERVISOR = """
import subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]])
child.wait()
"""


@pytest.fixture
def task(tmp_path: Path) -> list[str]:
    """A command that runs a capture task with a stand-in for the engine."""
    write(tmp_path / "sources", "shop.toml", name="shop")
    file = tmp_path / "task.py"
    file.write_text(_TASK.format(refuse=False))
    return [str(file), str(tmp_path / "sources" / "shop.toml")]


def started(command: list[str], home: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "AIRFLOW_HOME": str(home), "A_SECRET_THAT_IS_NOT_SET": "x"}
    return subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.PIPE, text=True)


def running(process: subprocess.Popen[str]) -> int:
    """The pid of the task, once its engine runs."""
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("running"):
        assert line, "the task ended before its engine ran"
    return int(line.split()[1])


def test_on_kill_sets_the_stop_flag_and_the_task_ends_in_order(task: list[str], tmp_path: Path) -> None:
    process = started(task, tmp_path)
    running(process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=5)
    assert output.splitlines()[-1] == "stopped"
    assert process.returncode == 0


def test_a_task_leaves_at_once_when_its_supervisor_is_killed(task: list[str], tmp_path: Path) -> None:
    supervisor = tmp_path / "supervisor.py"
    supervisor.write_text(_SUPERVISOR)
    process = started([str(supervisor), *task], tmp_path)
    orphan = psutil.Process(running(process))
    process.kill()
    gone, alive = psutil.wait_procs([orphan], timeout=5)
    assert (len(gone), alive) == (1, [])
    process.communicate()


def test_an_error_is_raised_as_it_is(task: list[str], tmp_path: Path) -> None:
    Path(task[0]).write_text(_TASK.format(refuse=True))
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "A_SECRET_THAT_IS_NOT_SET": "x"}
    result = subprocess.run([sys.executable, *task], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "SourceRefused: the grant X is missing" in result.stderr
