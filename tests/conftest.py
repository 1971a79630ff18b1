"""Fixtures of several test files, the order of the files, and what keeps the collector of garbage short."""

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.browsing import FLAGS, WINDOW, browser_or_reason

hypothesis.settings.register_profile("patient", deadline=None)  # on a busy machine any example may take long
hypothesis.settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers begin with files of slow tests, then those of many: the last are short, and nobody waits."""
    if not hasattr(config, "workerinput"):
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -tests[item.path], item.path))


def pytest_collection_finish() -> None:
    """What was imported stays: a collection looks at what came later, in no time instead of 0.3 seconds."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = browser_or_reason()
    if not os.path.isfile(found):
        pytest.skip(f"no browser for the page tests: {found}")
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def tabs() -> list[Any]:
    """Pages that wait for the next test: a new one starts a process, and takes three times as long."""
    return []


@pytest.fixture
def visit(browser: Any, tabs: list[Any]) -> Iterator[Callable[..., Any]]:
    """Open a file as a page; at the end, no error was logged and nothing but the file was asked for."""
    pages, addresses, requests, troubles = [], set(), [], []
    heard = {
        "request": lambda request: requests.append(request.url.partition("#")[0]),
        "console": lambda message: troubles.append(message.text),
        "pageerror": lambda error: troubles.append(str(error)),
    }

    def opened(path: Path, *, color_scheme: str = "light", viewport: dict[str, int] = WINDOW) -> Any:
        page = tabs.pop() if tabs else browser.new_page()
        page.emulate_media(media="null", color_scheme=color_scheme)
        page.set_viewport_size(viewport)
        page.mouse.move(0, 0)
        for event, listener in heard.items():
            page.on(event, listener)
        page.goto(path.as_uri())
        pages.append(page)
        addresses.add(path.as_uri())
        return page

    yield opened
    for page in pages:
        for event, listener in heard.items():
            page.remove_listener(event, listener)
        page.goto("about:blank")
    tabs.extend(pages)
    assert troubles == []
    assert [url for url in requests if url not in addresses and not url.startswith("data:")] == []
