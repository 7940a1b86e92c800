"""The command line: what is wrong use, what errors look like, and what goes to which stream."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dblog_core import wiring
from dblog_core.cli import app
from dblog_core.config.loader import load
from dblog_core.dumps import filing
from dblog_core.errors import RequestError, SourceUnavailable
from dblog_core.model.durations import in_words
from dblog_core.state import recent_errors

COMMANDS = ["check", "capture", "dump", "work", "dumps", "pause", "resume", "cancel", "set", "merge", "log", "status"]


def test_every_command_explains_itself() -> None:
    listed = CliRunner().invoke(app, ["--help"])
    assert listed.exit_code == 0
    for command in COMMANDS:
        assert f"  {command} " in listed.stdout
        explained = CliRunner().invoke(app, [command, "--help"])
        assert explained.exit_code == 0
        assert "Usage: " in explained.stdout


@pytest.mark.parametrize("command", ["check", "capture", "dump", "work", "dumps", "set", "merge", "log", "status"])
def test_help_has_examples(command: str) -> None:
    assert "dblog --config shop.toml" in CliRunner().invoke(app, [command, "--help"]).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["capture", "--bogus"],
        ["dump"],
        ["dump", "--all", "--table", "shop.a"],
        ["dump", "--all", "--pk", "1"],
        ["dump", "--all", "--key-from", "1"],
        ["dump", "--table", "shop.a", "--table", "shop.b", "--pk", "1"],
        ["dump", "--table", "shop.a", "--pk", "not json"],
        ["dump", "--table", "shop.a", "--key-to", "{"],
        ["dump", "--table", "shop.a", "--chunk-size", "0"],
        ["dump", "--table", "shop.a", "--rate", "fast"],
        ["dump", "--table", "shop.a", "--filter", "id", "like", "x"],
        ["dump", "--table", "shop.a", "--filter", "id", "="],
        ["dump", "--table", "shop.a", "--ranges", "65"],
        ["dump", "--table", "shop.a", "--ranges", "0"],
        ["dump", "--table", "shop.a", "--adaptive", "maybe"],
        ["dump", "--table", "shop.a", "--max-retained", "much"],
        ["dump", "--dry-run"],
        ["dump", "--dry-run", "--all", "--pk", "1"],
        ["merge", "--once", "--continuous"],
        ["log", "--from", "-1"],
        ["log", "--table", "nodot"],
        ["set", "some-id", "bogus=1"],
        ["set", "some-id", "rate=fast"],
        ["set", "some-id", "adaptive=maybe"],
        ["set", "some-id", "max_retained=10X"],
        ["set", "some-id", "delay="],
        ["set", "no-such-dump", "rate=5"],
        ["set", "some-id"],
        ["pause"],
        ["pause", "no-such-dump"],
        ["set", "../../x", "rate=1"],
    ],
)
def test_wrong_use_exits_with_2(run: Callable[..., Any], arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_without_a_configuration_the_message_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DBLOG_CONFIG", raising=False)
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 2
    assert "--config" in result.stderr
    assert "DBLOG_CONFIG" in result.stderr


def test_a_wrong_configuration_exits_with_2_and_tells_every_fault(file: Path, run: Callable[..., Any]) -> None:
    file.write_text(file.read_text().replace("mysql", "oracle").replace("[lake]", "[lakes]"))
    result = run("status")
    assert result.exit_code == 2
    for place in ("[source] kind", "[lakes]", "[lake]"):
        assert place in result.stderr


def test_the_configuration_may_come_from_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBLOG_CONFIG", str(file))
    assert CliRunner().invoke(app, ["dumps"]).exit_code == 0


@pytest.mark.parametrize("arguments", [["--json", "dumps"], ["dumps", "--json"]])
def test_json_before_or_after_the_command(run: Callable[..., Any], arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_an_unreachable_source_is_told_by_check_and_by_the_capture(run: Callable[..., Any]) -> None:
    checked = run("check", "--json")
    report = json.loads(checked.stdout)
    assert (checked.exit_code, report["ok"]) == (1, False)
    assert any(p["area"] == "source" and p["fatal"] and p["fix"] for p in report["problems"])
    captured = run("capture", "--for", "1")
    assert (captured.exit_code, captured.stdout) == (1, "")
    assert "fix: " in captured.stderr


def test_check_warns_of_a_password_that_others_can_read(file: Path, run: Callable[..., Any]) -> None:
    file.chmod(0o644)
    assert "holds a password" in run("check").stdout
    file.chmod(0o600)
    assert "holds a password" not in run("check").stdout


def test_check_tells_of_staging_that_cannot_be_written(file: Path, run: Callable[..., Any]) -> None:
    (file.parent / "staging").write_text("a file where a directory is wanted")
    problems = json.loads(run("check", "--json").stdout)["problems"]
    assert any(p["area"] == "staging" and p["fatal"] for p in problems)


def test_status_of_a_source_that_was_never_captured(run: Callable[..., Any]) -> None:
    answer = json.loads(run("status", "--json").stdout)
    assert (answer["source"], answer["leader"], answer["offset"], answer["dumps"]) == ("shop", None, None, [])
    assert "no capture is running" in run("status").stdout


def test_status_tells_of_errors_of_the_last_hour(file: Path, run: Callable[..., Any]) -> None:
    with closing(wiring.open_state(load(file))) as state:
        unavailable = SourceUnavailable("no route to host", where="db:3306", fix="see that it runs")
        recent_errors.record(state, "merge", RequestError("of yesterday"), time.time() - 86_400)
        recent_errors.record(state, "capture", unavailable, time.time() - 130)
        recent_errors.record(state, "capture", unavailable, time.time() - 120)
    printed = run("status").stdout
    # Seconds go by between the record and the print.
    line = r"error     capture, 2 times, last 2 min \d+ s ago: db:3306: no route to host\n  fix: see that it runs"
    assert re.search(line, printed)
    assert "of yesterday" not in printed
    assert [e["part"] for e in json.loads(run("status", "--json").stdout)["errors"]] == ["capture", "merge"]


def test_the_schema_needs_no_configuration() -> None:
    schema = CliRunner().invoke(app, ["config", "schema"])
    assert schema.exit_code == 0
    assert "source" in json.loads(schema.stdout)["properties"]


@pytest.mark.parametrize(
    ("error", "code"), [(RequestError("no such table", fix="name another"), 2), (SourceUnavailable("it is down"), 1)]
)
def test_errors_become_messages_and_exit_codes(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def submit(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(filing, "submit", submit)
    result = run("dump", "--all")
    assert (result.exit_code, result.stdout) == (code, "")
    assert str(error) in result.stderr


def test_an_unknown_error_is_one_line_with_a_hint(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_unknown_error(*_: Any, **__: Any) -> str:
        raise ZeroDivisionError("with SECRET of a row in it")

    monkeypatch.setattr(filing, "submit", raise_unknown_error)
    result = run("dump", "--all")
    assert result.exit_code == 1
    assert "ZeroDivisionError: raise_unknown_error, line " in result.stderr
    assert "SECRET" not in result.stderr
    assert "--debug" in result.stderr


def test_a_log_that_has_no_such_offset_says_so(run: Callable[..., Any]) -> None:
    assert run("log", "--from", "1").exit_code == 0
    beyond = run("log", "--from", "99")
    assert (beyond.exit_code, beyond.stdout) == (1, "")
    assert "offset 99 is beyond the end: the super-changelog has no line yet" in " ".join(beyond.stderr.split())
    assert "--from 1" in beyond.stderr


def test_the_list_of_commands_fits_a_narrow_terminal() -> None:
    printed = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, ["-h"]).stdout
    commands = printed.partition("Commands:")[2].splitlines()
    assert len(commands) > 20 and not [line for line in commands if line.endswith(("...", "…")) or len(line) > 80]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "< 1 s"), (1, "1 s"), (59.4, "59 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (180_000, "2 d 2 h")],
)
def test_durations_are_told_in_two_units(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--until", "soon"],
        ["--until", "0/16B3748"],
        ["--until", "2026-11-20T10:00:00"],
        ["--until", "earliest"],
        ["--until", "binlog.000012:4567", "--until-current"],
    ],
)
def test_an_end_that_no_log_of_the_kind_has_is_wrong_use(run: Callable[..., Any], arguments: list[str]) -> None:
    assert run("capture", *arguments).exit_code == 2
