"""Find or install a Chromium for the page tests; write its path, or why there is none, to the file named."""

import os
import pathlib
import shutil
import subprocess
import sys

DEBIAN_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def on_path() -> str | None:
    return next((found for name in DEBIAN_NAMES if (found := shutil.which(name))), None)


def run(*command: str) -> str:
    """Run a command; an empty string if it worked, else the last line of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    said = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else f"{' '.join(command)}: {said[-1] if said else 'failed'}"


def from_debian() -> str:
    return run("apt-get", "update", "-qq") or run("apt-get", "install", "-y", "-qq", "chromium")


def from_playwright() -> str:
    trouble = run(sys.executable, "-m", "playwright", "install", "chromium")
    if trouble:
        return trouble
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        return play.chromium.executable_path


def find() -> str:
    found = on_path()
    if found:
        return found
    if hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        return from_debian() or on_path() or "apt-get installed chromium, but it is not on the PATH"
    return from_playwright()


if __name__ == "__main__":
    answer = find()
    pathlib.Path(sys.argv[1]).write_text(answer)
    print(f"Browser for the page tests: {answer}")
