"""Programs of the command line as processes: how they end, and what they print until then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core import cli
from dblog_core.capture import run_capture as engine
from tests.waiting import PATIENCE_SECONDS


def test_what_a_command_writes_is_for_its_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = os.umask(0o022)
    file = tmp_path / "made"
    monkeypatch.setattr(cli, "do_without_pandas", lambda: None)
    monkeypatch.setattr(cli, "app", lambda **_: file.touch())
    try:
        cli.main()
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("outcome", "arguments", "code"),
    [
        (engine.CaptureOutcome.STOPPED, [], 0),
        (engine.CaptureOutcome.SLICE_OVER, ["--for", "1"], 0),
        (engine.CaptureOutcome.CURRENT, ["--until-current"], 0),
        (engine.CaptureOutcome.STOPPED, ["--until-current"], 1),
        (engine.CaptureOutcome.SLICE_OVER, ["--until-current", "--for", "1"], 1),
        (engine.CaptureOutcome.REACHED, ["--until", "binlog.000012:4567"], 0),
        (engine.CaptureOutcome.STOPPED, ["--until", "2026-11-20T10:00:00Z"], 1),
    ],
)
def test_exit_codes_of_a_capture_that_ends(
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    outcome: engine.CaptureOutcome,
    arguments: list[str],
    code: int,
) -> None:
    arguments_met: dict[str, Any] = {}

    def run_capture(_: Any, **options: Any) -> engine.CaptureOutcome:
        arguments_met.update(options)
        options["on_status"](engine.CaptureStatus(True, 3, 7, 99, "binlog.1:4", 0.2, 10.0, 0, "me"))
        return outcome

    monkeypatch.setattr(engine, "run_capture", run_capture)
    result = run("capture", "--json", *arguments)
    assert result.exit_code == code
    assert json.loads(result.stdout)["offset"] == 99
    assert arguments_met["until_current"] is ("--until-current" in arguments)
    assert str(arguments_met["until"] or "") == (arguments[1] if "--until" in arguments else "")
    assert "leading, epoch 3" in result.stderr


def test_a_reader_that_goes_away_ends_the_log_quietly(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import dblog_core.staging.reader as r; "
        "r.Follower.lines = lambda *_, **__: ({'offset': n, 'x': 'y' * 500} for n in range(100_000)); "
        "from dblog_core.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "--config", str(file), "log"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["offset"] == 0
    process.stdout.close()
    assert process.wait(PATIENCE_SECONDS) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.fixture
def waiting(file: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `dblog` with a command that waits, and ends it after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dblog_core.cli", "--config", str(file), *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("ending", ["terminate", "interrupt"])
def test_what_runs_until_it_is_stopped_exits_with_0(waiting: Callable[..., subprocess.Popen[str]], ending: str) -> None:
    process = waiting("status", "--watch", "--json")
    assert process.stdout is not None
    json.loads(process.stdout.readline())
    process.terminate() if ending == "terminate" else process.send_signal(2)
    threading.Thread(target=process.stdout.read, daemon=True).start()
    assert process.wait(PATIENCE_SECONDS) == 0


def test_no_command_pays_for_importing_pandas() -> None:
    code = (
        "import sys; from dblog_core.cli import do_without_pandas; do_without_pandas()\n"
        "import pyarrow as pa; print(pa.array([1]).to_pylist(), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[1]", "False"]
