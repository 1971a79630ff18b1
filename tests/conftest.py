"""Fixtures of several test files."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browsing import FLAGS, browser_or_reason


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = browser_or_reason()
    if not os.path.isfile(found):
        pytest.skip(f"no browser for the page tests: {found}")
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()
