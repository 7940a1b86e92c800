"""A headless Chromium, and pages of the live Airflow that somebody has signed in to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from dblog_core.local import airflow_settings, packages
from tests.fix_airflow import Live

# Chromium has no sandbox as root; without the others it looks for Google's hosts at every start.
_SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-background-networking"),
    *("--disable-component-update", "--disable-quic", "--disable-dev-shm-usage"),
)
WIDE, TALL, PHONE = {"width": 1280, "height": 900}, {"width": 1280, "height": 1300}, {"width": 390, "height": 844}

SignIn = Callable[..., Page]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=60_000)  # the machine may be busy with other tests
    program = packages.program(packages.CHROMIUM, "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_SWITCHES))
        yield browser
        browser.close()


@pytest.fixture
def sign_in(chromium: Browser, live: Live) -> Iterator[SignIn]:
    """Opens a window in which the given user is signed in. What the pages' scripts complain of fails the test."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_page(user: str = airflow_settings.USER, *, size: dict[str, int] = WIDE) -> Page:
        context = chromium.new_context(base_url=live.server.url, viewport=size, locale="en-GB", timezone_id="UTC")
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto("/auth/login")
        page.fill("input[name=username]", user)
        page.fill("input[name=password]", live.server.password(user))
        page.click("button[type=submit]")
        page.wait_for_url(lambda url: "/auth/login" not in url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors


@pytest.fixture
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Page, str], None]:
    """Keeps what a page looks like under a name: in `--pictures`, where the documentation has them, or nowhere."""
    directory = request.config.option.pictures or tmp_path

    def keep(page: Page, name: str) -> None:
        page.screenshot(path=Path(directory) / f"{name}.png", animations="disabled")

    return keep
