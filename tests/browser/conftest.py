"""A real Chromium that opens the page, presses Speak and listens."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from tests.browser.visitor import Visitor
from tests.fakes import NAMED_SPEAKERS, FakeSpeechEngine, served

_TAP = (Path(__file__).parent / "tap.js").read_text()
_CHROMIUM = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)

expect.set_options(timeout=6_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def engine() -> FakeSpeechEngine:
    return FakeSpeechEngine(NAMED_SPEAKERS)


@pytest.fixture(scope="module")
def url(engine: FakeSpeechEngine) -> Iterator[str]:
    with served(engine) as url:
        yield url


# Not per session: Playwright's event loop would stay in the way of asyncio tests that run later.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=_CHROMIUM,
            args=["--no-sandbox", "--host-resolver-rules=MAP *.test 127.0.0.1"],
        )
        yield chromium
        chromium.close()


def new_context(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.add_init_script(_TAP)
    return context


# One per module: its cache spares the tests most of the page's loading.
@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = new_context(browser)
    yield context
    context.close()


@pytest.fixture(autouse=True)
def closed_pages(context: BrowserContext) -> Iterator[None]:
    yield
    for page in context.pages:
        page.close()


@pytest.fixture
def visit(context: BrowserContext) -> Callable[[str], Visitor]:
    """Opens the page at a URL and waits until it can speak."""

    return partial(Visitor.arriving, context)
