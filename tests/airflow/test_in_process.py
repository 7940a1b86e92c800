"""How a task that runs the engine ends: when told to, when its supervisor dies, and with a reason in plain words.

Each runs in a process of its own: a task's main thread, its signal handler and its parent are what this is about.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from dblog_core import wiring
from dblog_core.airflow import in_process, ui_page
from dblog_core.config.loader import load
from dblog_core.dumps import control, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.state import capture_status, recent_errors
from dblog_core.state.capture_status import LeaderReport
from dblog_core.state.lease_holder import CAPTURE
from tests.airflow.test_factory import write
from tests.growing_files import whole_lines
from tests.unit.config.test_secret_settings import FIELDS, SECRETS
from tests.unit.requests_world import make

BUSY_SECONDS = 60.0  # for what takes half a second of a machine that does nothing else
Notes = list[list[str]]

_TASK = """
import os, signal, sys, threading
from dblog_core.capture import run_capture as capture
from dblog_core.airflow.capture_operators import CaptureSensor
from dblog_core.errors import SourceRefused
from dblog_core.state import capture_status

def stand_in(config, *, stop, slice_seconds, file, on_status, receivers):
    assert list(receivers) == []
    assert threading.current_thread() is not threading.main_thread()
    assert str(file.path) == sys.argv[1] and file.load(file.path) == config
    on_status(capture_status.CaptureStatus(True, 3, 7, 70, "here", 0.2, 10.0, 0, "me"))
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
_WATCH = """
import logging, sys
from dblog_core.airflow.capture_operators import CaptureWatch
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
task = CaptureWatch(task_id="capture", config_file=sys.argv[1], slice_seconds=2, patience=1.5)
print(task.execute({}), flush=True)
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


def start_python(command: list[str], home: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "AIRFLOW_HOME": str(home), "A_SECRET_THAT_IS_NOT_SET": "x"}
    return subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.PIPE, text=True)


def running(process: subprocess.Popen[str]) -> int:
    """The pid of the task, once its engine runs."""
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("running"):
        assert line, "the task ended before its engine ran"
    return int(line.split()[1])


def test_on_kill_sets_the_stop_flag_and_the_task_ends_in_order(task: list[str], tmp_path: Path) -> None:
    process = start_python(task, tmp_path)
    running(process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=BUSY_SECONDS)
    assert output.splitlines()[-1] == "stopped"
    assert process.returncode == 0


def test_a_task_leaves_at_once_when_its_supervisor_is_killed(task: list[str], tmp_path: Path) -> None:
    supervisor = tmp_path / "supervisor.py"
    supervisor.write_text(_SUPERVISOR)
    process = start_python([str(supervisor), *task], tmp_path)
    orphan = psutil.Process(running(process))
    process.kill()
    ended, alive = psutil.wait_procs([orphan], timeout=BUSY_SECONDS)
    assert (len(ended), alive) == (1, [])
    process.communicate()


@pytest.mark.one_of(2)
def test_an_error_is_raised_as_it_is(task: list[str], tmp_path: Path) -> None:
    Path(task[0]).write_text(_TASK.format(refuse=True))
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "A_SECRET_THAT_IS_NOT_SET": "x"}
    result = subprocess.run([sys.executable, *task], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "SourceRefused: the grant X is missing" in result.stderr


@pytest.fixture
def watch(tmp_path: Path) -> list[str]:
    """A command that watches a capture of the source `shop`."""
    write(tmp_path / "sources", "shop.toml", name="shop")
    file = tmp_path / "sources" / "shop.toml"
    file.write_text(file.read_text().replace("/nowhere", str(tmp_path)))
    (tmp_path / "task.py").write_text(_WATCH)
    return [str(tmp_path / "task.py"), str(file)]


def run_python(command: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "AIRFLOW_HOME": str(home), "A_SECRET_THAT_IS_NOT_SET": "x"}
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)


@pytest.mark.one_of(2)
def test_a_capture_that_runs_elsewhere_is_watched(
    watch: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_THAT_IS_NOT_SET", "x")
    with closing(wiring.open_state(load(watch[1]))) as state:
        lease = state.acquire(CAPTURE, "elsewhere:1", ttl=300)
        assert lease is not None
        read_by = time.time() + BUSY_SECONDS  # an old report counts as none, and Airflow's start may take long
        capture_status.put_status(state, LeaderReport(int(read_by * 1e6), 2.5, 7, (), 1, True))
        ended = run_python(watch, tmp_path)
        lease.release()
    assert ended.returncode == 0, ended.stderr
    assert "leading, epoch 1: segment 0, offset 0, lag 2.5 s, 7 rows/s" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "slice over"


@pytest.mark.one_of(2)
def test_the_watch_fails_once_nobody_leads(watch: list[str], tmp_path: Path) -> None:
    ended = run_python(watch, tmp_path)
    assert ended.returncode == 1
    assert "no capture of shop has led for 2 s: start it where it runs" in ended.stderr


_NOTE = """
import json, pathlib
from airflow.sdk import BaseNotifier
class Note(BaseNotifier):
    template_fields = ("text",)
    def __init__(self, *, path, text):
        super().__init__()
        self.path, self.text, self.refusal = pathlib.Path(path), text, pathlib.Path(path + ".refused")
    def notify(self, context):
        if not self.refusal.exists():
            self.refusal.touch()
            raise OSError("no route to whoever is told")
        with self.path.open("a") as file:
            file.write(json.dumps([self.text, context["notice"]["id"]]) + "\\n")
