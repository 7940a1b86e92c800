"""Our page in Airflow's UI, and the forms of our DAGs: looked at and clicked in a browser."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, Page, expect

from dblog_core import control, recent_errors, wiring
from dblog_core.errors import SourceUnavailable
from dblog_core.local import airflow_settings
from tests.airflow.test_live import (
    DUMP,
    PATIENCE,
    REPAIR,
    REPLAY,
    SLICES,
    VERIFY,
    capturing,
    dump_of,
    in_lake,
    large,
    until,
)
from tests.fix_airflow import Live
from tests.fix_browser import PHONE, TALL, SignIn

pytestmark = pytest.mark.timeout(600)

Keep = Callable[[Page, str], None]


@pytest.fixture
def merged(live: Live) -> None:
    in_lake(live)


@pytest.fixture
def slow_dump(live: Live) -> Iterator[str]:
    """The run of a dump that takes minutes; cancelled in the end."""
    capturing(live)
    conf = {"tables": [f"{live.database.name}.orders"], "chunk_size": 5, "delay_seconds": 1}
    run = live.client.trigger(DUMP, conf)
    until(lambda: (d := dump_of(live, run)) and d.chunks, "the dump has placed a chunk")
    yield run
    live.client.mark(DUMP, run, "failed")
    live.client.wait(DUMP, run, timeout=PATIENCE)


def ours(page: Page) -> FrameLocator:
    return page.frame_locator("iframe")


def state(live: Live, run: str) -> str:
    found = dump_of(live, run)
    return found.state if found else "none"


def call(
    live: Live, method: str, path: str, *, user: str | None, body: Any = None, ours: bool = True
) -> tuple[int, Any]:
    """Asks our page's own application; `ours`: with the header that our script sends."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(live.server.url).netloc, timeout=30)
    headers = {"Content-Type": "application/json", **({"X-Requested-With": "dblog"} if ours else {})}
    with closing(connection):
        if user is not None:
            asked = json.dumps({"username": user, "password": live.server.password(user)})
            connection.request("POST", "/auth/token", asked, {"Content-Type": "application/json"})
            headers["Authorization"] = f"Bearer {json.loads(connection.getresponse().read())['access_token']}"
        connection.request(method, f"/dblog/{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith(("{", "[")) else text


def test_the_page_tells_of_capture_dumps_lake_and_errors(
    live: Live, sign_in: SignIn, merged: None, slow_dump: str, picture: Keep
) -> None:
    leader, dump = capturing(live), dump_of(live, slow_dump)
    assert dump is not None
    with closing(wiring.open_state(live.config)) as store:
        failure = SourceUnavailable("no route to host", where="db.example:3306", fix="see that the server runs")
        recent_errors.record(store, "capture", failure, 1.8e9)
    page = sign_in(size=TALL)
    page.goto("/plugin/dblog")
    shown = ours(page)
    expect(shown.get_by_text(f"{leader.holder}, epoch {leader.epoch}")).to_be_visible()
    expect(shown.locator("#lag")).to_contain_text("behind")
    expect(shown.locator("#chart path").first).to_be_attached(timeout=PATIENCE * 1000)
    expect(shown.locator("#errors")).to_contain_text("db.example:3306: no route to host")
    expect(shown.locator("#errors")).to_contain_text("fix: see that the server runs")
    expect(shown.get_by_text("broken.toml", exact=False)).to_be_visible()
    expect(shown.locator("#tables")).to_contain_text(f"{live.database.name}.orders")
    bar = shown.locator(f"[data-dump='{dump.id}'] [role=progressbar]")
    before = bar.get_attribute("aria-valuenow")
    picture(page, "page")
    until(lambda: bar.get_attribute("aria-valuenow") != before, "the page refreshes itself, and the bar grows")


def test_a_dump_is_paused_retuned_resumed_and_cancelled_by_clicks(live: Live, sign_in: SignIn, slow_dump: str) -> None:
    dump = dump_of(live, slow_dump)
    assert dump is not None
    page = sign_in()
    page.goto(f"/dags/{DUMP}/runs/{slow_dump}")
    page.locator(f"a[href='/dags/{DUMP}/runs/{slow_dump}/plugin/dblog-run']").click()
    mine = ours(page).locator(f"[data-dump='{dump.id}']")
    mine.get_by_role("button", name="Pause").click()
    until(lambda: state(live, slow_dump) == "paused", "the dump is paused")
    mine.get_by_label("rows/s").fill("77")
    mine.get_by_role("button", name="Set").click()
    until(lambda: (d := dump_of(live, slow_dump)) and d.options["rate"] == 77, "the rate is set")
    mine.get_by_role("button", name="Resume").click()
    until(lambda: state(live, slow_dump) == "running", "the dump goes on")
    mine.get_by_role("button", name="Cancel").click()
    until(lambda: state(live, slow_dump) == "cancelled", "the dump is cancelled")
    expect(mine.get_by_text("cancelled", exact=True)).to_be_visible()
    assert mine.get_by_role("button").count() == 0


def test_a_guest_sees_all_and_changes_nothing(live: Live, sign_in: SignIn, slow_dump: str) -> None:
    dump = dump_of(live, slow_dump)
    assert dump is not None
    page = sign_in(airflow_settings.GUEST)
    page.goto(f"/dags/{DUMP}")
    page.locator(f"a[href='/dags/{DUMP}/plugin/dblog-dag']").click()
    mine = ours(page).locator(f"[data-dump='{dump.id}']")
    expect(mine.get_by_text("chunks")).to_be_visible()
    assert mine.get_by_role("button").count() == 0
    status, answer = call(live, "POST", f"sources/live/dumps/{dump.id}/cancel", user=airflow_settings.GUEST)
    assert status == 403 and "dblog_live_dump" in answer["detail"]
    assert state(live, slow_dump) == "running"


def test_it_stands_behind_airflows_login(live: Live) -> None:
    for path in ("", "sources", "sources/live"):
        assert call(live, "GET", path, user=None)[0] == 401
    admin = airflow_settings.USER
    assert call(live, "POST", "sources/live/dumps/x/cancel", user=admin, ours=False)[0] == 403, "another site's form"
    assert call(live, "GET", "sources/missing", user=admin)[0] == 404
    status, answer = call(live, "POST", "sources/live/dumps/missing/cancel", user=admin)
    assert status == 409 and "missing" in answer["detail"] and answer["fix"]
    assert call(live, "POST", "sources/live/dumps/x", user=admin, body={"tables": 1})[0] == 422


def test_it_fits_a_phone(live: Live, sign_in: SignIn, picture: Keep) -> None:
    capturing(live)
    page = sign_in(size=PHONE)
    page.goto("/dblog/")
    expect(page.locator("#lag")).to_be_visible()
    picture(page, "page-phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off at the side"


def test_a_task_that_is_over_links_to_the_page_of_its_source(live: Live, sign_in: SignIn) -> None:
    run = live.client.trigger(DUMP, {"dry_run": True})
    assert live.client.wait(DUMP, run, timeout=PATIENCE) == "success"
    page = sign_in()
    page.goto(f"/dags/{DUMP}/runs/{run}/tasks/plan/details")
    link = page.locator(f"a[href*='plugin/dblog?dag={DUMP}']").first.get_attribute("href")
    assert link is not None
    page.goto(link)
    expect(ours(page).locator("#lag")).to_be_visible()


def test_the_form_of_a_dump_takes_keys_line_by_line(live: Live, sign_in: SignIn, picture: Keep) -> None:
    capturing(live)
    page = sign_in(size=TALL)
    page.goto(f"/dags/{DUMP}")
    page.get_by_test_id("trigger-dag-button").click()
    only(page, f"{live.database.name}.countries")
    picture(page, "dump-form")
    page.get_by_text("Pace", exact=True).click()
    picture(page, "dump-form-pace")
    page.get_by_text("Only some rows", exact=True).click()
    page.locator("[name=element_pks]").fill("de\nfr")
    picture(page, "dump-form-keys")
    page.get_by_role("button", name="Trigger").last.click()

    def done() -> str | None:
        asked = [d.requested_by for d in dumps(live) if [t.listed for t in d.tasks] == [2] and d.state == "done"]
        return asked[-1] if asked else None

    run = until(done, "a dump of two keys is done").rpartition("/")[2]
    assert live.client.wait(DUMP, run, timeout=PATIENCE) == "success"
    page.goto(f"/dags/{DUMP}/runs/{run}")
    expect(page.get_by_text("complete", exact=True).first).to_be_visible()
    picture(page, "dump-run")


def only(page: Page, table: str) -> None:
    """Chooses a table in the form of a run."""
    tables = page.get_by_role("combobox", name="Select one or multiple values")
    tables.fill(table)
    tables.press("Enter")


@pytest.mark.in_turn("dag")
@pytest.mark.parametrize("dag", [VERIFY, REPAIR, REPLAY])
def test_the_forms_of_the_lakes_dags_take_a_table(live: Live, sign_in: SignIn, picture: Keep, dag: str) -> None:
    in_lake(live)
    live.client.pause(dag, False)
    table = f"{live.database.name}.orders"
    known = {run["dag_run_id"] for run in live.client.runs(dag)}
    page = sign_in(size=TALL)
    page.goto(f"/dags/{dag}")
    page.get_by_test_id("trigger-dag-button").click()
    only(page, table)
    if dag == REPAIR:
        page.locator("[name=element_slice]").fill("1")
    picture(page, f"{dag.rpartition('_')[2]}-form")
    page.get_by_role("button", name="Trigger").last.click()

    def triggered() -> list[str]:
        every = [run for run in live.client.runs(dag) if run["run_type"] == "manual"]
        return [run["dag_run_id"] for run in every if run["dag_run_id"] not in known]

    (run,) = until(triggered, "the run is there")
    assert live.client.wait(dag, run, timeout=400) == "success"
    task = dag.rpartition("_")[2]
    found = live.client.xcom(dag, run, task)["tables"] if dag == REPLAY else live.client.xcom(dag, run, task, "tables")
    names = {one["table"] for one in found}
    if dag == REPAIR:  # whose slice may have no row of the table
        assert f"slice 1 of {SLICES}" in live.client.log(dag, run, task) and names <= {table}
    else:
        assert names == {table}


def test_a_connection_to_a_source_is_made_and_tested_in_its_own_form(
    live: Live, sign_in: SignIn, picture: Keep
) -> None:
    page, server, account = sign_in(size=TALL), live.database.server, live.database.account
    page.goto("/connections")
    page.get_by_role("button", name="Add Connection").click()
    page.locator("[name=connection_id]").fill("shop_db")
    page.get_by_role("combobox").first.click()
    page.keyboard.type("DBLog source: MySQL")
    page.keyboard.press("Enter")
    for name, value in {"host": server.host, "login": account.user, "port": str(server.port)}.items():
        page.locator(f"[name={name}]").fill(value)
    page.locator("[name=password]").fill(account.password)
    page.get_by_text("Extra Fields", exact=True).click()
    expect(page.get_by_text("PEM file of its key, where the tasks run")).to_be_visible()
    picture(page, "connection")
    page.get_by_role("button", name="Save").click()
    test = page.get_by_role("button", name="Test Connection")
    test.click()
    expect(test.locator("svg[color=green]")).to_be_visible()


def test_a_large_dump_is_approved_by_a_click(live: Live, sign_in: SignIn, picture: Keep) -> None:
    run = large(live)
    page = sign_in()
    page.goto(f"/dags/{DUMP}/runs/{run}/tasks/approve/required_actions")
    expect(page.get_by_text("Dump about 2,000 rows?")).to_be_visible()
    picture(page, "dump-approval")
    page.get_by_role("button", name="Approve").click()
    assert live.client.wait(DUMP, run, timeout=PATIENCE) == "success"
    assert state(live, run) == "done"


def dumps(live: Live) -> list[control.DumpStatus]:
    with closing(wiring.open_state(live.config)) as store:
        return control.dumps(store)


def test_a_backfill_is_started_by_clicks(live: Live, sign_in: SignIn, picture: Keep) -> None:
    in_lake(live)
    live.client.pause(REPLAY, False)
    before = {run["dag_run_id"] for run in live.client.runs(REPLAY) if run["run_type"] == "backfill"}
    page = sign_in()
    page.goto(f"/dags/{REPLAY}")
    page.get_by_test_id("trigger-dag-button").click()
    page.get_by_text("Backfill", exact=True).last.click()
    for at in ("00:00", "01:00"):
        page.get_by_text("Select date and time").first.click()
        page.get_by_placeholder("YYYY/MM/DD").last.fill("2026/11/10")
        page.get_by_placeholder("YYYY/MM/DD").last.press("Enter")
        page.get_by_placeholder("HH:mm").last.fill(at)
        page.get_by_placeholder("HH:mm").last.press("Enter")
        page.keyboard.press("Escape")
    expect(page.get_by_text("2 runs will be triggered")).to_be_visible()
    picture(page, "backfill")
    page.get_by_role("button", name="Run Backfill").click()

    def started() -> bool:
        return any(run["dag_run_id"] not in before for run in live.client.runs(REPLAY) if run["run_type"] == "backfill")

    until(started, "the backfill has runs")
