"""Studies on the page: which differences count as shown, and that noise is called noise."""

from __future__ import annotations

import re

import numpy as np
import pytest
import site_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from published_study import published
from scipy.stats import ttest_ind
from tiny_record import record

from benchmark.records import study_table
from benchmark.records.study import PublishedStudy
from benchmark.specs import tracks
from leaderboard.charts.studies import figures
from leaderboard.rank import rank

SAMPLE = st.lists(st.floats(0, 1).map(lambda v: round(v, 3)), min_size=2, max_size=6)


@given(SAMPLE, SAMPLE)
@settings(max_examples=30, deadline=None)
def test_the_interval_of_a_difference_is_welchs(one, other) -> None:
    assume(np.var(one) + np.var(other) > 1e-9)
    difference = study_table.contrast((1, -1), (one, other), 0.05, 0.0)
    assert difference is not None
    expected = ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)
    floored = study_table.contrast((1, -1), (one, other), 0.05, 0.5)
    assert floored is not None
    assert floored.high - floored.low >= 2 * 1.96 * 0.5 * (1 / len(one) + 1 / len(other)) ** 0.5


def levelled(levels: dict[str, dict[str, str]], values: dict[str, list[float]]) -> study_table.Table:
    """The table of a study whose cells have these levels by axis."""
    content = published(values).model_dump()
    for cell in content["result"]["cells"]:
        cell["levels"] = levels[cell["name"]]
    return study_table.table(PublishedStudy.model_validate(content))


