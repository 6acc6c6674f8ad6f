"""Headless Chromium for tests of pages: nothing is fetched, the console is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = [shutil.which(name) or "" for name in ("chromium", "chromedriver")]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
needs_chromium = pytest.mark.skipif(not all(PROGRAMS), reason="needs chromium and chromedriver (Debian packages)")


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS[0]
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS[1]))
    try:
        yield browser
    finally:
        browser.quit()


def errors(browser: Any) -> list[str]:
    """What the console holds since it was last read, but for remarks."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
