"""The board in a real browser: sorted, filtered, remembered, compared; its charts; by keyboard alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsers import choose, complaints, needs_chromium, until, width
from seeds_study import verdicts
from tiny_record import record

from benchmark.records.accuracy import Proportion
from benchmark.records.record import Record
from benchmark.specs import tracks
from leaderboard import build
from leaderboard.charts import vega
from leaderboard.pages import boards
from leaderboard.pages.board_data import Board
from leaderboard.rank import rank
from leaderboard.site import Site

pytestmark = [pytest.mark.browser, needs_chromium]
TRACK = tracks.load("digits")


def records() -> list[Record]:
    made = [
        record("Best", 70, 30, title="A strong model", certified=0),
        record("Certain", 68, 60, title="A certified ViT", certified=60),
        record("Weak", 10, 20, title="A weak ViT", certified=20),
        record("Given", 30, 40, title="Taken over").model_copy(update={"trust": "re-evaluated"}),
    ]
    return [row.model_copy(update={"clean": row.clean.model_copy(update={"value": clean / 100, "count": clean})})
            for row, clean in zip(made, (91, 97, 99, 95), strict=True)]  # fmt: skip


RANKS = "return [...document.querySelectorAll('.board td.rank')].map(cell => cell.firstElementChild.textContent)"
GPU, CPU = "NVIDIA H100 80GB HBM3", "AMD EPYC (family 25, model 17)"
TIMES = {
    "Weak-v": {"training": 3, "evaluation": 8, "budgets": ["1 GPU-hour"]},
    "Certain-v": {
        "training": 4,
        "evaluation": 9,
        "devices": {"training": {GPU: 4}, "evaluation": {CPU: 2, GPU: 7}},
        "budgets": ["10 GPU-minutes", "1 GPU-hour"],
    },
}


def write(folder: Path, made: list[Record]) -> str:
    """The address of the board."""
    images = {row.row: {f"robust {r.threat.label}": verdicts(r.accuracy.count) for r in row.robust} for row in made}
    site = Site(folder)
    boards.write_pages(site, Board(TRACK, rank(made, TRACK, images), folder))
    for path in build.STATIC.iterdir():
        site.copy(f"static/{path.name}", path)
    site.write(vega.SCRIPT, vega.script())
    site.write("times.js", f"const TIMES = {json.dumps(TIMES)};\n")
    counts = {row.row: {"robust": [100, 97, 96, row.robust[1].accuracy.count, 0]} for row in made}
    for row, certified in (("Certain-v", [100, 70, 5, 0, 0]), ("Weak-v", [100, 20, 19, 0, 0])):
        counts.setdefault(row, {})["certified"] = certified
    site.write("radii.js", f"const RADII = {json.dumps({'radii': [0, 0.3, 0.5, 1], 'rows': counts})};\n")
    for row in made:
        site.write(f"models/{row.row}/index.html", f"<title>{row.row}</title>")
    return f"file://{folder}/index.html"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("site"), records())


def shown(browser: Any) -> list[str]:
    script = "return [...document.querySelectorAll('.board tbody tr')].filter((r) => r.checkVisibility()).map((r) => r.dataset.row.slice(0, -2))"
    return browser.execute_script(script)


def head(browser: Any, name: str) -> Any:
    return browser.find_element("css selector", f".board th[data-name='{name.lower().replace(' ', '-')}']")


def sort_by(browser: Any, name: str) -> str | None:
    head(browser, name).find_element("tag name", "button").click()
    return head(browser, name).get_attribute("aria-sort")


def test_every_column_sorts_both_ways_and_ranks_by_itself_with_dashes_last(board) -> None:
    assert shown(board) == ["Best", "Certain", "Given", "Weak"]
    for name, direction, order in (
        ("clean", "descending", ["Weak", "Certain", "Given", "Best"]),
        ("clean", "ascending", ["Best", "Given", "Certain", "Weak"]),
        ("model", "ascending", ["Certain", "Best", "Weak", "Given"]),
    ):
        assert sort_by(board, name) == direction
        assert shown(board) == order
    choose(board, "sort", "certified L2 0.1")
    assert shown(board) == ["Certain", "Weak", "Best", "Given"], "a column that was hidden"
    numbers = json.loads(board.execute_script("return document.getElementById('numbers').textContent"))
    place = numbers["names"].index("certified L2 0.1")
    ranks = [(numbers["ranks"][row][place] or "–").replace("-", "–") for row in (1, 3, 0, 2)]
    assert board.execute_script(RANKS) == ranks
    assert "by certified L2 0.1" in board.find_element("css selector", ".board thead th").text
    board.find_element("id", "turn").click()
    assert shown(board) == ["Best", "Weak", "Certain", "Given"]
    choose(board, "sort", "training, s")
    assert shown(board)[0] == "Weak"
    assert len(board.find_elements("css selector", "[aria-sort]")) == 1
    board.find_element("id", "reset").click()
    assert board.execute_script(RANKS)[0] == "1–2"


def look(browser: Any, name: str) -> None:
    browser.find_element("xpath", f"//fieldset//label[span='{name}']").click()


def test_a_tab_shows_and_ranks_by_the_numbers_of_its_threat_and_draws_them(board) -> None:
    heads = "return [...document.querySelectorAll('.board thead th')].filter((h) => h.checkVisibility()).map((h) => h.innerText.replace(/[\\n▲▼]/g, ' ').trim())"
    look(board, "L2 0.5")
    assert shown(board) == ["Certain", "Given", "Best", "Weak"]
    assert board.execute_script(heads)[2:-1] == ["clean", "robust L2 0.5", "certified L2 0.5", "smoothed L2 0.5"]
    until(board, lambda: "by robust L2 0.5" in drawn_words(board))
    tested = board.execute_script(RANKS)
    look(board, "any l2 radius")
    assert (board.find_element("id", "far").text, shown(board)) == ("0.5", ["Certain", "Given", "Best", "Weak"])
    assert board.execute_script(RANKS) == tested, "the track's own radius, at which all were attacked"
    slide(board, 0)
    assert board.execute_script(heads)[2:-1] == ["clean", "robust L2 0", "certified L2 0", "smoothed L2 0, at least"]
    assert shown(board) == ["Weak", "Certain", "Given", "Best"], "as by clean accuracy"
    assert board.find_element("css selector", "tr[data-row=Weak-v] td:nth-child(13) b").text == "99.0"
    about = board.find_element("id", "known-there")
    assert about.text.startswith("At radius 0 robust accuracy is clean accuracy. Certified")
    slide(board, 3)
    assert board.execute_script(heads)[5] == "smoothed L2 1", "which no noise certifies"
    assert "Smoothed" not in about.text
    slide(board, 1)
    assert shown(board) == ["Weak", "Certain", "Best", "Given"], "at another radius they change places"
    assert board.execute_script(RANKS) == ["1", "2", "–", "–"]
    assert board.execute_script(heads)[0] == "order by certified L2 0.3"
    assert "No attack was run at this radius (they were at 0.5 and 1)" in about.text
    assert board.find_element("css selector", "tr[data-row=Best-v] td:nth-child(13)").text == "≤ 96.0"
    cell = board.find_element("css selector", "tr[data-row=Weak-v] td:nth-child(14)")
    interval = Proportion.of(19, 100)
    assert [part.get_property("textContent") for part in cell.find_elements("css selector", "*")] == [
        "19.0",
        f"{100 * interval.low:.1f}–{100 * interval.high:.1f}",
    ]
    until(board, lambda: drawn_words(board).startswith("4 models, by certified L2 0.3."))
    kept, seen = board.current_url, shown(board)
    board.get("about:blank")
    board.get(kept)
    assert (shown(board), board.find_element("id", "far").text) == (seen, "0.3")
    choose(board, "sort", "robust L2 0.3, at most")
    assert board.execute_script(RANKS) == ["–"] * 4, "a bound ranks nobody"
    choose(board, "sort", "smoothed L2 0.3, at least")
    assert board.execute_script(RANKS) == ["–"] * 4, "nor does one from below"


def drawn_words(browser: Any) -> str:
    return browser.find_element("css selector", "#accuracies .drawn").get_attribute("aria-label")


def slide(browser: Any, place: int) -> None:
    script = "const s = document.getElementById('radius'); s.value = arguments[0]; for (const e of ['input', 'change']) s.dispatchEvent(new Event(e))"
    browser.execute_script(script, place)


def test_rows_are_chosen_by_text_traits_and_costs_and_none_is_said(board) -> None:
    from selenium.webdriver.common.keys import Keys

    find, count = board.find_element("id", "find"), board.find_element("id", "count")
    find.send_keys("vit certified")
    assert (shown(board), count.text) == (["Certain"], "1 of 4 models")
    find.send_keys(Keys.BACKSPACE * 20)
    board.find_element("css selector", ".filters summary").click()
    for box, words, left in (
        ("norm", "certified in L2", ["Best", "Certain", "Weak"]), ("norm", "any", ["Best", "Certain", "Given", "Weak"]),
        ("tier", "re-evaluated", ["Given"]),
        ("tier", "any", ["Best", "Certain", "Given", "Weak"]), ("budget", "1 GPU-hour", ["Certain", "Weak"]), ("paper", "Best", []),
    ):  # fmt: skip
        choose(board, box, words)
        assert shown(board) == left, (box, words)
    assert count.text == "None of 4 models matches. Reset shows all"
    assert board.execute_script("return [...document.getElementById('norm').options].map((o) => o.text)") == [
        "any",
        "certified in L2",
    ]
    assert not board.find_element("id", "certificate").is_displayed(), "a choice that keeps all"
    board.find_element("id", "reset").click()
    for box, most, left in (("parameters", "1.2k", 0), ("parameters", "1,234", 4), ("flops", "0.1M", 4), ("flops", "ten", 4)):
        board.find_element("id", box).send_keys(most)
        assert len(shown(board)) == left, (box, most)
        wrong = most == "ten"
        assert board.find_element("id", box).get_attribute("aria-invalid") == str(wrong).lower()
        assert (f"“{most}” is no number" in count.text) is wrong
        board.find_element("id", "reset").click()


def test_each_budget_names_its_leaders_and_how_many_ranks_overlap_theirs(board) -> None:
    board.find_element("css selector", "#budgets summary").click()
    assert board.find_element("css selector", "#budgets caption").text.startswith("2 of 4 models are within a budget")
    heads = [head.text for head in board.find_elements("css selector", "#budgets thead th")]
    assert heads == ["number", "10 GPU-minutes", "1 GPU-hour"]  # nobody is in the third
    columns = [board.find_elements("css selector", f"#budgets tbody td:nth-child({place})") for place in (2, 3)]
    first, second = ([" ".join(cell.text.split()) for cell in cells] for cells in columns)
    assert sum(text.endswith("Certain-v the only one") for text in first) == 4
    assert "68.0% Certain-v ahead of 1" in second


def test_what_is_chosen_stands_in_the_address_and_comes_back(board) -> None:
    board.find_element("id", "find").send_keys("a ")
    board.find_element("css selector", ".filters summary").click()
    choose(board, "trained", "any")
    choose(board, "sort", "robust L2 0.5")
    boxes = board.find_elements("css selector", ".pick input")
    boxes[0].click()
    boxes[2].click()
    seen = shown(board)
    assert seen == ["Certain", "Given", "Best", "Weak"]
    link = board.find_element("css selector", ".compare a").get_attribute("href")
    assert link.endswith("/compare/index.html#Certain-v,Best-v")
    kept = board.current_url
    board.get("about:blank")
    board.get(kept)
    assert shown(board) == seen
    assert board.find_element("id", "all").is_selected()
    assert head(board, "robust L2 0.5").get_attribute("aria-sort") == "descending"
    assert board.find_element("css selector", ".compare a").get_attribute("href") == link
    board.find_element("id", "reset").click()
    assert "#" not in board.current_url
    assert not board.find_element("css selector", ".compare").is_displayed()


def test_an_address_of_nonsense_shows_the_board_as_it_is(browser, address) -> None:
    browser.get("about:blank")
    browser.get(f"{address}#sort=-no&norm=%3Cb%3E&paper=x&trust=y&compare=a+b+Best-v&all=1&find=%00")
    browser.execute_script("const f = document.getElementById('find'); f.value = ''; f.dispatchEvent(new Event('input'))")
    assert shown(browser) == ["Weak", "Given", "Certain", "Best"], "by rank, from the last"
    browser.get("about:blank")
    browser.get(f"{address}#charts")
    assert shown(browser) == ["Best", "Certain", "Given", "Weak"]
    assert not complaints(browser)


def test_one_switch_shows_the_other_numbers_with_a_script_or_without(board, address) -> None:
    assert not head(board, "robust L2 1").is_displayed()
    board.find_element("id", "all").click()
    assert head(board, "robust L2 1").is_displayed()
    assert board.find_element("css selector", "tr[data-row=Weak-v] [data-time=training]").text == "3.0"
    size = "return [document.querySelector('.board').offsetWidth, document.querySelector('.wide').clientWidth]"
    table, room = board.execute_script(size)
    assert table <= room, "every number in a window of 1,440 pixels"
    board.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        board.get("about:blank")
        board.get(address)
        row = board.find_element("css selector", "tr[data-row=Best-v]")
        assert row.find_element("tag name", "b").text == "91.0"
        assert not board.find_element("id", "find").is_displayed()
        hidden = row.find_elements("tag name", "td")[3]
        assert not hidden.is_displayed()
        board.find_element("id", "all").click()
        assert hidden.is_displayed()
    finally:
        board.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


FIGURES = """
return [...document.querySelectorAll(".board tbody tr")].filter((row) => getComputedStyle(row.querySelector("td > b + small")).opacity === "1")
  .map((row) => row.dataset.row)
