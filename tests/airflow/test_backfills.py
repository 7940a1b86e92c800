"""Backfills that somebody starts in Airflow's UI mend what another writer has damaged in the lake."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.airflow.live_source import SLICES
from tests.airflow.own_page import own_page
from tests.fix_airflow import REPAIR, REPLAY, SPARK_SECONDS, Live
from tests.fix_airflow_lake import GONE, PARCELS, LakeTable, Merged, Row
from tests.fix_browser import SignIn
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(2400), pytest.mark.one_of(10)]

DAY = dt.timedelta(days=1)
# in each hour, the parcels that the other writer changes
_UPDATED = 7
_DELETED = 9
_ADDED = 99  # and the one of the second hour that it makes
Rows = dict[int, Row]


def test_backfills_by_clicks_mend_the_rows_that_another_writer_has_damaged(
    live: Live, merged_lake: Merged, sign_in: SignIn, picture: Callable[[Page, str], None]
) -> None:
    """A replay mends those that changed in its hour, and a repair of as many days as there are slices all others."""
    intact = merged_lake.parcels.rows()
    _damage(merged_lake.parcels, intact, above=0, added=GONE)
    _damage(merged_lake.parcels, intact, above=100, added=100 + _ADDED)
    damaged = merged_lake.parcels.rows()
    assert _differences(intact, damaged) == {_UPDATED, _DELETED, GONE, 107, 109, 199}

    page = sign_in()
    (replay,) = _backfill(live, page, REPLAY, merged_lake.first_hour, merged_lake.first_hour, runs=1, picture=picture)
    (parcels,) = [t for t in _result(live, REPLAY, replay) if t["table"] == live.table("parcels")]
    written = {name: parcels[name] for name in ("keys", "inserted", "updated", "deleted")}
    assert written == {"keys": PARCELS, "inserted": 1, "updated": 1, "deleted": 1}
    in_hour = {key: row for key, row in intact.items() if key in merged_lake.first_keys}
    beyond = {key: row for key, row in damaged.items() if key not in merged_lake.first_keys}
    assert merged_lake.parcels.rows() == in_hour | beyond, "what changed in the hour is as it was, and no other row is"

    last = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0) - 3 * DAY
    repairs = _backfill(live, page, REPAIR, last - (SLICES - 1) * DAY, last, runs=SLICES)
    mended = merged_lake.parcels.rows()
    assert _differences(intact, mended) <= {107, 109}, "a row that was right is not written"
    assert {key: row["note"] for key, row in mended.items()} == dict(live.database.query("SELECT * FROM parcels"))
    _check_all_slices(live, repairs)
    _check_notes(live, replay, repairs)
    page.goto("/plugin/dblog")
    checks = own_page(page).locator("#checks")
    expect(checks).to_contain_text(f"slice {SLICES} of {SLICES}: ")
    picture(page, "page-checks")


def _check_notes(live: Live, replay: str, repairs: list[str]) -> None:
    """Each run says for itself what it has compared and mended."""
    notes = {run["dag_run_id"]: run["note"] for dag in (REPLAY, REPAIR) for run in live.client.runs(dag)}
    assert notes[replay].endswith(": inserted 1; updated 1; deleted 1"), notes[replay]
    notes_of_repairs = [notes[run] for run in repairs]
    assert sorted(text.partition(":")[0] for text in notes_of_repairs) == [
        f"slice {n} of {SLICES}" for n in range(1, SLICES + 1)
    ]
    assert any("repaired" in text for text in notes_of_repairs), notes_of_repairs


def _damage(table: LakeTable, intact: Rows, *, above: int, added: int) -> None:
    table.update(above + _UPDATED, "damaged")
    table.delete(above + _DELETED)
    table.add([{**intact[above + _UPDATED], "id": added}])


def _differences(before: Rows, after: Rows) -> set[int]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _check_all_slices(live: Live, repairs: list[str]) -> None:
    """The runs have compared every slice, and all rows of every table."""
    logs = [live.client.log(REPAIR, run, "repair") for run in repairs]
    numbers = [int(number) for log in logs for number in set(re.findall(rf"slice (\d) of {SLICES}", log))]
    assert sorted(numbers) == list(range(1, SLICES + 1))
    tables = [table for run in repairs for table in live.client.xcom(REPAIR, run, "repair", "tables")]
    rows = {table["table"]: 0 for table in tables}
    for table in tables:
        rows[table["table"]] += table["rows"]
    assert rows[live.table("orders")] >= 500
    assert rows[live.table("countries")] == 3
    assert rows[live.table("parcels")] == 2 * PARCELS - 1


def _result(live: Live, dag: str, run: str) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = live.client.xcom(dag, run, dag.rpartition("_")[2])["tables"]
    return tables


def _backfill(
    live: Live,
    page: Page,
    dag: str,
    first: dt.datetime,
    last: dt.datetime,
    *,
    runs: int,
    picture: Callable[[Page, str], None] | None = None,
) -> list[str]:
    """Starts a backfill by clicks, of the intervals that begin between `first` and `last`; its runs, once they have
    ended well."""
    live.unpause(dag)
    page.goto(f"/dags/{dag}")
    page.get_by_test_id("trigger-dag-button").click()
    page.get_by_text("Backfill", exact=True).last.click()
    for moment in (first, last):
        _choose(page, moment)
    expect(page.get_by_text(re.compile(rf"^{runs} runs? will be triggered"))).to_be_visible()
    if picture is not None:
        picture(page, "backfill")
    with page.expect_response(lambda answer: answer.url.endswith("/backfills") and answer.request.method == "POST"):
        page.get_by_role("button", name="Run Backfill").click()
    page.goto("about:blank")  # the page of a DAG asks for news all the time that its runs take

    def states() -> dict[str, str]:
        every = [run for run in live.client.runs(dag) if run["run_type"] == "backfill"]
        runs_within = [run for run in every if first <= dt.datetime.fromisoformat(run["data_interval_start"]) <= last]
        return {run["dag_run_id"]: run["state"] for run in runs_within}

    def successful_runs() -> list[str]:
        now = states()
        assert "failed" not in now.values(), now
        return list(now) if list(now.values()) == runs * ["success"] else []

    return wait_until(
        successful_runs, f"the backfill of {dag} has ended", timeout=runs * SPARK_SECONDS, describe=states
    )


def _choose(page: Page, moment: dt.datetime) -> None:
    """One end of the interval, in the form of a backfill."""
    page.get_by_text("Select date and time").first.click()
    for placeholder, text in (("YYYY/MM/DD", f"{moment:%Y/%m/%d}"), ("HH:mm", f"{moment:%H:%M}")):
        field = page.get_by_placeholder(placeholder).last
        field.fill(text)
        field.press("Enter")
    page.keyboard.press("Escape")
