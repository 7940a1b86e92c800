"""A headless Chromium, and pages of the live Airflow that somebody has signed in to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, ViewportSize, expect, sync_playwright

from dblog_core.local.packages import trees
from dblog_core.local.servers import airflow_settings
from tests.fix_airflow import Live
from tests.waiting import PATIENCE_SECONDS

# Chromium has no sandbox as root; without the others it looks for Google's hosts at every start.
_SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-background-networking"),
    *("--disable-component-update", "--disable-quic", "--disable-dev-shm-usage"),
)
WIDE: ViewportSize = {"width": 1280, "height": 900}
TALL: ViewportSize = {"width": 1280, "height": 1300}
PHONE: ViewportSize = {"width": 390, "height": 844}

SignIn = Callable[..., Page]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    program = trees.program(trees.CHROMIUM, "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_SWITCHES))
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def logins(chromium: Browser, live: Live) -> Callable[[str], Any]:
    """The cookies of each user, who signs in once."""

    @functools.cache
    def of_user(user: str) -> Any:
        with _window(chromium, live) as window:
            page = window.new_page()
            page.goto("/auth/login")
            page.fill("input[name=username]", user)
            page.fill("input[name=password]", live.server.password(user))
            page.click("button[type=submit]")
            page.wait_for_url(lambda url: "/auth/login" not in url)
            return window.storage_state()

    return of_user


@contextmanager
def _window(chromium: Browser, live: Live, login: Any = None) -> Iterator[BrowserContext]:
    """With a cache and connections of its own: pages that another test has closed while they loaded leave some there
    for which the next page waits for ever."""
    window = chromium.new_context(
        base_url=live.server.url, locale="en-GB", timezone_id="UTC", storage_state=login, viewport=WIDE
    )
    window.set_default_timeout(PATIENCE_SECONDS * 1000)
    yield window
    window.close()


@pytest.fixture
def sign_in(chromium: Browser, live: Live, logins: Callable[[str], Any]) -> Iterator[SignIn]:
    """Opens a page as the given user. What the pages' scripts complain of fails the test."""
    errors: list[str] = []
    requests: set[Request] = set()
    with ExitStack() as windows:

        def open_page(user: str = airflow_settings.USER, *, size: ViewportSize = WIDE) -> Page:
            page = windows.enter_context(_window(chromium, live, logins(user))).new_page()
            page.set_viewport_size(size)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: requests.update({request}))
            page.on("requestfinished", lambda request: requests.difference_update({request}))
            page.on("requestfailed", lambda request: requests.difference_update({request}))
            return page

        yield open_page
        print("requests without an answer:", *(request.url for request in requests))
    assert not errors


@pytest.fixture
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Page, str], None]:
    """Keeps what a page looks like under a name: in `--pictures`, where the documentation has them, or nowhere."""
    directory = request.config.option.pictures or tmp_path

    def keep(page: Page, name: str) -> None:
        page.screenshot(path=Path(directory) / f"{name}.png", animations="disabled")

    return keep
