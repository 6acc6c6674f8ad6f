"""Comparing rows in a real browser: right counts and p-values, the fragment, the keyboard alone."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browsers import choose, complaints, needs_chromium, until
from scipy.stats import binomtest
from site_rows import ROBUST, board

from leaderboard import build
from leaderboard.pages.compare import packed
from leaderboard.times import write_times

pytestmark = [pytest.mark.browser, needs_chromium]
N = 101  # no multiple of eight


def drawn(seed: int, share: float) -> str:
    return "".join("1" if value < share else "0" for value in np.random.default_rng(seed).random(N))


EQUAL = [str(N), "0", "0", "0", "1.000", "0.008", "not settled"]
VERDICTS = {"A": drawn(0, 0.8), "B": drawn(1, 0.5), "C": drawn(2, 0.45), "D": drawn(3, 0.1)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    made = board(folder / "work", VERDICTS)
    build.render(folder / "site", made)
    write_times(folder / "site", folder / "work", [*made.rows])
    return folder / "site"


@pytest.fixture
def page(browser, site: Path) -> Iterator:
    """The empty page of a fresh visit; no error may be left in the console."""
    browser.get("about:blank")
    browser.get(f"file://{site}/compare/index.html")
    yield browser
    assert complaints(browser) == []


def wait(page, words: str) -> None:
    until(page, lambda: words in page.find_element("id", "said").text)


def pick(page, place: int, row: str) -> None:
    until(page, lambda: page.find_elements("css selector", f"#row-{place} option[value='{row}']"))[0].click()
    refilled(page, row)


def refilled(page, row: str) -> None:
    """Waits until no other list offers a row that is chosen: the lists are filled anew by an event of their own."""
    count = "return document.querySelectorAll(`option[value='${arguments[0]}']`).length"
    until(page, lambda: page.execute_script(count, row) == 1)


def cells(page, label: str) -> list[list[str]]:
    lines = page.find_elements("css selector", f'[aria-label="{label}"] tbody tr')
    return [[cell.text for cell in line.find_elements("css selector", "th, td")] for line in lines]


def expected(row_name: str, other: str) -> list[str]:
    seen = list(zip(VERDICTS[row_name], VERDICTS[other], strict=True))
    both, wins, losses, neither = (seen.count(v) for v in (("1", "1"), ("1", "0"), ("0", "1"), ("0", "0")))
    p = binomtest(wins, wins + losses).pvalue
    sign = 0 if p > 0.05 / 6 else wins - losses
    verdict = "first better" if sign > 0 else "second better" if sign else "not settled"
    chance = f"{p:.3f}" if p >= 0.001 else f"{p:.2g}" if p >= 1e-4 else f"{p:.1e}".replace("e-0", "e-")
    return [*map(str, (both, wins, losses, neither)), chance, "0.008", verdict]


def test_two_chosen_rows_agree_and_differ_on_the_right_images(page) -> None:
    wait(page, "Choose two to five models")
    pick(page, 1, "B-v")
    pick(page, 2, "C-v")
    wait(page, "2 models compared")
    assert page.execute_script("return location.hash") == "#B-v,C-v"
    assert cells(page, "agreement of the two") == [
        ["clean", *EQUAL], [ROBUST, *expected("B", "C")],
    ]  # fmt: skip
    for row, wins, losses in (("B-v", "B", "C"), ("C-v", "C", "B")):
        links = page.find_elements("css selector", f'.apart[data-right="{row}"] a')
        images = [i for i in range(N) if VERDICTS[wins][i] == "1" and VERDICTS[losses][i] == "0"]
        assert [link.text for link in links] == [str(i) for i in images]
        assert links[0].get_attribute("href").endswith(f"#B-v,C-v&image={images[0]}")
    numbers = {line[0]: line[1:] for line in cells(page, "headline numbers")}
    assert [cell.split("\n")[0] for cell in numbers[ROBUST]] == [
        f"{100 * VERDICTS[name].count('1') / N:.1f}" for name in "BC"
    ]
    assert "an order needs at most 0.008" in page.find_element("id", "settled").text


def test_any_image_opens_clean_and_attacked_of_every_model(page, site: Path) -> None:
    page.get(f"file://{site}/compare/index.html#A-v,B-v&image=57")
    wait(page, "2 models compared")
    until(page, lambda: page.find_element("id", "image").text == "Image 57")
    words = {"1": "yes", "0": "no"}
    lines = {line[0]: line[1:] for line in cells(page, "image 57, number by number")}
    assert lines[ROBUST] == [words[VERDICTS[name][57]] for name in "AB"]
    assert lines["certified to, l2"] == ["0.2000", "0.2000"]
    assert lines["broken from, l2"] == ["not broken" if VERDICTS[name][57] == "1" else "0.4000" for name in "AB"]
    tiles = page.find_elements("css selector", ".opened .picture")
    assert [Path(tile.value_of_css_property("background-image").strip('url(")')).parts[-2:] for tile in tiles] == [
        ("compare", "images.png")
    ]
    box = page.find_element("id", "which")
    page.execute_script("arguments[0].value = 999; arguments[0].dispatchEvent(new Event('change'))", box)
    until(page, lambda: page.find_element("id", "image").text == f"Image {N - 1}")
    assert page.execute_script("return location.hash") == f"#A-v,B-v&image={N - 1}"
    assert page.execute_script("return document.documentElement.scrollHeight") < 4000


def test_the_fragment_holds_rows_and_number(page, site: Path) -> None:
    page.get(f"file://{site}/compare/index.html#A-v,B-v,C-v&number=clean")
    wait(page, "3 models compared")
    assert [line[1:] for line in cells(page, "agreement of each pair")] == [EQUAL] * 3
    assert page.find_element("id", "row-3").get_attribute("value") == "C-v"
    choose(page, "number", ROBUST)  # typed letters need a quick machine
    assert page.execute_script("return location.hash") == "#A-v,B-v,C-v"
    counts = [expected(*pair) for pair in ("AB", "AC", "BC")]
    until(page, lambda: [line[1:] for line in cells(page, "agreement of each pair")] == counts)
    page.back()
    until(page, lambda: page.execute_script("return location.hash") == "#A-v,B-v,C-v&number=clean")
    page.get(f"file://{site}/compare/index.html#A-v,nobody,%")
    wait(page, "Not on this board: nobody, %. Choose two to five models.")


def test_the_sandwich_draws_every_chosen_row(page, site: Path) -> None:
    page.get(f"file://{site}/compare/index.html#A-v,B-v")
    wait(page, "2 models compared")
    lines = ".overlay svg .mark-line path"
    until(page, lambda: len(page.find_elements("css selector", lines)) == 4)
    areas = ".overlay svg .mark-area path"
    until(page, lambda: len(page.find_elements("css selector", areas)) == 2)
    until(page, lambda: page.find_elements("css selector", ".overlay .drawn[aria-label^='Accuracy over']"))
    for row in ("A-v", "B-v"):
        curves = page.execute_script("return RVB.rows.get(arguments[0]).curves", row)
        assert curves["attacked"][-1] == pytest.approx(VERDICTS[row[0]].count("1") / N, abs=1e-6)
    page.get(f"file://{site}/compare/index.html#A-v,B-v,C-v")
    until(page, lambda: len(page.find_elements("css selector", areas)) == 3)
    page.get_log("browser")
    page.execute_script("""for (const name of 'ABC') delete RVB.rows.get(`${name}-v`).curves.certified;
      Object.assign(RVB.rows.get('A-v'), { distances: false });
      const falls = RVB.rows.get('B-v').curves.attacked;
      RVB.rows.get('B-v').balls = falls.map((share, k) => falls[Math.min(k, 1)]);
      dispatchEvent(new Event('hashchange'))""")
    until(page, lambda: len(page.find_elements("css selector", lines)) == 2)
    assert (
        "the robust curve of every model falls only where an attacked ball ends"
        in page.find_element("css selector", ".overlay").text
    )
    levels = page.execute_script(
        """return [...document.querySelectorAll(arguments[0])].map((line) =>
      new Set(line.getAttribute('d').match(/[\\d.]+(?=L|$)/g)).size)""",
        lines,
    )
    assert sorted(levels) == [1, 2], "no measured distance beside the ball of another; C has no balls and no curve"
    assert page.get_log("browser") == [], "no empty layer, of which Vega warns"


def test_the_keyboard_alone_will_do(page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    wait(page, "Choose two to five models")
    for _ in range(20):
        ActionChains(page).send_keys(Keys.TAB).perform()
        if page.switch_to.active_element.get_attribute("id") == "row-1":
            break
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    refilled(page, "A-v")
    ActionChains(page).send_keys(Keys.TAB).perform()
    assert page.switch_to.active_element.get_attribute("id") == "row-2"
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    wait(page, "2 models compared")
    assert page.execute_script("return location.hash") == "#A-v,B-v"
    assert page.switch_to.active_element.get_attribute("id") == "row-2", "what has the focus keeps it"
    outline = page.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_a_chart_not_yet_fitted_to_its_place_widens_no_page(page, site: Path) -> None:
    page.get(f"file://{site}/compare/index.html#A-v,B-v")
    until(page, lambda: page.find_elements("css selector", ".overlay svg"))
    page.execute_script("document.querySelector('.overlay svg').style.width = '3000px'")
    assert page.execute_script("return document.querySelector('.overlay svg').getBoundingClientRect().width") == 3000
    assert page.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0


def test_rows_without_verdicts_by_image_still_have_their_numbers(page, tmp_path) -> None:
    made = board(tmp_path / "work", VERDICTS)
    build.render(tmp_path / "site", replace(made, images={}))
    write_times(tmp_path / "site", tmp_path / "work", [*made.rows])
    page.get(f"file://{tmp_path}/site/compare/index.html#A-v,B-v")
    wait(page, "2 models compared")
    assert cells(page, "agreement of the two") == []
    assert "robust Linf 0.15 is not known image by image" in page.find_element("id", "compared").text
    assert len(cells(page, "headline numbers")) > 4


def test_mcnemars_p_is_scipys_and_bits_are_pythons(page) -> None:
    pairs = [(0, 0), (1, 0), (0, 5), (7, 7), (3, 12), (40, 71), (999, 1200), (4800, 5200), (0, 2000)]
    p_values = page.execute_script("return arguments[0].map(([a, b]) => RVB.mcnemar(a, b))", pairs)
    for (wins, losses), p in zip(pairs, p_values, strict=True):
        assert p == pytest.approx(binomtest(wins, wins + losses).pvalue if wins + losses else 1, rel=1e-9)
    for digits in ("1", "01", "10000000", "100000001", VERDICTS["A"]):
        bits = page.execute_script("return [...RVB.bits(arguments[0], arguments[1])]", packed(digits), len(digits))
        assert "".join(map(str, bits)) == digits
        assert len(base64.b64decode(packed(digits))) == -(-len(digits) // 8)
