"""A dump that takes minutes, seen and changed on our page in Airflow's UI, and in Airflow itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Locator, Page, expect

from dblog_core import wiring
from dblog_core.dumps import dump_store, task_store
from dblog_core.errors import SourceUnavailable
from dblog_core.local.servers import airflow_settings
from dblog_core.model.task_id import TaskId
from dblog_core.state import recent_errors
from tests.airflow.own_page import ask_page, newest_failed_run, own_page
from tests.fix_airflow import CAPTURES, DUMP, Live
from tests.fix_airflow_lake import Merged
from tests.fix_browser import TALL, SignIn
from tests.growing_files import files_below
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)

DELAY_SECONDS = 0.5
SEVERAL = 8  # chunks
_KEYS = count(50_001)

Keep = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def slow_runs(live: Live) -> Iterator[list[str]]:
    """The runs of slow dumps, the newest last. The tests share one for as long as none of them ends it."""
    runs: list[str] = []
    yield runs
    for run in runs:
        live.client.mark(DUMP, run, "failed")
        live.end_of(DUMP, run)


@pytest.fixture
def slow_dump(live: Live, slow_runs: list[str]) -> str:
    """The run of a dump that takes minutes, and has placed a chunk."""
    live.capturing()
    if not slow_runs or _state(live, slow_runs[-1]) != "running":
        conf = {"tables": [live.table("orders")], "chunk_size": 1, "delay_seconds": DELAY_SECONDS, "workers": 1}
        slow_runs.append(live.client.trigger(DUMP, conf))
    live.begun_dump(slow_runs[-1])
    return slow_runs[-1]


def _state(live: Live, run: str) -> str:
    dump = live.dump_of(run)
    return dump.state if dump else "none"


def _dump_id(live: Live, run: str) -> str:
    dump = live.dump_of(run)
    assert dump is not None
    return dump.id


@pytest.mark.one_of(6)
def test_the_page_tells_of_capture_dumps_lake_and_errors(
    live: Live, sign_in: SignIn, merged_lake: Merged, slow_dump: str, picture: Keep
) -> None:
    live.capturing()
    with closing(wiring.open_state(live.config)) as store:
        failure = SourceUnavailable("no route to host", where="db.example:3306", fix="see that the server runs")
        recent_errors.record(store, "capture", failure, 1.8e9)
    page = sign_in(size=TALL)
    page.goto("/plugin/dblog")
    dumps_page = own_page(page)
    # Who stands still for some seconds leads no more.
    wait_until(
        lambda: (now := live.leader()) and dumps_page.get_by_text(f"{now.holder}, epoch {now.epoch}").is_visible(),
        "the page tells who leads",
        describe=live.leader,
    )
    expect(dumps_page.locator("#lag")).to_contain_text("behind")
    expect(dumps_page.locator("#chart path").first).to_be_attached()
    expect(dumps_page.locator("#errors")).to_contain_text("db.example:3306: no route to host")
    expect(dumps_page.locator("#errors")).to_contain_text("fix: see that the server runs")
    expect(dumps_page.get_by_text("broken.toml", exact=False)).to_be_visible()
    expect(dumps_page.locator("#tables")).to_contain_text(live.table("orders"))
    bar = dumps_page.locator(f"[data-dump='{_dump_id(live, slow_dump)}'] [role=progressbar]")
    before = bar.get_attribute("aria-valuenow")
    picture(page, "page")
    wait_until(
        lambda: bar.get_attribute("aria-valuenow") != before,
        "the page refreshes itself, and the bar grows",
        describe=lambda: (before, live.dump_of(slow_dump)),
    )


@pytest.mark.one_of(6)
def test_a_dump_is_paused_retuned_resumed_and_cancelled_by_clicks(live: Live, sign_in: SignIn, slow_dump: str) -> None:
    """Paused or cancelled, it reads and places no more chunks, while the log flows on."""
    dump = _dump_id(live, slow_dump)
    page = sign_in()
    page.goto(f"/dags/{DUMP}/runs/{slow_dump}")
    page.locator(f"a[href='/dags/{DUMP}/runs/{slow_dump}/plugin/dblog-run']").click()
    buttons = own_page(page).locator(f"[data-dump='{dump}']")
    seconds = _seconds_of_several_chunks(live, dump)
    _click(buttons, "Pause")
    _wait_for_state(live, slow_dump, "paused")
    wait_until(lambda: "paused" in _events(live, dump), "the pause is told", describe=lambda: _events(live, dump))
    chunks = _check_stands_still(live, dump, seconds)
    assert _state(live, slow_dump) == "paused"
    buttons.get_by_label("rows/s").fill("77")
    _click(buttons, "Set")
    wait_until(lambda: (d := live.dump_of(slow_dump)) and d.options.rate == 77, "the rate is set")
    _click(buttons, "Resume")
    _wait_for_state(live, slow_dump, "running")
    wait_until(
        lambda: _chunks(live, dump).placed > chunks.placed + 1,
        "the dump goes on",
        describe=lambda: (chunks, _chunks(live, dump)),
    )
    # Who is told looks now and then: of two changes between two looks it sees the second.
    wait_until(lambda: "resumed" in _events(live, dump), "the resumption is told", describe=lambda: _events(live, dump))
    _click(buttons, "Cancel")
    _wait_for_state(live, slow_dump, "cancelled")
    _check_stands_still(live, dump, seconds)
    expect(buttons.get_by_text("cancelled", exact=True)).to_be_visible()
    assert buttons.get_by_role("button").count() == 0
    _check_run_fails(live, slow_dump)
    order = ["requested", "started", "paused", "resumed", "aborted"]
    wait_until(
        lambda: _events(live, dump) == order, "Airflow's notifiers are told", describe=lambda: _events(live, dump)
    )


@pytest.mark.one_of(4)
def test_a_dump_that_fails_ends_its_run_as_failed(live: Live, slow_dump: str) -> None:
    with closing(wiring.open_state(live.config)) as state:
        dump = dump_store.read_dump(state, _dump_id(live, slow_dump))
        for task in dump.tasks:
            task_store.fail_task(state, TaskId(dump.id, task.number), "the column is gone")
        dump_store.list_unfinished_dumps(state)  # whoever looks records that it is over, and its worker learns it
    _check_run_fails(live, slow_dump)
    assert _state(live, slow_dump) == "failed"
    run = newest_failed_run(live, DUMP, slow_dump)
    assert run["part"] == "dump" and "close" in run["tasks"]


def _check_run_fails(live: Live, run: str) -> None:
    """Its own state says so, and Airflow's notifier is told."""
    assert live.end_of(DUMP, run) == "failed"
    wait_until(
        lambda: live.notified_file.exists() and run in live.notified_file.read_text().split(),
        "the notifier of failures is told",
    )


