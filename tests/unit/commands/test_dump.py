"""The commands that file, list and control dumps: what they print, and how they exit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps import control, dump_store, filing, requests, task_store
from dblog_core.dumps.dump_records import Refusal
from dblog_core.errors import RequestError
from dblog_core.model.filters import Typed
from dblog_core.model.task_id import TaskId
from tests.unit import requests_world
from tests.unit.requests_world import World


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
    assert "refused: shop.events has no key" in result.stdout
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
    line = f"{dump_id}: running, 120 rows in 12 chunk(s), 2 evicted, 44 s left; held: the replicas are 7 s behind"
    assert line in run("status").stdout


def test_a_dump_that_a_merge_has_filed_says_who_carries_it_out_or_what_refuses_it(
    run: Callable[..., Any], shop: World
) -> None:
    waiting = dump_store.file_deferred(shop.state, shop.config.dump, "shop.lines", [[1, "a"]])
    refused = dump_store.file_deferred(shop.state, shop.config.dump, "shop.orders")
    refusal = Refusal("shop.orders", "SELECT is denied", "GRANT SELECT ON shop.orders TO dblog")
    dump_store.fail_unplanned(shop.state, dump_store.read_dump(shop.state, refused), refusal)
    lines = run("dumps").stdout.splitlines()
    place = next(number for number, text in enumerate(lines) if text.startswith(waiting))
    assert lines[place + 2] == "  held: it waits for the capture, or for `dblog work`, to plan it"
    place = next(number for number, text in enumerate(lines) if text.startswith(refused))
    assert lines[place + 2 :][:2] == ["  error: shop.orders: SELECT is denied", f"  fix: {refusal.fix}"]


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
