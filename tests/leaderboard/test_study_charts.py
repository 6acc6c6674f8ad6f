"""Charts of studies: values where the axes say, distributions by their shape, classes by their marks, and all of it in words."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from xml.etree import ElementTree

import numpy as np
import pytest
import site_rows
from hypothesis import given
from hypothesis import strategies as st
from published_study import published, scattered
from tiny_record import record

from benchmark.records import study_table
from benchmark.records.points import CLASSES
from benchmark.records.study import PublishedStudy
from benchmark.records.study_table import sheets
from benchmark.specs import tracks
from leaderboard.charts import lines, scatter
from leaderboard.charts.lines import Line, line_chart
from leaderboard.charts.scatter import class_of, path
from leaderboard.charts.studies import figures
from leaderboard.charts.svg import ticks
from leaderboard.charts.violins import BINS, Violin
from leaderboard.rank import rank


def heights(svg: ElementTree.Element, line: str) -> list[float]:
    name = "{http://www.w3.org/2000/svg}"
    return [float(dot.get("cy", "nan")) for dot in svg.findall(f"{name}g[@class='{line}']/{name}circle")]


def parsed(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def test_a_chart_puts_values_where_its_axes_say_and_speaks_them() -> None:
    chart = line_chart(
        "A <title>", "steps", ["0", "1", "2"], [Line("a & b", [100.0, 50.0, 0.0], 0, 100), Line("m", [3.0, -1.0, 1.0])]
    )
    svg = parsed(chart)
    highest, lowest = lines.TOP, lines.HEIGHT - lines.BOTTOM
    assert heights(svg, "line0") == [highest, (highest + lowest) / 2, lowest]
    top, bottom, middle = heights(svg, "line1")
    assert (top, bottom) == (highest, lowest), "an axis without given ends spans round numbers around its values"
    assert middle == pytest.approx((top + bottom) / 2)
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "A <title>. a & b: 0: 100, 1: 50, 2: 0; m: 0: 3, 1: -1, 2: 1"
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & b (solid)", "m (dashed)", "steps", "0", "1", "2", "100", "-1", "3"} <= set(texts)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_hold_their_values_and_are_few_and_even(low: float, span: float) -> None:
    result = ticks(low, low + span)
    size = result[1] - result[0]
    assert result[0] <= low + 1e-6 * size
    assert result[-1] >= low + span - 1e-6 * size
    assert 2 <= len(result) <= 7
    assert all(b - a == pytest.approx(size, rel=1e-6) for a, b in itertools.pairwise(result))


def test_axes_are_named_after_the_measures_parameter_and_shares_are_percent() -> None:
    asked = [{"measure": "clean"}, {"measure": "certified_at", "name": "m", "parameters": {"radii": [0.1, 0.2, 0.4]}}]
    made = published({"a": [0.5], "b": [0.6]}, {"draw": "curves", "measures": ["m: curve"]}, measures=asked, shares=["m"])
    ((_, chart),) = figures(study_table.table(made))
    texts = {element.text: float(element.get("y", "nan")) for element in ET.fromstring(str(chart)).iter("text")}
    assert {"l2 radius, pixels", "percent of images"} <= texts.keys()
    assert texts["a"] - texts["l2 radius, pixels"] >= 12, "the legend stands below the axis' title"


LEVELS = tuple(i / 20 for i in range(21))

CURVES = ("J: sigma: block 1", "J: sigma: block 2")


def violin(values: list[float]) -> Violin:
    return Violin("block 1", LEVELS, tuple(np.quantile(values, LEVELS).tolist()))


@pytest.mark.parametrize("values", [np.random.default_rng(0).normal(3, 0.7, 500), np.repeat([1.0, 4.0], 50), [2.0] * 9])
def test_all_mass_is_drawn_where_it_is(values) -> None:
    result = violin(list(values)).density(0.0, 6.0)
    assert sum(result) == pytest.approx(1)
    centres = (np.arange(BINS) + 0.5) * 6 / BINS
    assert abs(np.dot(centres, result) - np.mean(values)) < 6 / BINS + 0.1
    half = sum(share for share, centre in zip(result, centres, strict=True) if centre <= 3)
    assert half == pytest.approx(np.mean(np.asarray(values) <= 3), abs=0.08)


def test_values_at_the_upper_end_are_drawn() -> None:
    assert violin([6.0] * 5).density(0.0, 6.0)[-1] == pytest.approx(1)


@pytest.fixture
def table() -> study_table.Table:
    """Two cells of two seeds with a number, two distributions and a curve that is none."""
    figure, measures = {"draw": "violins", "measures": ["J: sigma"]}, [{"measure": "jacobian", "name": "J"}]
    content = published({"<deep>": [0.5] * 2, "flat": [0.5] * 2}, figure, measures=measures).model_dump()
    x = {"J: sigma: block 1": LEVELS, "J: sigma: block 2": LEVELS, "J: bound: block 1": LEVELS, "J: other": (0.1, 0.2)}
    values = {"J: sigma: mean": 2.0, "J: other": [1.0, 2.0]} | {
        name: [shift + level for level in LEVELS] for shift, name in enumerate(x) if name != "J: other"
    }
    content["result"] |= {"x": x, "measures": measures}
    for run in content["result"]["runs"]:
        run["values"] = values
    return study_table.table(PublishedStudy.model_validate(content))


def test_a_chart_a_cell_with_a_violin_a_block_and_all_of_it_in_words(table) -> None:
    charts = figures(table)
    assert [caption.partition(". ")[0] for caption, _ in charts] == ["<deep>: J: sigma", "flat: J: sigma"]
    for _, chart in charts:
        assert str(chart).count('<g class="violin">') == 2
        assert "block 1: median 0.5, 5% below 0.05, 5% above 0.95; block 2: median 1.5," in str(chart)
        assert "NaN" not in str(chart)
    assert "<deep>" not in str(charts[0][1]), "names are escaped"
    widths = [
        max(float(x) for x in re.findall(r"([\d.]+),", points)) - min(float(x) for x in re.findall(r"([\d.]+),", points))
        for points in re.findall(r'polygon points="([^"]+)"', str(charts[0][1]))
    ]
    assert widths[0] == pytest.approx(widths[1], rel=0.1), "two equal distributions are as wide"


def test_the_sheet_shows_some_levels_and_no_sentence_names_one(table) -> None:
    first, *_ = sheets(table)
    shown = {row.name: [column.x for column, _ in row.entries] for row in first.rows}
    assert shown["flat: sigma: block 1"] == [0.05, 0.25, 0.5, 0.75, 0.95]
    assert shown["flat: bound: block 1"] == [0.05, 0.25, 0.5, 0.75, 0.95], "not drawn, of the same measure and levels"
    assert not [words for words in table.words if "block" in words]
    assert [words for words in table.words if words.startswith("J: sigma: mean")]


def test_a_cell_of_fewer_blocks_has_fewer_violins_and_one_without_any_no_chart(table) -> None:
    for lacking, counts in ((("J: sigma: block 2",), [2, 1]), (("J: sigma: block 1", "J: sigma: block 2"), [2])):
        content = table.study.model_dump()
        for run, label in itertools.product(content["result"]["runs"][2:], lacking):
            del run["values"][label]
        result = study_table.table(PublishedStudy.model_validate(content))
        rows = {row.name for sheet in sheets(result) for row in sheet.rows}
        assert {name for name in rows if name.startswith("flat: sigma")} == {
            f"flat: {label.removeprefix('J: ')}" for label in CURVES if label not in lacking
        }
        charts = figures(result)
        assert [str(chart).count('<g class="violin">') for _, chart in charts] == counts
        assert not any("nan" in str(chart) for _, chart in charts)


def spots(chart: str) -> list[list[tuple[float, float]]]:
    """By class where each mark starts."""
    drawn = re.findall(r'<path class="[^"]*" d="([^"]+)"><title>', chart)
    return [[(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path)] for path in drawn]


def test_a_panel_a_setting_of_the_first_seed_with_every_point_inside_and_all_of_it_in_words() -> None:
    charts = figures(study_table.table(scattered()))
    assert [caption for caption, _ in charts] == [
        f"{cell}: m: tsne. Seed 0, the first of 2. The axes have no meaning of their own: look at which points lie together."
        for cell in ("base", "<other>")
    ]
    for _, chart in charts:
        root = ET.fromstring(str(chart))
        assert root.get("role") == "img"
        assert "Seed 0, the first of 2. 6 points in 2 classes. clean: 3 points around (" in root.attrib["aria-label"]
        assert "67% nearest to their own class; <adversarial>: 3 points around" in root.attrib["aria-label"]
        assert [len(line) for line in spots(str(chart))] == [3, 3]
        inside = (
            0 < x < scatter.WIDTH - scatter.EDGE and scatter.TOP < y < scatter.BOTTOM
            for line in spots(str(chart))
            for x, y in line
        )
        assert all(inside)
        texts = [text.text for text in root.iter("text")]
        assert texts[1:] == ["clean", "<adversarial>"], "a title, a legend, and no number at an axis"
    assert spots(str(charts[0][1])) == spots(str(charts[1][1])), "each panel is of its own extent where axes mean nothing"
    assert figures(study_table.table(scattered())) == charts


def test_one_scale_for_both_axes_up_is_more() -> None:
    (clean, _), *_ = (spots(str(chart)) for _, chart in figures(study_table.table(scattered())))
    (x0, y0), (x1, y1), (x2, y2) = clean
    assert x1 - x0 == pytest.approx(y0 - y2, abs=0.11)
    assert (y1, x2) == (y0, x0)
    assert x1 > x0


def test_named_axes_have_numbers_and_are_the_same_for_all_settings() -> None:
    charts = figures(study_table.table(scattered(("confidence", "<margin>"))))
    assert all(caption.endswith("Seed 0, the first of 2. One scale for both axes.") for caption, _ in charts)
    first, second = (str(chart) for _, chart in charts)
    assert "confidence</text>" in first
    assert "&lt;margin&gt;</text>" in first
    numbers = [re.findall(r'class="grid"[^>]*/><text[^>]*>([^<]+)<', chart) for chart in (first, second)]
    assert numbers[0] == numbers[1]
    assert {"0", "5", "10", "15"} <= set(numbers[0])
    assert spots(first)[0][0][0] < spots(second)[0][0][0]


@pytest.mark.parametrize("points", [[(3.0, 3.0)], [(1e12, -1e12), (-1e12, 1e12)], [(7.0, 1e-300), (7.0, 0.0)]])
@pytest.mark.parametrize("axes", [None, ("u", "v")])
def test_points_of_any_extent_are_drawn(points, axes) -> None:
    content = scattered(axes).model_dump()
    for run in content["result"]["runs"]:
        run["points"]["m: tsne"]["classes"] = [{"name": "a" * 100, "points": points}]
    for _, chart in figures(study_table.table(PublishedStudy.model_validate(content))):
        assert not re.search(r"nan|inf", str(chart))
        assert len(spots(str(chart))[0]) == len(points)
        assert "a" * 61 not in re.sub(r'aria-label="[^"]*"|<title>.*?</title>', "", str(chart))


def test_no_two_classes_look_alike_without_colour() -> None:
    looks = {(path(place, [(0, 0)], 4), "hollow" in class_of(place)) for place in range(CLASSES)}
    assert len(looks) == CLASSES


def test_the_page_has_the_scatter_its_sheet_and_its_points(tmp_path) -> None:
    plain = published({"base": [0.5]}).model_dump()
    plain["result"]["name"] = "plain"
    studies, row = [scattered(numbers=False), PublishedStudy.model_validate(plain)], record("Sub", 40, 30)
    site_rows.write(row, tmp_path)
    track = tracks.load("digits")
    site_rows.render(tmp_path / "site", track, rank([row], track), tmp_path, studies=studies)
    page = tmp_path / "site/models/Sub-v"
    text = (page / "index.html").read_text()
    assert text.count("<svg") == 2
    assert '<th scope="row">base: &lt;adversarial&gt;</th><td class="number">3</td>' in text
    assert '<a href="points-grid.csv">' in text
    points = (page / "points-grid.csv").read_text()
    assert points.startswith("measure,setting,seed,class,x,y\nm: tsne,base,0,clean,0.0,0.0\n")
    assert [path.name for path in page.glob("points-*")] == ["points-grid.csv"], "of a study with points alone"
    assert "<adversarial>" not in text