"""
_TOLD = """
[[airflow.notify]]
notifier = "note.Note"
when = "dump"
name = "people"
events = ["requested", "aborted"]
arguments = { path = "PATH", text = "{{ notice.source }} {{ notice.event }}" }
"""


def test_the_watch_tells_airflows_notifiers_of_dumps_until_they_take_it(
    watch: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_THAT_IS_NOT_SET", "x")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "note.py").write_text(_NOTE)
    task, config, told_file = Path(watch[0]), Path(watch[1]), tmp_path / "told"
    task.write_text(task.read_text().replace("slice_seconds=2, patience=1.5", "patience=600"))
    config.write_text(config.read_text() + _TOLD.replace("PATH", str(told_file)))

    def read_notes() -> Notes:
        return [json.loads(line) for line in whole_lines(told_file)]

    with closing(wiring.open_state(load(config))) as state:
        dump = filing.submit(make(tmp_path, monkeypatch).config, DumpRequest(("shop.orders",)), state=state)
        process = start_python(watch, tmp_path)
        requested = [["shop requested", f"{dump}/requested//0"]]
        wait_until_told(read_notes, requested, process)
        control.cancel(state, dump)
        wait_until_told(read_notes, [*requested, ["shop aborted", f"{dump}/aborted//0"]], process)
        process.kill()
        process.communicate()
        (error,) = recent_errors.read(state)
    assert (error.part, error.times) == ("notify people", 1)
    assert f"note.Note has not taken notice {dump}/requested//0: OSError: no route" in error.error


def wait_until_told(seen: Callable[[], Notes], expected: Notes, process: subprocess.Popen[str]) -> None:
    """Returns once the notes are those, while the process runs."""
    deadline, pause = time.monotonic() + BUSY_SECONDS, threading.Event()
    while (notes := seen()) != expected:
        assert process.poll() is None, f"the task has ended with {process.returncode}; it has told {notes}"
        assert time.monotonic() < deadline, f"told {notes}, not {expected}"
        pause.wait(0.1)


def test_airflow_masks_every_secret_that_a_task_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[object] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", masked.append)
    file = tmp_path / "shop.toml"
    file.write_text(FIELDS.format(*SECRETS))
    in_process.configuration(str(file))
    assert set(SECRETS) <= set(masked)


@pytest.mark.parametrize("begin", [lambda file: in_process.configuration(str(file)), lambda _: ui_page.app()])
def test_zookeepers_client_writes_nothing_into_airflows_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Path], object]
) -> None:
    """Each session had four lines there, and the page has many sessions."""
    monkeypatch.setattr("airflow.sdk.log.mask_secret", lambda _: None)
    file = tmp_path / "shop.toml"
    file.write_text(FIELDS.format(*SECRETS))
    kazoo = logging.getLogger("kazoo")
    before = kazoo.level
    kazoo.setLevel(logging.INFO)
    try:
        begin(file)
        assert not logging.getLogger("kazoo.client").isEnabledFor(logging.ERROR)
    finally:
        kazoo.setLevel(before)
