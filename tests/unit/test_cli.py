"""The command line: what is wrong use, what errors look like, and what goes to which stream."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dblog_core import cli, wiring
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.capture import run_capture as engine
from dblog_core.cli import app
from dblog_core.config.loader import load
from dblog_core.dumps import control, filing, requests, task_store
from dblog_core.errors import RequestError, SourceUnavailable
from dblog_core.model.durations import in_words
from dblog_core.model.filters import Typed
from dblog_core.model.task_id import TaskId
from dblog_core.state import recent_errors
from tests.unit import requests_world
from tests.unit.requests_world import World

PASSWORD = "hunter2secret"
COMMANDS = ["check", "capture", "dump", "work", "dumps", "pause", "resume", "cancel", "set", "merge", "log", "status"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration whose source nothing listens at."""
    path = tmp_path / "shop.toml"
    path.write_text(
        f"""
        [source]
        name = "shop"
        kind = "mysql"
        port = 9
        password = "{PASSWORD}"
        database = "shop"
        tables = ["shop.*"]
        [staging]
        path = "staging"
        [state]
        url = "sqlite://{tmp_path}/state.db"
        [lake]
        path = "lake"
        """
    )
    return path


@pytest.fixture
def run(file: Path) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["--config", str(file), *arguments])
        assert PASSWORD not in result.output
        assert "Traceback" not in result.output
        return result

    return run


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
    def broken(*_: Any, **__: Any) -> str:
        raise ZeroDivisionError(f"with {PASSWORD} in it")

    monkeypatch.setattr(filing, "submit", broken)
    result = run("dump", "--all")
    assert result.exit_code == 1
    assert "ZeroDivisionError: with ***** in it" in result.stderr
    assert "--debug" in result.stderr


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


