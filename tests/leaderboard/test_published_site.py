"""Nine questions that the site answers of published rows alone, in a real browser and two clicks each: no row is built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browsers import choose, click, needs_chromium, seen, until, width

from benchmark.records import study_table
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record, headline
from benchmark.records.study import read_published
from leaderboard import build, changes, front
from leaderboard.formats import machine_board

pytestmark = [pytest.mark.browser, needs_chromium]
ROOT = Path(build.__file__).parent.parent
TRACK, ROW = "cifar10_jpeg", "Debenedetti2022XCiT-n12"
LOFAST, PAPER = "Havens2024LoFAST-mean_pool", "Gupta2023CertViT"


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


class Clicks:
    """A browser whose clicks are counted."""

    def __init__(self, page) -> None:
        self.page, self.count = page, 0

    def __call__(self, css: str) -> None:
        self.count += 1
        click(self.page, css)


@pytest.fixture
def clicks(board):
    counted = Clicks(board)
    yield counted
    assert counted.count <= 2


def test_real_images_are_the_first_card_and_its_best_row_has_a_page(board, clicks) -> None:
    assert "CIFAR-10, real images" in board.find_element("css selector", ".cards > li").text
    (record,) = (record for record in records(TRACK) if record.row == ROW)
    clicks(f'.cards a[href="{TRACK}/models/{ROW}/index.html"]')
    assert record.title == seen(board, "h1")
    assert f"{100 * record.clean.value:.1f}%" in seen(board, ".three")


def test_which_command_rebuilds_a_number_and_how_the_model_is_loaded(board, clicks) -> None:
    clicks(f'.cards a[href="{TRACK}/models/{ROW}/index.html"]')
    clicks('.contents a[href="#repeat"]')
    assert f"rvb repro {ROW} --track {TRACK}" in seen(board, ".commands")
    assert f'benchmark.load_model("{ROW}", track="{TRACK}")' in seen(board, "#load + div + div")


def best(track: str, name: str) -> tuple[str, float]:
    """The title of the row with the highest number, and the number."""
    value_by_title = {record.title: headline(record)[name].value for record in records(track) if name in headline(record)}
    title = max(value_by_title, key=lambda title: value_by_title[title])
    return title, value_by_title[title]


@pytest.mark.parametrize(("track", "ball"), [("digits", "0.5"), (TRACK, "0.1412")])
def test_which_model_is_most_robust_in_l2_and_whether_that_is_settled(board, clicks, track, ball) -> None:
    clicks(f'.cards a[href="{track}/index.html"]')
    clicks(".tabs label:nth-of-type(2)" if track == "digits" else ".tabs label:nth-of-type(3)")
    first, (_, value) = seen(board, ".board tbody tr"), best(track, f"robust L2 {ball}")
    assert f"{100 * value:.1f}" in first
    rank = seen(board, ".board tbody tr .rank").split()[0]
    (board_row,) = (row for row in machine(track)["rows"] if row["row"] == first_row(board))
    low, high = board_row["ranks"][f"robust L2 {ball}"]
    assert rank == (f"{low}" if low == high else f"{low}–{high}"), "one place where it is settled, several where not"
    assert "by robust L2" in seen(board, ".board thead th")


def machine(track: str) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(build, "WORK", Path("nowhere"))
        made = front._board(front.read_track(track), None)
    return machine_board(made).model_dump(mode="json")


def first_row(board) -> str:
    return str(board.find_element("css selector", ".board tbody tr").get_attribute("data-row"))


@pytest.mark.parametrize(("track", "radius"), [("digits", 0.3), (TRACK, 0.1412)])
def test_the_ranking_at_another_radius(board, clicks, track, radius) -> None:
    clicks(f'.cards a[href="{track}/index.html"]')
    clicks(".tabs label:last-of-type")
    script = """const [s, at] = [document.getElementById("radius"), RADII.radii.indexOf(arguments[0])];
        s.value = at; s.dispatchEvent(new Event("input"));"""
    board.execute_script(script, radius)
    choose(board, "sort", next(o.text for o in board.find_elements("css selector", "#sort option") if "certified L2" in o.text
                               and o.get_attribute("value") == str(3 + len(machine(track)["columns"]))))  # fmt: skip
    counts = {}
    for record in records(track):
        images = PerImage.model_validate_json((build.PUBLISHED / track / "images" / f"{record.row}.json").read_text())
        if "certified" in images.radii:
            ok = np.array([digit == "1" for digit in images.scores["clean"]])
            counts[record.row] = 100 * float((ok & (np.array(images.radii["certified"]) >= radius)).mean())
    assert counts[first_row(board)] == max(counts.values())
    assert f"{max(counts.values()):.1f}" in seen(board, ".board tbody tr")


def test_where_a_row_loses_between_attacked_and_certified(board, clicks) -> None:
    clicks('.cards a[href="digits/index.html"]')
    clicks(f'[data-row="{LOFAST}"] th > a')
    clean, unbroken, certified = (right(LOFAST, name) for name in ("clean", "robust L2 0.5", "certified L2 0.5"))
    line, between = seen(board, ".settled tbody tr:nth-child(3)"), int((unbroken & ~certified).sum())
    assert line == f"0.5 {certified.sum()} {between} {int((clean & ~unbroken).sum())} {int((~clean).sum())}"
    assert f"l2 0.5: {unbroken.sum():.1f}% robust, {certified.sum():.1f}% certified" in (
        board.find_element("css selector", "#sandwich .drawn").get_attribute("aria-label")
    )
    assert f"{unbroken.sum():.1f}%" in seen(board, ".three")
    assert f"{certified.sum():.1f}%" in seen(board, ".three"), "both at one l2 radius"


def test_which_image_separates_two_rows(board, clicks) -> None:
    clicks('.cards a[href^="digits/compare/index.html#"]')
    pair = board.current_url.partition("#")[2].split(",")
    lists = until(board, lambda: board.find_elements("css selector", ".apart"))
    digits, other = (right(row, "robust Linf 0.15") for row in pair)
    listed = {int(a.text) for part in lists for a in part.find_elements("css selector", "a")}
    assert listed == set(np.flatnonzero(digits != other).tolist())
    image = board.find_element("css selector", ".apart a").text
    clicks(".apart a")
    until(board, lambda: board.find_element("id", "image").text == f"Image {image}")


def test_what_the_paper_claims_for_table_1_and_what_came_out(board, clicks) -> None:
    clicks(f'.cards a[href="digits/papers/{PAPER}/index.html"]')
    clicks('.contents a[href="#study-table1"]')
    assert board.execute_script("return location.hash") == "#study-table1"
    (study,) = read_published(build.PUBLISHED / "digits/studies", f"{PAPER}-table1.json")
    text, table = seen(board, "#study-table1 .claims"), study_table.table(study)
    place = [column.label for column in table.columns].index("clean")
    rebuilt = {line.cell: line.entries[place].mean for line in table.lines}
    for cell, claimed in study.study.claims.items():
        assert f"{cell}: clean, % {table.columns[place].printed(claimed['clean'])} {100 * rebuilt[cell]:.1f}" in text


def test_what_changed_since_last_month(board, clicks) -> None:
    clicks('nav a[href="changes.html"]')
    history = changes.changes(build.PUBLISHED)
    sections = board.find_elements("css selector", ".change")
    assert [section.get_attribute("id") for section in sections] == [change.commit[:12] for change in history]
    assert all(row.row in section.text for section, change in zip(sections, history, strict=True) for row in change.rows)
    months = [head.text for head in board.find_elements("css selector", "h2")]
    assert months == sorted({change.month for change in history}, reverse=True)


@pytest.mark.parametrize("place", ["", f"{TRACK}/index.html", f"{TRACK}/papers/index.html"])
def test_how_to_cite(board, clicks, place) -> None:
    if place:
        board.get(board.current_url.replace("index.html", place))
    clicks('footer a[href$="index.html#cite"]')
    assert "@misc{robust_vit_bench," in seen(board, "#cite ~ .bib")


@pytest.mark.parametrize(("pixels", "height"), [(1440, 900), (1024, 768), (390, 844)])
@pytest.mark.parametrize("track", ["digits", TRACK])
def test_the_first_row_is_seen_without_scrolling(browser, address, track, pixels, height) -> None:
    width(browser, pixels, height)
    try:
        browser.get(address.replace("index.html", f"{track}/index.html"))
        box = "return document.querySelector('.board tbody tr').getBoundingClientRect().bottom"
        assert browser.execute_script(box) <= height
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
