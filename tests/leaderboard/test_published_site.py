"""What the site answers of published rows alone, in a real browser and a few clicks: no row is built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browsers import choose, click, needs_chromium, seen, until, width

from benchmark.records import study_table
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record, headline
from leaderboard import build, front

pytestmark = [pytest.mark.browser, needs_chromium]
ROOT = Path(build.__file__).parent.parent
TRACK, ROW, CERTIFIED = "cifar10_jpeg", "Debenedetti2022XCiT-n12", "certified L2 0.1412"
LOFAST, FAST, PAPER = "Havens2024LoFAST-mean_pool", "Wong2020Fast-linf", "Gupta2023CertViT"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    site = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(build, "WORK", tmp_path_factory.mktemp("work"))
        patch.setattr(front, "DOCS", Path("nowhere"))
        front.render(site, "")
    return f"file://{site}/index.html"


def records(track: str) -> list[Record]:
    return [Record.model_validate_json(path.read_text()) for path in (build.PUBLISHED / track).glob("*-*.json")]


def right(row: str, name: str) -> np.ndarray:
    """(n,) bool: the published verdicts of a row of digits."""
    images = PerImage.model_validate_json((build.PUBLISHED / "digits/images" / f"{row}.json").read_text())
    return np.array([digit == "1" for digit in images.scores[name]])


def test_real_images_are_the_first_card_and_its_best_row_has_a_page(board) -> None:
    card = board.find_element("css selector", ".cards > li")
    assert "CIFAR-10, real images" in card.text
    (record,) = (record for record in records(TRACK) if record.row == ROW)
    click(board, f'.cards a[href="{TRACK}/models/{ROW}/index.html"]')
    assert record.title == seen(board, "h1")
    assert f"{100 * record.clean.value:.1f}%" in seen(board, ".three")


def test_which_command_rebuilds_a_number_and_how_the_model_is_loaded(board) -> None:
    click(board, f'.cards a[href="{TRACK}/models/{ROW}/index.html"]')
    click(board, '.contents a[href="#repeat"]')
    assert f"rvb repro {ROW} --track {TRACK}" in seen(board, ".commands")
    assert f'benchmark.load_model("{ROW}", track="{TRACK}")' in seen(board, "#load + div")


@pytest.mark.parametrize(
    ("track", "name", "shown"),
    [(TRACK, CERTIFIED, "certified L2 36/255"), ("digits", "robust L2 0.5", "AutoAttack L2 0.5")],
)
def test_the_ranking_by_another_number(board, track, name, shown) -> None:
    click(board, f'.cards a[href="{track}/index.html"]')
    choose(board, "sort", shown)
    known = {record.title: headline(record)[name].value for record in records(track) if name in headline(record)}
    first = seen(board, ".board tbody tr")
    best = max(known, key=lambda title: known[title])
    assert best in first
    assert f"{100 * known[best]:.1f}" in first
    assert first.startswith(("1 ", "1–")), "its rank by this number, of which others may be left too"
    assert f"by {shown}" in seen(board, ".board thead th")


def test_where_a_row_loses_between_attacked_and_certified(board) -> None:
    click(board, '.cards a[href="digits/index.html"]')
    click(board, f'[data-row="{LOFAST}"] th > a')
    clean, held, certified = (right(LOFAST, name) for name in ("clean", "robust L2 0.5", "certified L2 0.5"))
    line, between = seen(board, ".settled tbody tr:nth-child(3)"), int((held & ~certified).sum())
    assert line == f"0.5 {certified.sum()} {between} {int((clean & ~held).sum())} {int((~clean).sum())}"
    assert f"l2 0.5: {held.sum():.1f}% not broken, {certified.sum():.1f}% certified" in (
        board.find_element("css selector", "#sandwich .drawn").get_attribute("aria-label")
    )


def test_which_image_separates_two_rows(board) -> None:
    click(board, '.cards a[href="digits/index.html"]')
    for row in (LOFAST, FAST):
        click(board, f'[data-row="{row}"] .pick input')
    click(board, ".compare a")
    lists = until(board, lambda: board.find_elements("css selector", ".apart"))
    one, other = (right(row, "robust Linf 0.15") for row in (LOFAST, FAST))
    listed = {int(a.text) for part in lists for a in part.find_elements("css selector", "a")}
    assert listed == set(np.flatnonzero(one != other).tolist())


def test_what_the_paper_claims_for_table_1_and_what_came_out(board) -> None:
    click(board, '.cards a[href="digits/index.html"]')
    click(board, f'.board a[href="papers/{PAPER}/index.html"]')
    click(board, '.contents a[href="#study-table1"]')
    assert board.execute_script("return location.hash") == "#study-table1"
    (study,) = study_table.read(build.PUBLISHED / "digits/studies", f"{PAPER}-table1.json")
    text, table = seen(board, "#study-table1 .claims"), study_table.table(study)
    place = [column.label for column in table.columns].index("clean")
    rebuilt = {line.cell: line.entries[place].mean for line in table.lines}
    for cell, numbers in study.study.claims.items():
        assert f"{cell} {100 * numbers['clean']:.1f} {100 * rebuilt[cell]:.1f}" in text


@pytest.mark.parametrize("place", ["", f"{TRACK}/index.html", f"{TRACK}/papers/index.html"])
def test_how_to_cite(board, place) -> None:
    if place:
        board.get(board.current_url.replace("index.html", place))
    click(board, 'footer a[href$="index.html#cite"]')
    assert "@misc{robust_vit_bench," in seen(board, "#cite ~ .bib")


@pytest.mark.parametrize("pixels", [1440, 1024, 390])
def test_the_first_row_is_seen_without_scrolling(browser, address, pixels) -> None:
    width(browser, pixels)
    try:
        browser.get(address.replace("index.html", f"{TRACK}/index.html"))
        top = browser.execute_script("return document.querySelector('.board tbody tr').getBoundingClientRect().top")
        assert top < 900
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
