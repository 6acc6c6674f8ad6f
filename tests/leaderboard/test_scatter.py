"""Scatters: a panel a setting, to one scale, classes told apart by their marks, and all of it in words."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import site_rows
from published_study import published
from scattered_study import scattered
from tiny_record import record

from benchmark.loading import tracks
from benchmark.results.points import CLASSES
from benchmark.results.study import PublishedStudy
from benchmark.results.study_table import table
from leaderboard.charts.scatter import BOTTOM, EDGE, TOP, WIDTH, class_of, path
from leaderboard.charts.studies import figures
from leaderboard.rank import rank


def spots(chart: str) -> list[list[tuple[float, float]]]:
    """By class where each mark starts."""
    drawn = re.findall(r'<path class="[^"]*" d="([^"]+)"><title>', chart)
    return [[(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path)] for path in drawn]


def test_a_panel_a_setting_of_the_first_seed_with_every_point_inside_and_all_of_it_in_words() -> None:
    charts = figures(table(scattered()))
    assert [caption for caption, _ in charts] == [
        f"{cell}: m: tsne. Seed 0, the first of 2. The axes have no meaning of their own: look at which points lie together."
        for cell in ("base", "<other>")
    ]
    for _, chart in charts:
        root = ET.fromstring(str(chart))
        assert root.get("role") == "img"
        assert "Seed 0, the first of 2. 6 points in 2 classes. clean: 3 points around (" in root.attrib["aria-label"]
        assert "67% nearest to their own class; <adversarial>: 3 points around" in root.attrib["aria-label"]
        assert [len(one) for one in spots(str(chart))] == [3, 3]
        assert all(0 < x < WIDTH - EDGE and TOP < y < BOTTOM for one in spots(str(chart)) for x, y in one)
        texts = [text.text for text in root.iter("text")]
        assert texts[1:] == ["clean", "<adversarial>"], "a title, a legend, and no number at an axis"
    assert spots(str(charts[0][1])) == spots(str(charts[1][1])), (
        "each panel is of its own extent where axes mean nothing"
    )
    assert figures(table(scattered())) == charts


def test_one_scale_for_both_axes_up_is_more() -> None:
    (clean, _), *_ = (spots(str(chart)) for _, chart in figures(table(scattered())))
    (x0, y0), (x1, y1), (x2, y2) = clean
    assert x1 - x0 == pytest.approx(y0 - y2, abs=0.11)
    assert (y1, x2) == (y0, x0)
    assert x1 > x0


def test_named_axes_have_numbers_and_are_the_same_for_all_settings() -> None:
    charts = figures(table(scattered(("confidence", "<margin>"))))
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
    for _, chart in figures(table(PublishedStudy.model_validate(content))):
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
