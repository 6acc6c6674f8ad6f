"""Headless Chromium, one for the tests of a file; a test asks for nothing of its own but the address of a board."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browsers import chromium, complaints


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        driver.set_window_size(1440, 1000)
        driver.set_script_timeout(120)
        yield driver


@pytest.fixture
def board(browser: Any, address: str) -> Iterator[Any]:
    """The board that stands at `address`, freshly visited; no error may be left in the console."""
    browser.get("about:blank")
    complaints(browser)
    browser.get(address)
    yield browser
    assert complaints(browser) == []
