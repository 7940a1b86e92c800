"""`replay`, `rebuild` and `reset` on the command line: what is wrong use, and what is asked of the merge."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dblog_core.cli import app
from dblog_core.errors import LakeError, RequestError
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, lake_at, own_directory
from dblog_core.lake.replay_interval import IntervalEnd, Unit, interval
from dblog_core.lake.task_requests import AdoptRequest, RebuildRequest, ReplayRequest, ResetRequest, TaskRequest
from dblog_core.lake.task_results import (
    AdoptResult,
    RebuildResult,
    ReplayCounts,
    ReplayedTable,
    ReplayResult,
    ResetResult,
)
from dblog_core.lake_engine.merging.merge_records import Records

NOW = dt.datetime(2026, 11, 21, 15, tzinfo=dt.UTC)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """The command line on a lake with the table shop.orders, without a server, Spark or staging."""
    file = tmp_path / "shop.toml"
    file.write_text(
        f"""
        [source]
        name = "shop"
        kind = "mysql"
        port = 9
        database = "shop"
        tables = ["shop.*"]
        [staging]
        path = "{tmp_path}/staging"
        [state]
        url = "sqlite://{tmp_path}/state.db"
        [lake]
        path = "{tmp_path}/lake"
        """
    )
    status = LakeStatus(merge=1, tables={"shop.orders": TableStatus(State.OK, None, 1, 9, 1)})
    Records(own_directory(lake_at(str(tmp_path / "lake")))).finish(status)

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["--config", str(file), *arguments])
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def asked_tasks(monkeypatch: pytest.MonkeyPatch) -> list[TaskRequest]:
    """What the commands ask of the merge, which answers that all went well."""
    calls: list[TaskRequest] = []
    table = ReplayedTable("shop.orders", ReplayCounts(3, updated=1))
    answers = {
        ReplayResult: ReplayResult(IntervalEnd.at(3), IntervalEnd.at(9), (table,)),
        RebuildResult: RebuildResult("shop.orders", "dump d1", 5, 2),
        ResetResult: ResetResult("shop.orders", "d7", 9),
        AdoptResult: AdoptResult("77aa", {"shop.orders": "d8"}),
    }

    def carry_out(_config: Any, request: TaskRequest, result_type: type, **_: Any) -> Any:
        calls.append(request)
        return answers[result_type]

    monkeypatch.setattr(lake_tasks, "carry_out", carry_out)
    return calls


def test_the_interval_is_the_last_hour_unless_it_is_given() -> None:
    assert interval(None, None, NOW) == (NOW - dt.timedelta(hours=1), NOW)
    assert interval(None, "2026-11-21T12:00:00", NOW) == (NOW.replace(hour=11), NOW.replace(hour=12))
    assert interval("17", "18", NOW) == (17, 18)
    assert interval("17", None, NOW) == (17, NOW)


@pytest.mark.parametrize(("start", "end"), [("18", "17"), ("2026-11-21T16:00:00Z", None), (None, "17"), ("noon", None)])
def test_an_interval_that_is_none_is_refused(start: str | None, end: str | None) -> None:
    with pytest.raises(RequestError):
        interval(start, end, NOW)


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", "--from", "9", "--to", "3"),
        ("replay", "--from", "yesterday"),
        ("replay", "--table", "shop.none"),
        ("rebuild", "shop.none"),
        ("reset", "shop.none"),
        ("reset",),
    ],
)
def test_wrong_use_is_told_before_anything_is_asked(
    run: Callable[..., Any], asked_tasks: list[Any], arguments: tuple[str, ...]
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert asked_tasks == []
    if "shop.none" in arguments:
        assert "it has shop.orders" in result.stderr


def test_the_commands_ask_for_what_they_were_told(run: Callable[..., Any], asked_tasks: list[Any]) -> None:
    assert run("replay", "--from", "3", "--to", "1970-01-01T00:00:01Z", "--table", "shop.orders").exit_code == 0
    assert "2 rows wait for a dump" in run("rebuild", "shop.orders").stdout
    assert "dump d7" in run("reset", "shop.orders").stdout
    assert asked_tasks == [
        ReplayRequest(IntervalEnd(Unit.OFFSET, 3), IntervalEnd(Unit.TIME, 1_000_000), ("shop.orders",)),
        RebuildRequest("shop.orders"),
        ResetRequest("shop.orders"),
    ]


def test_an_adoption_asks_first_and_leaves_a_lake_alone_that_continues_its_staging(
    run: Callable[..., Any], asked_tasks: list[Any], tmp_path: Path
) -> None:
    records = Records(own_directory(lake_at(str(tmp_path / "lake"))))
    records.finish(LakeStatus(2))
    assert "the lake continues its staging" in run("lake", "adopt", "--yes").stdout and asked_tasks == []
    records.finish(LakeStatus(3, 3, 9, "p", tables={"shop.orders": TableStatus(State.OK, None, 3, 9, 1)}))
    refused = run("lake", "adopt")
    assert refused.exit_code == 2 and "nothing was done" in refused.stderr
    assert "the lake is at segment 3, the staging is empty" in refused.stderr
    assert "a full dump of each table is requested" in refused.stderr and asked_tasks == []
    assert "shop.orders: dump d8 brings its rows" in run("lake", "adopt", "--yes").stdout
    assert run("lake", "adopt", "--yes", "--json").stdout == '{"staging":"77aa","dumps":{"shop.orders":"d8"}}\n'
    assert asked_tasks == [AdoptRequest(), AdoptRequest()]


def test_the_answer_is_json_where_it_is_wanted(run: Callable[..., Any], asked_tasks: list[Any]) -> None:
    counts = '"keys":3,"inserted":0,"updated":1,"deleted":0,"withheld":0,"error":null'
    replayed = f'{{"from":{{"offset":3}},"to":{{"offset":9}},"tables":[{{"table":"shop.orders",{counts}}}]}}\n'
    assert run("replay", "--json").stdout == replayed
    rebuilt = '{"table":"shop.orders","from":"dump d1","rows":5,"withheld":2}\n'
    assert run("rebuild", "shop.orders", "--json").stdout == rebuilt
    assert run("reset", "shop.orders", "--json").stdout == '{"table":"shop.orders","dump":"d7","offset":9}\n'


def test_a_table_that_could_not_be_replayed_is_a_failure(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = IntervalEnd.at(9)
    answer = ReplayResult(end, end, (ReplayedTable("shop.orders", None, "its files are gone"),))
    monkeypatch.setattr(lake_tasks, "carry_out", lambda *_, **__: answer)
    result = run("replay")
    assert result.exit_code == 1 and "shop.orders: its files are gone" in result.stderr


def test_a_refusal_comes_with_its_fix(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise LakeError("not enough is staged", where="shop.orders", fix="run `dblog reset shop.orders`")

    monkeypatch.setattr(lake_tasks, "carry_out", refuse)
    result = run("rebuild", "shop.orders")
    assert result.exit_code == 1 and "fix: run `dblog reset shop.orders`" in result.stderr
