"""What the site answers of published rows alone, in a real browser and two clicks at most: no row is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsers import click, needs_chromium, seen

from benchmark.results.record import Record, headline
from leaderboard import build, front

pytestmark = [pytest.mark.browser, needs_chromium]
ROOT = Path(build.__file__).parent.parent
TRACK, ROW, CERTIFIED = "cifar10_jpeg", "Debenedetti2022XCiT-n12", "certified L2 0.1412"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    site = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(build, "WORK", tmp_path_factory.mktemp("work"))
        patch.setattr(front, "DOCS", Path("nowhere"))
        front.render(site, "")
    return f"file://{site}/index.html"


def test_real_images_are_the_first_card_and_its_best_row_has_a_page(board) -> None:
    card = board.find_element("css selector", ".cards > li")
    assert "CIFAR-10, real images" in card.text
    record = Record.model_validate_json((build.PUBLISHED / TRACK / f"{ROW}.json").read_text())
    click(board, f'.cards a[href="{TRACK}/models/{ROW}/index.html"]')
    assert record.title == seen(board, "h1")
    assert f"{100 * record.clean.value:.1f}%" in seen(board, ".three")


def test_which_command_rebuilds_a_number_and_how_the_model_is_loaded(board) -> None:
    click(board, f'.cards a[href="{TRACK}/models/{ROW}/index.html"]')
    click(board, '.contents a[href="#repeat"]')
    assert f"rvb repro {ROW} --track {TRACK}" in seen(board, ".commands")
    assert f'benchmark.load_model("{ROW}", track="{TRACK}")' in seen(board, "#load + div")


def test_the_ranking_at_another_radius(board) -> None:
    from selenium.webdriver.support.ui import Select

    click(board, f'.cards a[href="{TRACK}/index.html"]')
    Select(board.find_element("id", "sort")).select_by_visible_text("certified L2 36/255")
    records = [Record.model_validate_json(path.read_text()) for path in (build.PUBLISHED / TRACK).glob("*-*.json")]
    known = {record.title: headline(record)[CERTIFIED].value for record in records if record.certified}
    first = seen(board, ".board tbody tr")
    assert max(known, key=lambda title: known[title]) in first
    assert first.startswith("1 ")
    assert "by certified L2 36/255" in seen(board, ".board thead th")


@pytest.mark.parametrize("place", ["", f"{TRACK}/index.html", f"{TRACK}/papers/index.html"])
def test_how_to_cite(board, place) -> None:
    if place:
        board.get(board.current_url.replace("index.html", place))
    click(board, 'footer a[href$="index.html#cite"]')
    assert "@misc{robust_vit_bench," in seen(board, "#cite ~ .bib")


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_the_first_row_is_seen_without_scrolling(browser, address, width) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        browser.get(address.replace("index.html", f"{TRACK}/index.html"))
        top = browser.execute_script("return document.querySelector('.board tbody tr').getBoundingClientRect().top")
        assert top < 900
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