def test_an_effect_that_is_there_is_found_and_noise_seldom_passes_for_one() -> None:
    """Seeds of equal cells: at most 5% of studies with eight cells may show any difference."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(100):
        table = study_table.table(published({f"cell {i}": rng.normal(0.7, 0.03, 3).tolist() for i in range(8)}))
        wrong += any(line.entries[0].difference.shown for line in table.lines[1:])  # type: ignore[union-attr]
    assert wrong <= 10  # 5 expected at most; beyond 10 lies 1.1% of chance
    table = study_table.table(
        published({"base": [0.60, 0.61, 0.62], "better": [0.80, 0.82, 0.81], "same": [0.61, 0.63, 0.60]})
    )
    assert [line.entries[0].difference.shown for line in table.lines[1:]] == [True, False]  # type: ignore[union-attr]
    assert table.words[0] == (
        "clean: beyond the spread of the seeds: better (+20.0); the spread of the seeds covers the other difference."
    )


def test_words_say_when_nothing_is_shown_or_could_be() -> None:
    covered = study_table.table(published({"base": [0.5, 0.7, 0.6], "other": [0.6, 0.75, 0.7]}))
    assert covered.words[0] == "clean: no effect is shown, the spread of the seeds covers the difference."
    single = study_table.table(published({"base": [0.5], "other": [0.9]}))
    assert single.words == ("One seed: no difference is told from noise.",)
    assert single.lines[1].entries[0].difference is None
    same = study_table.table(published({"base": [0.5, 0.5], "other": [0.51, 0.51]}))
    assert "no effect is shown" in same.words[0], "one image of 100 with no spread at all is no effect"


def test_cells_are_held_against_the_one_before_or_the_first_of_their_own() -> None:
    table = study_table.table(published({"a": [0.1, 0.1], "b": [0.5, 0.5], "c": [0.5, 0.5]}, against="previous"))
    assert [line.against for line in table.lines] == [None, "a", "b"]
    assert [round(line.entries[0].difference.estimate, 9) for line in table.lines[1:]] == [0.4, 0]  # type: ignore[union-attr]
    names = ("a1", "a2", "b1", "b2")
    levels = {name: {"cell": name[0], "model.width": name[1]} for name in names}
    lines = levelled(levels, {name: [0.5, 0.6] for name in names}).lines
    assert {line.cell: line.against for line in lines} == {"a1": None, "a2": "a1", "b1": None, "b2": "b1"}


def test_what_an_axis_does_is_its_mean_over_the_others() -> None:
    values = {f"{a}{b}": [0.2 * a + 0.1 * b, 0.2 * a + 0.1 * b + 0.01] for a in (0, 1) for b in (0, 1)}
    levels = {name: {"training.mixup": name[0], "model.width": name[1]} for name in values}
    effects = levelled(levels, values).effects
    told = [(e.axis, e.low, e.high, round(e.differences[0].estimate, 9)) for e in effects]
    assert told == [("mixup", "0", "1", 0.2), ("width", "0", "1", 0.1)]
    assert all(effect.differences[0].shown for effect in effects)


def test_the_page_shows_a_study_with_its_spread_claims_and_figure(tmp_path) -> None:
    study = published(
        {"base": [0.5, 0.6], "<other>": [0.55, 0.6]},
        {"draw": "bars", "measures": ["clean"]},
        claims={"base": {"clean": 0.4321, "m: curve": [9.5, None, 9.7]}},
    )
    rows = [record("Sub", 40, 30), record("Other", 40, 30)]
    for row in rows:
        site_rows.write(row, tmp_path)
    ranked = rank(rows, tracks.load("digits"))
    site_rows.render(tmp_path / "site", tracks.load("digits"), ranked, tmp_path, studies=[study])
    page = (tmp_path / "site/models/Sub-v/index.html").read_text()
    for shown in (
        "Not reproduced since it was published.", "A &lt;study&gt;", "+2.5 (not shown)", "rvb study Sub grid",
        '<b>55.0</b></td>\n<td class="number">50.0–60.0</td>', 'id="studies"',
        "no effect is shown, the spread of the seeds covers the difference",
    ):  # fmt: skip
        assert shown in page
    assert "c0de" not in page, "a digest of code is no statement about the numbers"
    assert [text for text in re.findall(r'<td class="number claim">(.*?)</td>', page) if text] == ["43.2"]
    assert re.findall(r'<small class="claim">claimed (.*?)</small>', page) == ["9.5", "9.7"], "on curves' own sheets"
    assert page.count("<svg") == 1
    assert 'id="studies"' not in (tmp_path / "site/models/Other-v/index.html").read_text()


@pytest.mark.parametrize(
    ("figure", "count", "lines"),
    [
        (None, 0, 0),
        ({"draw": "bars"}, 4, 0),
        ({"draw": "curves"}, 1, 4),  # two curves and their marks in the legend
        ({"draw": "lines", "x": "training.epochs"}, 1, 2),
    ],
)
def test_figures_draw_every_seed(figure, count, lines) -> None:
    content = published({"a": [0.5, 0.6], "b": [0.55, 0.6]}).model_dump()
    content["study"] |= {"figure": figure}
    if figure and figure["draw"] == "lines":
        content["study"] |= {"axes": {"training.epochs": [1, 2]}, "cells": []}
        for cell, level in zip(content["result"]["cells"], "12", strict=True):
            cell["levels"] = {"training.epochs": level}
        lines = 1  # one line of two places, so no legend
    drawn = figures(study_table.table(PublishedStudy.model_validate(content)))
    assert len(drawn) == count
    for _, chart in drawn:
        assert len(re.findall("<circle", chart)) == (12 if figure["draw"] == "curves" else 4)  # type: ignore[index]
    assert sum(chart.count("<polyline") for _, chart in drawn) == lines


@pytest.mark.parametrize("draw", ["bars", "curves", "together"])
def test_a_number_that_a_cell_lacks_is_left_open_in_words_and_figures(draw) -> None:
    content = published({"a": [0.5, 0.6], "b": [0.55, 0.6], "c": [0.9, 0.8]}, {"draw": draw}).model_dump()
    for run in content["result"]["runs"]:
        if run["cell"] == "b":
            del run["values"]["m: curve"]
        if run["cell"] == "c":
            run["values"]["m: other"] = 1.0
    for run in content["result"]["runs"]:
        if run["cell"] != "a":
            run["values"]["m: later"] = 1.0
    numbers = study_table.table(PublishedStudy.model_validate(content))
    labels = [(column.label, column.x) for column in numbers.columns]
    place = labels.index(("m: curve", 0.1))
    assert [len(line.entries[place].values) for line in numbers.lines] == [2, 0, 2]
    assert [line.entries[place].difference is None for line in numbers.lines] == [True, True, False]
    other = labels.index(("m: other", None))
    assert [numbers.columns[other].text(line.entries[other].mean) for line in numbers.lines] == ["–", "–", "1"]
    assert "m: other: one setting, nothing to compare." in numbers.words
    assert "m: later: not compared, since a has none." in numbers.words
    content["study"]["measures"][1]["images"] = 20
    few = PublishedStudy.model_validate(content)
    assert [study_table.images_of(few, label) for label in ("clean", "m (first 20 images): curve")] == [100, 20]
    assert any(words.startswith("m: curve: ") and "b at" not in words for words in numbers.words)
    assert "nan" not in "".join(str(chart) for _, chart in figures(numbers))
