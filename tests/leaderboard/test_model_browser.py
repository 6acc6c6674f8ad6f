"""A model's page in a real browser: what its charts draw, by keyboard alone, on a phone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import complaints, needs_chromium, until, wider_than
from model_site import TRACK, evidence, page, row
from site_rows import put, render

from leaderboard.image_radii import image_radii
from leaderboard.rank import rank

pytestmark = [pytest.mark.browser, needs_chromium]
HOSTILE = "<img src=x onerror='window.broken=1'></script><script>window.broken=2</script>\u202e" + "W" * 10_000


def opened(browser: Any, folder: Path) -> None:
    """The page, its charts drawn."""
    (folder.parent.parent / "times.js").write_text("const TIMES = {};\n")
    browser.get(f"file://{folder}/index.html")
    until(browser, lambda: not browser.find_elements("css selector", "figure.vega:not([data-drawn])"))


def marks(browser: Any, figure: str, kind: str) -> list[str]:
    """What each mark of a figure says of itself."""
    script = "return [...document.querySelectorAll(arguments[0])].map(m => m.getAttribute('aria-label') || '')"
    return list(browser.execute_script(script, f"#{figure} .mark-{kind}.role-mark > *"))


def test_charts_have_the_right_marks_and_values(browser, tmp_path) -> None:
    opened(browser, page(row(), tmp_path))
    row_radii = image_radii(evidence(row(), 60))
    shown = marks(browser, "sandwich", "rule")
    lines = (tmp_path / "site/models/Shown-v/sandwich.csv").read_text().splitlines()[1:]
    assert len(shown) == len(lines)
    for tips, line in zip(shown, lines, strict=True):
        radius, attacked, certified = map(float, line.split(",")[:3])
        assert f"l2 radius: {radius:.4f}" in tips
        assert f"robust, percent: {attacked:.1f}" in tips
        assert f"certified, percent: {certified:.1f}" in tips
    assert len(marks(browser, "sandwich", "line")) == 2
    assert len(marks(browser, "sandwich", "area")) == 1
    points = marks(browser, "radii", "symbol")
    assert len(points) == int(row_radii.right.sum())
    assert sum("never broken" in tips for tips in points) == int((row_radii.right & np.isinf(row_radii.broken)).sum())
    steps = browser.execute_script("return document.querySelector('#sandwich .mark-line path').getAttribute('d')")
    assert len(re.findall("[LHV]", steps)) >= len({line.split(",")[1] for line in lines}), "a step a value"
    assert complaints(browser) == []


def test_folded_parts_open_by_keyboard_and_a_phone_scrolls_one_way(browser, tmp_path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, page(row(title="x" * 10000, summary="y" * 10000), tmp_path))
    folded = browser.find_elements("css selector", "details:not([open])")
    assert len(folded) >= 5
    for details in folded:
        details.find_element("tag name", "summary").send_keys(Keys.ENTER)
        assert details.get_attribute("open") is not None
    for pixels in (390, 768, 1024, 1440):
        assert wider_than(browser, pixels) <= 0, f"at {pixels} pixels the page is wider than the window"
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_hostile_texts_are_words_and_widen_no_page(browser, tmp_path) -> None:
    paper = {"title": HOSTILE, "authors": HOSTILE, "year": 2026}
    records = [row(name, title=HOSTILE, summary=HOSTILE, paper=paper) for name in "AB"]
    for made in records:
        put(made, tmp_path, evidence(made, 20))
    render(tmp_path / "site", TRACK, rank(records, TRACK), tmp_path)
    (tmp_path / "site/times.js").write_text("const TIMES = {};\n")
    board, compare = "index.html", "compare/index.html#A-v,B-v"
    for place in (board, f"{board}#all=1", compare, "models/A-v/index.html", "papers/A/index.html"):
        for pixels in (390, 768, 1024, 1440):
            browser.get("about:blank")
            browser.get(f"file://{tmp_path}/site/{place}")
            if place == compare:
                until(browser, lambda: "2 models compared" in browser.find_element("id", "said").text)
            assert wider_than(browser, pixels) <= 0, (place, pixels)
            assert browser.execute_script("return window.broken") is None
            assert not browser.find_elements("css selector", "img[src=x]")
            if place.startswith(board):
                assert browser.execute_script("return document.querySelector('.board tbody tr').offsetHeight") < 900
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert complaints(browser) == []


def test_commands_are_copied_or_selected(browser, tmp_path) -> None:
    opened(browser, page(row(), tmp_path))
    places = browser.find_elements("css selector", ".copied")
    assert len(places) >= 5
    command = places[0].find_element("tag name", "code").text
    assert command == "rvb verify Shown-v --track digits"
    refuse = "navigator.clipboard.writeText = () => Promise.reject(new Error()); document.execCommand = () => false;"
    browser.execute_script(refuse)
    button = places[0].find_element("tag name", "button")
    assert "rvb verify" in button.get_attribute("aria-label")
    # what the button says is written down as it changes: it is "Copy" again after two seconds, which a busy machine may need
    script = "window.said = []; const b = arguments[0]; new MutationObserver(() => said.push(b.textContent)).observe(b, {childList: true})"
    browser.execute_script(script, button)

    def says(words: str, at: int) -> None:
        until(browser, lambda: len(browser.execute_script("return said")) > at)
        assert browser.execute_script("return said[arguments[0]]", at).startswith(words)

    button.click()
    says("Selected", 0)
    assert browser.execute_script("return getSelection().toString()") == command
    says("Copy", 1)
    browser.execute_script("window.kept = ''; navigator.clipboard.writeText = async (text) => { window.kept = text; };")
    button.click()
    says("Copied", 2)
    assert browser.execute_script("return kept") == command
    assert complaints(browser) == []


def test_a_second_click_is_answered_for_its_own_two_seconds(browser, tmp_path) -> None:
    opened(browser, page(row(), tmp_path))
    script = """
        const [asked, done] = [[], arguments[0]];
        window.setTimeout = (call, after) => asked.push([call, after]);
        window.clearTimeout = (timer) => { if (timer) asked[timer - 1] = null; };
        const button = document.querySelector(".copied button");
        const place = document.querySelector(".copied code");
        navigator.clipboard.writeText = async () => {};
        (async () => { await copy(place, button); await copy(place, button); done(asked.filter((one) => !one || one[1] === 2000).map((one) => one && one[1])); })();
    """
    assert browser.execute_async_script(script) == [None, 2000], "the first click's timer is ended"


def test_a_link_to_a_folded_part_opens_it(browser, tmp_path) -> None:
    folder = page(row(), tmp_path)
    text = (folder / "index.html").read_text()
    (folder / "index.html").write_text(text.replace('<table class="attacks">', '<table class="attacks" id="attacks">'))
    opened(browser, folder)
    assert not browser.find_element("id", "attacks").is_displayed()
    browser.execute_script("location.hash = 'attacks'")
    until(browser, lambda: browser.find_element("id", "attacks").is_displayed())