def test_marking_the_run_as_failed_cancels_its_dump(live: Live, slow_dump: str) -> None:
    dump = _dump_id(live, slow_dump)
    seconds = _seconds_of_several_chunks(live, dump)
    live.client.mark(DUMP, slow_dump, "failed")
    _wait_for_state(live, slow_dump, "cancelled")
    assert live.end_of(DUMP, slow_dump) == "failed"
    wait_until(
        lambda: "running" not in str(live.task_states(DUMP, slow_dump)),
        "no task of the run is left",
        describe=lambda: live.task_states(DUMP, slow_dump),
    )
    _check_stands_still(live, dump, seconds)


@pytest.mark.one_of(2)
def test_the_page_says_that_captures_are_paused_and_unpauses_them(live: Live, sign_in: SignIn, picture: Keep) -> None:
    live.capturing()
    page = sign_in()
    try:
        for dag in CAPTURES:
            live.client.pause(dag)
        page.goto("/plugin/dblog")
        dumps_page = own_page(page)
        expect(dumps_page.locator("#paused")).to_contain_text("The captures are paused in Airflow")
        picture(page, "page-paused")
        dumps_page.locator("#unpause").click()
        expect(dumps_page.locator("#paused")).to_have_count(0)
        assert [live.client.get(f"/dags/{dag}")["is_paused"] for dag in CAPTURES] == [False, False]
    finally:  # other tests share the captures
        for dag in CAPTURES:
            live.client.pause(dag, False)


@pytest.mark.one_of(6)
def test_a_guest_sees_all_and_changes_nothing(live: Live, sign_in: SignIn, slow_dump: str) -> None:
    dump = _dump_id(live, slow_dump)
    page = sign_in(airflow_settings.GUEST)
    page.goto(f"/dags/{DUMP}")
    page.locator(f"a[href='/dags/{DUMP}/plugin/dblog-dag']").click()
    card = own_page(page).locator(f"[data-dump='{dump}']")
    expect(card.get_by_text("chunks")).to_be_visible()
    assert card.get_by_role("button").count() == 0
    status, answer = ask_page(live, "POST", f"sources/live/dumps/{dump}/cancel", user=airflow_settings.GUEST)
    assert status == 403
    assert "dblog_live_dump" in answer["detail"]
    assert _state(live, slow_dump) == "running"


def _click(buttons: Locator, name: str) -> None:
    buttons.get_by_role("button", name=name).click()


def _wait_for_state(live: Live, run: str, state: str) -> None:
    wait_until(lambda: _state(live, run) == state, f"the dump is {state}", describe=lambda: _state(live, run))


def _events(live: Live, dump: str) -> list[str]:
    """What Airflow's notifiers were told of a dump beside its chunks, each once."""
    return list(dict.fromkeys(n["event"] for n in live.notices_of(dump) if n["event"] != "chunk"))


class Chunks(NamedTuple):
    """How many chunks of a dump are read, and how many are placed in the super-changelog."""

    read: int
    placed: int


def _chunks(live: Live, dump: str) -> Chunks:
    files = files_below(Path(live.config.staging.path, "live", "chunks", dump))
    placed = [c for m in wiring.open_staging(live.config).manifests() for c in m.chunks if c.dump == dump]
    return Chunks(sum(file.suffix == ".parquet" for file in files), len(placed))


def _seconds_of_several_chunks(live: Live, dump: str) -> float:
    """How long a dump takes for several chunks, on this machine as it is now."""
    began = time.monotonic()
    goal = _chunks(live, dump).read + SEVERAL
    wait_until(lambda: _chunks(live, dump).read >= goal, "the dump goes on", describe=lambda: _chunks(live, dump))
    return time.monotonic() - began


def _check_stands_still(live: Live, dump: str, seconds: float) -> Chunks:
    """For so long a dump reads no chunk but the one that its worker may have begun, and places no other, while the log
    brings rows; the chunks that it has then."""
    before = _chunks(live, dump)
    end = time.monotonic() + seconds
    rows = 0
    while time.monotonic() < end or rows < 2:
        live.write_and_wait("orders", next(_KEYS), "the log flows on")
        rows += 1
    after = _chunks(live, dump)
    assert max(after.read, after.placed) <= before.read + 1, (before, after)
    return after
