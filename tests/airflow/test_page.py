"""Our page in Airflow's UI, and the forms of our DAGs: looked at and clicked in a browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from dblog_core.local.servers import airflow_settings
from tests.airflow.approvals import large_dump
from tests.airflow.own_page import ask_page, own_page
from tests.fix_airflow import DUMP, REPAIR, REPLAY, SPARK_SECONDS, VERIFY, Live
from tests.fix_airflow_lake import Merged
from tests.fix_browser import PHONE, TALL, SignIn
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)

Keep = Callable[[Page, str], None]


def test_it_stands_behind_airflows_login(live: Live) -> None:
    for path in ("", "sources", "sources/live"):
        assert ask_page(live, "GET", path, user=None)[0] == 401
    admin = airflow_settings.USER
    answer = ask_page(live, "POST", "sources/live/dumps/x/cancel", user=admin, as_script=False)
    assert answer[0] == 403, "another site's form"
    assert ask_page(live, "GET", "sources/missing", user=admin)[0] == 404
    status, refusal = ask_page(live, "POST", "sources/live/dumps/missing/cancel", user=admin)
    assert status == 409 and "missing" in refusal["detail"] and refusal["fix"]
    assert ask_page(live, "POST", "sources/live/dumps/x", user=admin, body={"tables": 1})[0] == 422


def test_it_fits_a_phone(live: Live, sign_in: SignIn, picture: Keep) -> None:
    live.capturing()
    page = sign_in(size=PHONE)
    page.goto("/dblog/")
    expect(page.locator("#lag")).to_be_visible()
    picture(page, "page-phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off at the side"


@pytest.mark.one_of(4)
def test_a_dry_run_says_what_it_would_read_and_links_to_the_page_of_its_source(live: Live, sign_in: SignIn) -> None:
    run = live.client.trigger(DUMP, {"dry_run": True})
    assert live.end_of(DUMP, run) == "success"
    tables = live.client.xcom(DUMP, run, "plan", "plan")["tables"]
    assert {table["table"] for table in tables} == {live.table(name) for name in ("orders", "countries", "parcels")}
    assert live.dump_of(run) is None, "nothing is requested"
    page = sign_in()
    page.goto(f"/dags/{DUMP}/runs/{run}/tasks/plan/details")
    link = page.locator(f"a[href*='plugin/dblog?dag={DUMP}']").first.get_attribute("href")
    assert link is not None
    page.goto(link)
    expect(own_page(page).locator("#lag")).to_be_visible()


@pytest.mark.one_of(4)
def test_the_form_of_a_dump_takes_keys_line_by_line(live: Live, sign_in: SignIn, picture: Keep) -> None:
    live.capturing()
    page = sign_in(size=TALL)
    _open_form(page, DUMP)
    _choose_tables(page, live.table("countries"))
    picture(page, "dump-form")
    page.get_by_text("Pace", exact=True).click()
    picture(page, "dump-form-pace")
    page.get_by_text("Only some rows", exact=True).click()
    page.locator("[name=element_pks]").fill('de\n"fr"\nxx\n')
    picture(page, "dump-form-keys")
    run = _trigger(live, page, DUMP)
    assert live.end_of(DUMP, run) == "success"
    assert live.client.xcom(DUMP, run, "complete")["rows"] == 3
    lines = live.staged_lines(table=live.table("countries"), origin="dump")
    assert {line["key"]["code"]: line["op"] for line in lines[-3:]} == {"de": "r", "fr": "r", "xx": "d"}
    page.goto(f"/dags/{DUMP}/runs/{run}")
    expect(page.get_by_text("complete", exact=True).first).to_be_visible()
    picture(page, "dump-run")


@pytest.mark.one_of(4)
def test_a_verification_that_its_form_has_started_tells_the_rows_of_its_tables(
    live: Live, sign_in: SignIn, merged_lake: Merged, picture: Keep
) -> None:
    live.unpause(VERIFY)
    page = sign_in(size=TALL)
    _open_form(page, VERIFY)
    _choose_tables(page, live.table("orders"), live.table("countries"))
    picture(page, "verify-form")
    run = _trigger(live, page, VERIFY)
    assert live.end_of(VERIFY, run, timeout=SPARK_SECONDS) == "success"
    tables = live.client.xcom(VERIFY, run, "verify", "tables")
    assert {table["table"] for table in tables} == {live.table("orders"), live.table("countries")}
    assert all(table["missing_keys"] == table["extra_keys"] == table["different_keys"] == 0 for table in tables)
    assert sum(table["rows"] for table in tables) >= 503


@pytest.mark.one_of(4)
@pytest.mark.parametrize(
    ("dag", "fields"),
    [
        (REPLAY, {"from": "2026-11-21T14:00:00Z", "to": "2026-11-21T15:00:00Z"}),
        (REPAIR, {"slice": 1}),
    ],
    ids=["replay", "repair"],
)
def test_the_forms_of_the_lakes_dags_take_tables_and_more(
    live: Live, sign_in: SignIn, picture: Keep, dag: str, fields: dict[str, str | int]
) -> None:
    """What a run makes of them is shown without Airflow (`test_lake_tasks`), and by backfills. What somebody types is
    what the run gets, a slip as well, and an empty field starts none."""
    live.unpause(dag)
    page = sign_in(size=TALL)
    _open_form(page, dag)
    expect(page.locator("[name=element_tables]")).to_have_value("*.*")
    _choose_tables(page, "")
    expect(page.get_by_role("button", name="Trigger").last).to_be_disabled()
    typed = [live.table("parcels"), live.table("percels; DROP TABLE parcels")]
    _choose_tables(page, *typed)
    for name, value in fields.items():
        page.locator(f"[name=element_{name}]").fill(str(value))
    picture(page, f"{dag.rpartition('_')[2]}-form")
    run = _trigger(live, page, dag)
    live.client.mark(dag, run, "failed")
    conf = live.client.run(dag, run)["conf"]
    assert {name: conf[name] for name in ("tables", *fields)} == {"tables": typed, **fields}


def _open_form(page: Page, dag: str) -> None:
    page.goto(f"/dags/{dag}")
    page.get_by_test_id("trigger-dag-button").click()


def _choose_tables(page: Page, *tables: str) -> None:
    page.locator("[name=element_tables]").fill("\n".join(tables))


def _trigger(live: Live, page: Page, dag: str) -> str:
    """Triggers a run by the form that is open; the run."""
    earlier = {run["dag_run_id"] for run in live.client.runs(dag)}
    page.get_by_role("button", name="Trigger").last.click()

    def new_runs() -> list[str]:
        manual = [run["dag_run_id"] for run in live.client.runs(dag) if run["run_type"] == "manual"]
        return [run for run in manual if run not in earlier]

    (run,) = wait_until(new_runs, f"the form of {dag} has started a run", describe=lambda: live.client.runs(dag))
    page.goto("about:blank")  # the page of a DAG asks for news all the time that its run takes
    return run


@pytest.mark.one_of(4)
def test_a_connection_to_a_source_is_made_and_tested_in_its_own_form(
    live: Live, sign_in: SignIn, picture: Keep
) -> None:
    page = sign_in(size=TALL)
    server = live.database.server
    account = live.database.account
    page.goto("/connections")
    page.get_by_role("button", name="Add Connection").click()
    page.locator("[name=connection_id]").fill("shop_db")
    page.get_by_role("combobox").first.click()
    page.keyboard.type("DBLog source: MySQL")
    page.get_by_role("option", name="DBLog source: MySQL").click()  # once Airflow has said which types there are
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


@pytest.mark.one_of(4)
def test_a_large_dump_is_approved_by_a_click(live: Live, sign_in: SignIn, picture: Keep) -> None:
    run = large_dump(live)
    page = sign_in()
    page.goto(f"/dags/{DUMP}/runs/{run}/tasks/approve/required_actions")
    expect(page.get_by_text("Dump about 2,000 rows?")).to_be_visible()
    picture(page, "dump-approval")
    page.get_by_role("button", name="Approve").click()
    assert live.end_of(DUMP, run) == "success"
    dump = live.dump_of(run)
    assert dump is not None
    assert dump.state == "done"
