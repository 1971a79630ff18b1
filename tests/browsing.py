"""What the tests of pages share: a Chromium to open them in, waiting, and the contrast of words."""

import os
import pathlib
import shutil
import time
from typing import Any

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WINDOW = {"width": 1280, "height": 720}


def browser_or_reason() -> str:
    """What `make test` found: a path, or why there is none; without make, a Chromium on the PATH."""
    found = pathlib.Path(__file__).parents[1] / ".venv" / "browser.txt"
    said = found.read_text().strip() if found.exists() else ""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if os.path.isfile(said):
        return said
    return next(filter(None, map(shutil.which, names)), None) or said or "no Chromium on the PATH"


def until(page: Any, condition: str, *, seconds: float = 30.0) -> None:
    """Wait until a condition in JavaScript holds, asking anew each time.

    Playwright's own `wait_for_function` looks once from outside; what it then leaves waiting in the page is
    evaluated by the page, whose policy forbids that: it worked only where nothing had to be waited for.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} seconds: {condition}")
        page.wait_for_timeout(20)


def contrasts(page: Any, words: str) -> list[float]:
    """The contrast (WCAG) of every element that the selector finds, against what lies behind it."""
    return page.evaluate(
        """(words) => {
          const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          const light = (colour) => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map((v) => linear(v / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ground = (e) => {
            const colour = getComputedStyle(e).backgroundColor;
            return /, 0\\)|transparent/.test(colour) ? ground(e.parentElement) : colour;
          };
          return [...document.querySelectorAll(words)].map((e) => {
            const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          });
        }""",
        words,
    )


def page_colour(page: Any) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")