def test_keys_reach_the_engine_with_all_their_digits(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[requests.DumpRequest] = []

    def submit(_: Any, request: requests.DumpRequest) -> str:
        requested.append(request)
        raise RequestError("enough")

    monkeypatch.setattr(filing, "submit", submit)
    run("dump", "--table", "shop.a", "--pk", '[1, "x"]', "--pk", "1.10", "--rate", "5", "--delay", "0.5")
    run("dump", "--table", "shop.a", "--key-from", '"a; DROP TABLE x"', "--key-to", "null")
    assert requested[0].tables == ("shop.a",)
    assert requested[0].keys == ([1, "x"], "1.10")
    assert (requested[0].rate, requested[0].delay) == (5, 0.5)
    assert requested[1].key_from == "a; DROP TABLE x"


def test_every_option_of_a_dump_reaches_the_engine(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[requests.DumpRequest] = []

    def submit(_: Any, request: requests.DumpRequest) -> str:
        requested.append(request)
        raise RequestError("enough")

    monkeypatch.setattr(filing, "submit", submit)
    run(
        *("dump", "--table", "shop.cust*", "--table", "shop.a", "--ranges", "7", "--workers", "3", "--adaptive", "on"),
        *("--max-retained", "10G", "--filter", "amount", "<", "-5", "--filter", "state", "in", '["a", "--wait"]'),
    )
    run("dump", "--all", "--adaptive", "off", "--max-retained", "0")
    run("dump", "--all")
    filters = (("amount", "<", Typed("-5")), ("state", "in", Typed('["a", "--wait"]')))
    assert requested[0] == requests.DumpRequest(
        ("shop.cust*", "shop.a"), filters=filters, ranges=7, workers=3, adaptive=True, max_retained=10 << 30
    )
    assert requested[1] == requests.DumpRequest(None, adaptive=False, max_retained=0)
    assert requested[2] == requests.DumpRequest(None)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> World:
    """A source in memory behind the commands, with one dump of 1,000 orders in four ranges."""
    world = requests_world.make(tmp_path, monkeypatch, chunk_size=10, workers=2)
    world.fill(requests_world.ORDERS, [(k,) for k in range(1_000)])
    filing.submit(world.config, requests.DumpRequest(("shop.orders",), ranges=4))
    return world


def the_dump(shop: World) -> str:
    return shop.state.children("dumps")[0]


def test_a_dry_run_shows_the_plan_and_files_nothing(run: Callable[..., Any], shop: World) -> None:
    result = run("dump", "--table", "shop.*", "--dry-run")
    assert result.exit_code == 0
    assert "shop.orders" in result.stdout
    assert "refused: shop.events has no primary key" in result.stdout
    answer = json.loads(run("dump", "--all", "--dry-run", "--json").stdout)
    assert {t["table"]: t["rows"] for t in answer["tables"]}["shop.orders"] == 1_000
    refused = run("dump", "--table", "shop.nothing", "--dry-run")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert len(shop.state.children("dumps")) == 1


def test_dumps_are_listed_with_what_is_known_of_them(run: Callable[..., Any], shop: World) -> None:
    dump_id = the_dump(shop)
    progress = TaskProgress("shop.orders", attempt=1, ordinal=12, rows=120, evicted=2, began=10**6, at=7 * 10**6)
    task_store.put_progress(shop.state, TaskId(dump_id, 0), progress)
    task_store.put_pace(shop.state, TaskId(dump_id, 1), held="the replicas are 7 s behind", factor=0.5)
    listed = run("dumps").stdout.splitlines()
    assert listed[0].split() == ["ID", "STATE", "ROWS", "OF", "CHUNKS", "LEFT", "TASKS"]
    assert listed[1].split() == [dump_id, "running", "120", "1,000", "12", "44", "s", "0/4"]
    assert listed[2:] == ["  shop.orders; 2 evicted; 20 rows/s", "  held: the replicas are 7 s behind"]
    assert max(map(len, listed)) <= 80
    (dump,) = json.loads(run("dumps", "--json").stdout)
    assert (dump["rows_per_second"], dump["seconds_left"], dump["estimated_rows"]) == (20.0, 44.0, 1_000)
    assert (dump["held"], dump["tasks_done"], len(dump["tasks"])) == ("the replicas are 7 s behind", 0, 4)
    assert json.loads(run("status", "--json").stdout)["dumps"] == [dump]
    line = f"{dump_id}: running, 120 rows, 12 chunks, 2 evicted, 44 s left; held: the replicas are 7 s behind"
    assert line in run("status").stdout


def test_dumps_that_are_over_leave_room_for_those_that_are_not(run: Callable[..., Any], shop: World) -> None:
    for _ in range(3):
        control.cancel(shop.state, filing.submit(shop.config, requests.DumpRequest(("shop.orders",))))
    live = [line for line in run("status").stdout.splitlines() if line.startswith("dump ")]
    assert [("requested" in line, "cancelled" in line) for line in live] == [
        (False, True),
        (True, False),
        (False, False),
    ]
    assert live[2] == "dump      2 more that are over: `dblog dumps`"
    assert "lake      nothing is merged yet" in run("status").stdout


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


def test_control_is_told_in_one_line(run: Callable[..., Any], shop: World) -> None:
    dump_id = the_dump(shop)
    paused = run("pause", dump_id)
    assert (paused.exit_code, f"dump {dump_id}: paused" in paused.stdout) == (0, True)
    tuned = json.loads(run("set", dump_id, "adaptive=on", "max_retained=2g", "delay=0.5", "workers=5", "--json").stdout)
    options = tuned["options"]
    assert (options["adaptive"], options["max_retained"], options["delay"]) == (True, 2 << 30, 0.5)
    assert (options["workers"], options["chunk_size"]) == (5, 10)
    assert run("set", dump_id, "workers=100").exit_code == 2
    assert "requested" in run("resume", dump_id).stdout
    assert "cancelled" in run("cancel", dump_id).stdout
    over = run("set", dump_id, "rate=5")
    assert (over.exit_code, over.stdout) == (2, "")
    assert "is cancelled" in over.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_dump_that_is_stopped_while_it_is_requested_exits_with_1_and_is_not_there(
    run: Callable[..., Any], shop: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def boundaries(*_: Any, **__: Any) -> Iterator[Any]:
        os.kill(os.getpid(), number)
        yield from ()

    monkeypatch.setattr(requests_world.Reader, "boundaries", boundaries)
    before = signal.getsignal(signal.SIGTERM)
    # What a shell starts in the background ignores SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run("dump", "--table", "shop.orders").exit_code == 1
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(shop.state.children("dumps")) == 1
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "< 1 s"), (1, "1 s"), (59.4, "59 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (180_000, "2 d 2 h")],
)
def test_durations_are_told_in_two_units(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


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
    assert process.wait(30) == 0
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
    assert process.wait(30) == 0


def test_no_command_pays_for_importing_pandas() -> None:
    code = (
        "import sys; from dblog_core.cli import do_without_pandas; do_without_pandas()\n"
        "import pyarrow as pa; print(pa.array([1]).to_pylist(), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[1]", "False"]