"""


def test_a_bars_figures_show_where_a_row_is_pointed_at_tapped_or_focused_and_without_a_script(board, address) -> None:
    from selenium.webdriver import ActionChains

    def cell(row: str) -> Any:
        return board.find_element("css selector", f"tr[data-row={row}] td:nth-child(3)")

    assert board.execute_script(FIGURES) == []
    ActionChains(board).move_to_element(cell("Best-v")).perform()
    assert board.execute_script(FIGURES) == ["Best-v"]
    ActionChains(board).move_to_element(cell("Best-v")).click().move_to_element(cell("Weak-v")).perform()
    assert board.execute_script(FIGURES) == ["Best-v", "Weak-v"], "a tap lasts"
    board.execute_script("document.querySelector('tr[data-row=Certain-v] a').focus()")
    assert board.execute_script(FIGURES) == ["Best-v", "Certain-v", "Weak-v"]
    board.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        board.get("about:blank")
        board.get(address)
        assert "–" in cell("Certain-v").text, "figures as text"
    finally:
        board.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_by_keyboard_alone(board) -> None:
    from selenium.webdriver.common.keys import Keys

    def focused() -> Any:
        return board.switch_to.active_element

    def tab_to(what: str) -> Any:
        for _ in range(60):
            focused().send_keys(Keys.TAB)
            if focused().get_dom_attribute("id") == what or what in (focused().get_dom_attribute("aria-describedby") or ""):
                return focused()
            if what in (focused().accessible_name or ""):
                return focused()
        raise AssertionError(f"no way to {what}")

    board.find_element("tag name", "body").send_keys(Keys.HOME)
    tab_to("find").send_keys("vit")
    assert shown(board) == ["Certain", "Weak"]
    tab_to("all").send_keys(Keys.SPACE)
    assert head(board, "robust L2 1").is_displayed()
    tab_to("clean").send_keys(Keys.ENTER)
    assert shown(board) == ["Weak", "Certain"]
    assert focused().accessible_name.startswith("clean"), "the focus stays where it was"
    tie = tab_to("tie")
    tip = board.find_element("id", tie.get_dom_attribute("aria-describedby"))
    assert tip.is_displayed()
    assert "McNemar" in tip.text
    tie.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    tab_to("compare Certain-v").send_keys(Keys.SPACE)
    assert board.find_element("css selector", ".compare [role=status]").text == "Certain-v: choose another one"


def test_five_rows_at_most_are_compared(browser, tmp_path) -> None:
    browser.get(write(tmp_path, [record(f"R{place}", 40, 10) for place in range(7)]))
    for box in browser.find_elements("css selector", ".pick input")[:5]:
        box.click()
    enabled = [box.is_enabled() for box in browser.find_elements("css selector", ".pick input")]
    assert enabled == [True] * 5 + [False] * 2
    link = browser.find_element("css selector", ".compare a").get_attribute("href")
    assert link.endswith("#R0-v,R1-v,R2-v,R3-v,R4-v")


def test_charts_have_a_point_a_number_at_its_place_that_names_its_row_and_leads_to_it(board) -> None:
    from selenium.webdriver import ActionChains

    points = "return [...document.querySelectorAll('#{} .mark-symbol.role-mark path')].map((p) => [p.__data__.datum.row, p.__data__.datum.series, p.__data__.datum.accuracy, p.__data__.x, p.__data__.y])"
    until(board, lambda: len(board.find_elements("css selector", "figure[data-drawn]")) == 2)
    points_drawn = board.execute_script(points.format("accuracies"))
    assert {(row, series): accuracy for row, series, accuracy, *_ in points_drawn} == {
        ("Best-v", "attacked"): 70, ("Certain-v", "attacked"): 68, ("Weak-v", "attacked"): 10, ("Given-v", "attacked"): 30,
    }  # fmt: skip
    places = {row: (x, y) for row, _, _, x, y in points_drawn}
    assert places["Best-v"][0] < places["Given-v"][0] < places["Certain-v"][0] < places["Weak-v"][0], "by clean accuracy"
    assert places["Best-v"][1] < places["Certain-v"][1] < places["Given-v"][1] < places["Weak-v"][1], "higher is up"
    assert len(board.execute_script(points.format("cost"))) == 4
    words = board.find_element("css selector", "#accuracies .drawn").get_attribute("aria-label")
    assert "Pareto front for robust Linf 0.15: A strong model (70.0, clean 91.0)" in words

    def point() -> Any:
        return board.find_elements("css selector", "#accuracies .mark-symbol.role-mark path")[0]

    def names_its_row(row: str) -> bool:
        ActionChains(board).move_to_element(point()).perform()
        return row in board.find_element("css selector", "#vg-tooltip-element").text

    row = until(board, lambda: board.execute_script("return arguments[0].__data__.datum.row", point()))
    until(board, lambda: names_its_row(row))
    until(board, lambda: ActionChains(board).click(point()).perform() is None)
    until(board, lambda: board.title == row)


def test_a_phone_shows_a_card_a_row_with_words_for_each_number(board) -> None:
    width(board, 390)
    try:
        cells = board.find_elements("css selector", "tr[data-row=Certain-v] td")
        cells = [cells[place] for place in (0, 1, 2, 7)]
        assert [cell.rect["y"] for cell in cells[1:4]] == [cells[1].rect["y"]] * 3, "three numbers side by side"
        bold_numbers = [cell.find_elements("tag name", "b") for cell in cells[1:4]]
        assert len({numbers[0].rect["y"] for numbers in bold_numbers if numbers}) == 1, "under words of one height"
        heading = board.execute_script("return getComputedStyle(arguments[0], '::before').content", cells[2])
        assert heading.replace("\\a ", " ").replace("\n", " ").strip('"') == "robust Linf 0.15"
        assert board.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        board.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_of_many_rows_the_first_are_laid_out_until_all_are_asked_for(browser, tmp_path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(write(tmp_path, [record(f"R{place:03}", place % 90, 10) for place in range(130)]))
    assert len(shown(browser)) == 30
    assert browser.find_element("id", "count").text == "130 of 130 models"
    browser.find_element("id", "find").send_keys("r12")
    assert len(shown(browser)) == 10
    browser.find_element("id", "find").send_keys(Keys.BACKSPACE * 3, "r0")
    browser.find_element("id", "more").click()
    assert len(shown(browser)) == 100
    assert browser.switch_to.active_element.get_dom_attribute("href"), "the focus goes on with the first of the rest"


def test_seconds_name_their_device_where_rows_ran_on_several_kinds(board) -> None:
    board.find_element("id", "all").click()
    cells = {row: [board.find_element("css selector", f"[data-row='{row}-v'] [data-time='{part}']")
             for part in ("training", "evaluation")] for row in ("Weak", "Certain", "Given")}  # fmt: skip
    seconds_by_device = [[child.text for child in cell.find_elements("tag name", "small")] for cell in cells["Certain"]]
    assert seconds_by_device == [[GPU], [f"7.0 {GPU}", f"2.0 {CPU}"]]
    assert [cell.text.split("\n")[0] for cell in cells["Certain"]] == ["4.0", "9.0"]
    assert [cell.text for cell in cells["Weak"]] == ["3.0", "8.0"], "measured before devices were named"
    assert [cell.text for cell in cells["Given"]] == ["–", "–"]
