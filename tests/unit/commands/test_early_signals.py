"""A command that is asked to end before it has begun: it does not die of the signal, and does not forget it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dblog_core import cli
from dblog_core.lake import spark_submit
from tests.waiting import wait_until

FILE = """
[source]
name = "shop"
kind = "mysql"
port = 1
database = "shop"
tables = ["shop.*"]
[staging]
path = "{path}/staging"
[state]
url = "sqlite:///{path}/state.db"
[lake]
path = "{path}/lake"
[signals.http]
token = "a token of some length"
listen = "127.0.0.1:0"
[output.copy]
kind = "files"
path = "{path}/copy"
"""
LONG = {
    "work": ["work"],
    "relay": ["relay", "copy"],
    "status": ["status", "--watch"],
    "log": ["log", "--follow"],
    "serve": ["serve"],
    "metrics": ["metrics", "--listen", "127.0.0.1:0"],
}


def start(tmp_path: Path, arguments: list[str], *, program: list[str]) -> subprocess.Popen[bytes]:
    file = tmp_path / "shop.toml"
    file.write_text(FILE.format(path=tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    command = [*program, "--config", str(file), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def catches(pid: int, number: signal.Signals) -> bool:
    text = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in text.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) & (1 << (number - 1)))


@pytest.fixture
def console_script(tmp_path: Path) -> list[str]:
    """As the installation writes it."""
    script = tmp_path / "dblog"
    script.write_text("import sys\nfrom dblog_core.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
    return [sys.executable, str(script)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_capture_that_is_asked_to_end_before_it_has_begun_ends_with_0(
    tmp_path: Path, number: signal.Signals, console_script: list[str]
) -> None:
    """Whatever the installation calls, and although its server cannot be reached."""
    for program in ([sys.executable, "-m", "dblog_core.cli"], console_script):
        process = start(tmp_path, ["capture"], program=program)
        wait_until(lambda pid=process.pid: catches(pid, signal.SIGTERM), "the signals are held")
        process.send_signal(number)
        _, messages = process.communicate(timeout=60)
        assert process.returncode == 0, messages.decode()
        assert b"Traceback" not in messages
        assert not (tmp_path / "state.db").exists()


@pytest.mark.parametrize("command", sorted(LONG))
def test_each_command_that_runs_until_it_is_stopped_ends_with_0(tmp_path: Path, command: str) -> None:
    for delay in (0.0, 0.1, 0.4, 1.0):
        process = start(tmp_path, LONG[command], program=[sys.executable, "-m", "dblog_core.cli"])
        wait_until(lambda pid=process.pid: catches(pid, signal.SIGTERM), "the signals are held")
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=60)
        assert process.returncode == 0, f"after {delay} s: {messages.decode()}"


def test_signals_are_held_before_anything_large_is_imported(tmp_path: Path) -> None:
    process = start(tmp_path, ["capture"], program=[sys.executable, "-m", "dblog_core.cli"])
    wait_until(lambda: catches(process.pid, signal.SIGTERM), "the signals are held")
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert "pydantic_core" not in maps


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 1)])
@pytest.mark.parametrize("arguments", [["config", "show"], ["dumps"], ["dump", "--all"], ["check"]])
def test_a_command_that_has_no_orderly_end_does_nothing_and_ends_by_the_signal(
    tmp_path: Path, arguments: list[str], number: signal.Signals, code: int
) -> None:
    process = start(tmp_path, arguments, program=[sys.executable, "-m", "dblog_core.cli"])
    wait_until(lambda: catches(process.pid, signal.SIGTERM), "the signals are held")
    process.send_signal(number)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == code, messages.decode()
    assert b"Traceback" not in messages
    assert not (tmp_path / "state.db").exists()


def test_a_second_signal_ends_a_command_the_hard_way(tmp_path: Path) -> None:
    process = start(tmp_path, ["capture"], program=[sys.executable, "-m", "dblog_core.cli"])
    wait_until(lambda: catches(process.pid, signal.SIGTERM), "the signals are held")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: not catches(process.pid, signal.SIGTERM), "the first one is remembered")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_every_command_with_an_orderly_end_is_known_and_every_known_one_has_it() -> None:
    with_stopping = set()
    for file in Path(cli.__file__).with_name("commands").glob("*.py"):
        tree = ast.parse(file.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if any(isinstance(call.func, ast.Name) and call.func.id == "stopping" for call in calls):
            with_stopping.add(file.stem)
    modules = {command.callback.__module__.rpartition(".")[2] for command in cli.app.registered_commands
               if (command.name or command.callback.__name__) in cli.STOPPED_IN_ORDER}  # fmt: skip
    # These two first ask or file something, which a signal from before is to prevent.
    assert with_stopping - {"session"} == modules | {"dump", "schema"}


def test_a_job_that_could_not_catch_the_signal_yet_finds_that_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM between the two ignores signals, and so does what it starts, until the job has its own handlers."""
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1);"
        " from spark_jobs.entry_point import stop_on_signals; sys.exit(7 if stop_on_signals().wait(60) else 8)"
    )
    stop_file = tmp_path / "stop"
    (tmp_path / "ignores-signals").touch()
    monkeypatch.setenv(spark_submit.STOP_FILE_VARIABLE, str(stop_file))
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))
    process = subprocess.Popen(
        [sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    stop = threading.Event()
    stop.set()
    assert spark_submit._wait(process, stop, stop_file) == 7
    process.stdout.close()
