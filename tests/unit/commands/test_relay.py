"""`dblog relay` as a user runs it: what it prints, its exit codes, and how it is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.staging.reader import lines
from tests.contract import changelog
from tests.waiting import PATIENCE_SECONDS, wait_until

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `dblog` over a staged super-changelog with an output `archive`."""
    changelog.stage(tmp_path / "staging")
    (tmp_path / "shop.toml").write_text(f"""
[source]
name = "shop"
kind = "mysql"
database = "shop"
tables = ["shop.*"]
[staging]
path = "staging"
[state]
url = "sqlite:///{tmp_path}/state.db"
[lake]
path = "lake"
[output.archive]
kind = "files"
path = "out"
start = "earliest"
every = 0.0
[output.local]
kind = "python"
class = "not_there:At_all"
""")
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dblog_core.cli", "--config", str(tmp_path / "shop.toml"), *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def _sent_lines(directory: Path) -> list[Any]:
    files = sorted((directory / "out" / "shop" / "archive").glob("*.jsonl"))
    return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


def test_once_sends_all_that_is_sealed_and_status_tells_of_it(start: Start, tmp_path: Path) -> None:
    relay = start("relay", "archive", "--once", "--json")
    out, err = relay.communicate(timeout=PATIENCE_SECONDS)
    assert relay.returncode == 0, err
    assert orjson.loads(out) == {"source": "shop", "output": "archive", "outcome": "current"}
    assert "has all that was sealed" in err
    assert [line["offset"] for line in _sent_lines(tmp_path)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14]
    out, _ = start("status").communicate(timeout=PATIENCE_SECONDS)
    assert "output    archive (files): offset 14, 0.0 s behind; no relay is running" in out


def test_it_runs_until_sigterm_and_then_exits_with_0(start: Start, tmp_path: Path) -> None:
    relay = start("relay", "archive")
    wait_until(lambda: len(_sent_lines(tmp_path)) == 13, what="the lines that are sealed")
    staging = changelog.Staging(str(tmp_path / "staging"), source="shop")
    changelog.go_on(staging, 5, 15)
    wait_until(lambda: len(_sent_lines(tmp_path)) == 15, what="the lines that came later")
    relay.send_signal(signal.SIGTERM)
    _, err = relay.communicate(timeout=PATIENCE_SECONDS)
    assert relay.returncode == 0, err
    assert _sent_lines(tmp_path) == [orjson.loads(orjson.dumps(line)) for line in lines(staging)]


@pytest.mark.parametrize(
    ("name", "code", "expected_text"), [("archiv", 2, "configured are: archive, local"), ("local", 1, "cannot be made")]
)
def test_an_output_that_is_not_there_is_told(start: Start, name: str, code: int, expected_text: str) -> None:
    relay = start("relay", name, "--once")
    _, err = relay.communicate(timeout=PATIENCE_SECONDS)
    assert (relay.returncode, expected_text in err) == (code, True), err
