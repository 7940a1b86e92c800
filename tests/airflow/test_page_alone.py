"""The page in a browser over answers that are made up: what it makes of names, figures and slips. No Airflow runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, ViewportSize, expect

from dblog_core.airflow import ui_page as module
from dblog_core.model.schema import TableName
from tests.fix_browser import PHONE, WIDE
from tests.worst_names import EVERY

Keep = Callable[[Page, str], None]
NOW = time.time()
NAMES = [str(TableName("shop.eu" if number % 2 else "shop", name)) for number, name in enumerate(EVERY)]
DUMP = {
    "id": "20261124T081157-64b142", "state": "running", "tables": NAMES, "rows": 1, "estimated_rows": 2, "chunks": 1,
    "evicted": 0, "rows_per_second": 12.5, "seconds_left": 90, "held": None, "error": None, "requested_by": "user",
    "options": {"rate": 0, "workers": 2, "chunk_size": 1000, "delay": 0}, "tables_gone": 0,
}  # fmt: skip
STATUS = {
    "source": "shop", "kind": "mysql", "now": NOW, "outside": False, "leader": {"id": "vm:1", "epoch": 3},
    "lag_seconds": 0.2, "rows_per_second": 100.0, "offset": 5000, "position": "binlog.000003:1234", "windows": [],
    "captures": [
        {"dag": "dblog_shop_capture", "paused": True, "ends": (NOW + 600) * 1e6},
        {"dag": "dblog_shop_capture_standby", "paused": True, "ends": (NOW + 300) * 1e6},
    ],
    "lag": [[NOW - 600 + 10 * n, 0.1 + (n % 7) / 10, 5] for n in range(60)],
    "merge": {"offset": 4000, "lag_seconds": 3.0},
    "storage": {
        "staging": {"log": {"files": 3, "bytes": 1_000_000}}, "retention": {"sealed_at": None, "held": []},
        "tables": [{"table": NAMES[0], "files": 1, "bytes": 100, "rows": 2}],
    },
    "tables": [
        {"table": name, "state": "ok", "error": None, "captured": True, "verified": None, "lake_offset": 1}
        for name in NAMES
    ],
    "dumps": [DUMP, {**DUMP, "id": "old", "state": "done", "tables": ["shop.a"], "chunks": 3, "tables_gone": 199}],
    "more_dumps": 7, "errors": [], "failed_runs": [], "may_control": True,
    "checks": [
        {"dag": "dblog_shop_repair", "run": f"backfill__{n}", "part": "repair", "at": (NOW - 60 * n) * 1e6,
         "of": (NOW - 86_400 * n) * 1e6, "state": "success",
         "note": f"slice {n} of 30: compared 70,000 rows of 5 tables: equal"} for n in range(1, 4)
    ],
}  # fmt: skip


@pytest.fixture
def show_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page over an answer; what it is asked to change is refused."""
    windows = []

    def answer(route: Route, content: dict[str, Any]) -> None:
        path = urlsplit(route.request.url).path
        if path == "/dblog/":
            route.fulfill(body=Path(module.__file__).with_name("ui_page.html").read_text(), content_type="text/html")
        elif route.request.method != "GET":
            refused = {"detail": "workers = 999 is out of range", "fix": "give a number from 1 to 64"}
            route.fulfill(status=409, body=json.dumps(refused), content_type="application/json")
        elif path == "/dblog/sources":
            route.fulfill(json={"sources": ["shop"], "faults": [], "meant": None})
        else:
            route.fulfill(json=content)

    def open_page(status: dict[str, Any] = STATUS, *, size: ViewportSize = WIDE, dark: bool = False) -> Page:
        window = chromium.new_context(viewport=size, color_scheme="dark" if dark else "light", timezone_id="UTC")
        windows.append(window)
        page = window.new_page()
        page.route("**/*", lambda route: answer(route, status))
        page.goto("http://dblog.test/dblog/")
        expect(page.locator("#tables")).to_be_visible()
        return page

    yield open_page
    for window in windows:
        window.close()


def test_names_are_shown_as_they_are_and_figures_with_their_words(
    show_page: Callable[..., Page], picture: Keep
) -> None:
    page = show_page()
    assert page.locator("#tables strong").all_text_contents() == NAMES
    first, second = page.locator("#dumps .dump").all()
    expect(first).to_contain_text(f"and {len(NAMES) - 8} more")
    expect(first).to_contain_text("1 of about 2 rows · 1 chunk · 0 evicted")
    expect(second).to_contain_text("3 chunks · 0 evicted · 199 tables dropped meanwhile")
    expect(page.locator("#dumps")).to_contain_text("7 more that are over")
    expect(page.locator("main")).to_contain_text("–: rows and sizes are counted by the maintenance")
    expect(page.locator("#checks")).to_contain_text("slice 2 of 30: compared 70,000 rows of 5 tables: equal")
    ends = time.strftime("%H:%M", time.gmtime(NOW + 600))
    expect(page.locator("#paused")).to_contain_text(f"The captures are paused in Airflow: the last run ends at {ends}")
    picture(page, "alone")


def test_a_slip_in_a_number_is_told_beside_its_field(show_page: Callable[..., Page]) -> None:
    page = show_page()
    dump = page.locator("#dumps .dump").first
    dump.get_by_label("workers").fill("999")
    dump.get_by_role("button", name="Set").click()
    expect(dump.get_by_role("alert")).to_contain_text("workers = 999 is out of range (fix: give a number from 1 to 64)")
    expect(page.locator("#told")).to_contain_text("out of range")
    dump.get_by_label("workers").press_sequentially("-")
    expect(dump.get_by_role("alert")).to_have_text("workers: this is no number")


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_its_chart_can_be_read(show_page: Callable[..., Page], picture: Keep, dark: bool) -> None:
    page = show_page(size=PHONE, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    picture(page, f"alone-phone-{'dark' if dark else 'light'}")
    # Each in one look: the page draws the chart anew each second, and one that has left the page has no size.
    page.wait_for_function("document.querySelector('#chart text').getBoundingClientRect().height >= 11")
    page.set_viewport_size(WIDE)
    page.wait_for_function(
        "(it => it.clientWidth > 0 && it.viewBox.baseVal.width === it.clientWidth)(document.querySelector('#chart'))"
    )
