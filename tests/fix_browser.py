"""A headless Chromium, and pages of the live Airflow that somebody has signed in to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from dblog_core.local import airflow_settings, packages
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
    program = packages.program(packages.CHROMIUM, "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_SWITCHES))
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def windows(chromium: Browser, live: Live) -> Iterator[Callable[[str], BrowserContext]]:
    """The browser of each user, signed in once: Airflow's scripts are loaded once too, and then lie in its cache."""
    contexts: dict[str, BrowserContext] = {}

    def of_user(user: str) -> BrowserContext:
        if user not in contexts:
            context = chromium.new_context(base_url=live.server.url, locale="en-GB", timezone_id="UTC")
            context.set_default_timeout(PATIENCE_SECONDS * 1000)
            _sign_in(context, user, live.server.password(user))
            contexts[user] = context
        return contexts[user]

    yield of_user
    for context in contexts.values():
        context.close()


def _sign_in(context: BrowserContext, user: str, password: str) -> None:
    page = context.new_page()
    page.goto("/auth/login")
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", password)
    page.click("button[type=submit]")
    page.wait_for_url(lambda url: "/auth/login" not in url)
    page.close()


@pytest.fixture
def sign_in(windows: Callable[[str], BrowserContext]) -> Iterator[SignIn]:
    """Opens a page as the given user. What the pages' scripts complain of fails the test."""
    pages: list[Page] = []
    errors: list[str] = []

    def open_page(user: str = airflow_settings.USER, *, size: ViewportSize = WIDE) -> Page:
        page = windows(user).new_page()
        pages.append(page)
        page.set_viewport_size(size)
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not errors


@pytest.fixture
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Page, str], None]:
    """Keeps what a page looks like under a name: in `--pictures`, where the documentation has them, or nowhere."""
    directory = request.config.option.pictures or tmp_path

    def keep(page: Page, name: str) -> None:
        page.screenshot(path=Path(directory) / f"{name}.png", animations="disabled")

    return keep
