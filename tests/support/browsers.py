"""Debian's Chromium without a screen or a network of its own, driven by selenium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = [shutil.which(name) or "" for name in ("chromium", "chromedriver")]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-prefers-reduced-motion",
)  # fmt: skip
needs_chromium = pytest.mark.skipif(not all(PROGRAMS), reason="needs chromium and chromedriver (Debian packages)")


@contextmanager
def chromium(profile: Path) -> Iterator:
    """A driver, ended at the end of the block; its console is kept."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS[0]
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS[1]))
    load = driver.get

    def get(url: str) -> None:
        """Load the page and wait for its scripts: `get` may return before a page from a file is complete."""
        load(url)
        until(driver, lambda: driver.execute_script("return document.readyState") == "complete")

    driver.get = get
    try:
        yield driver
    finally:
        driver.quit()


def width(driver, pixels: int, height: int = 900) -> None:
    """Of the page, which may be less than Chromium's smallest window."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": pixels < 600},
    )


def wider_than(driver, pixels: int) -> int:
    """By how many pixels the page is wider than a window of this width; 0 or less where nothing scrolls sideways."""
    width(driver, pixels)
    return int(driver.execute_script("return document.documentElement.scrollWidth - innerWidth"))


def scheme(driver, name: str) -> None:
    """`light` or `dark`, as the reader's system asks for."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})


def complaints(driver) -> list[str]:
    """What stands in the console as an error."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def click(page, css: str) -> None:
    element = page.find_element("css selector", css)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def choose(page, box: str, words: str) -> None:
    """Selects the option of these words in the list with this id."""
    from selenium.webdriver.support.select import Select

    Select(page.find_element("id", box)).select_by_visible_text(words)


def until(page, holds: Callable[[], object], seconds: int = 60) -> Any:
    """Waits until it holds; what it returns. A chart or list may be drawn anew meanwhile."""
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
    from selenium.webdriver.support.wait import WebDriverWait

    passing = [StaleElementReferenceException, NoSuchElementException]
    return WebDriverWait(page, seconds, ignored_exceptions=passing).until(lambda _: holds())


def seen(page, css: str) -> str:
    """The text of an element, none of it folded away."""
    element = page.find_element("css selector", css)
    assert element.is_displayed()
    return " ".join(element.text.split())
