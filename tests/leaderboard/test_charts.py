"""Charts put values where their axes say."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.charts.lines import BOTTOM, HEIGHT, TOP, Line, line_chart
from leaderboard.charts.svg import ticks


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
    plot = HEIGHT - TOP - BOTTOM
    assert heights(svg, "line0") == [TOP, TOP + plot / 2, HEIGHT - BOTTOM]
    top, bottom, middle = heights(svg, "line1")
    assert (top, bottom) == (TOP, HEIGHT - BOTTOM), "an axis without given ends spans round numbers around its values"
    assert middle == pytest.approx((top + bottom) / 2)
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "A <title>. a & b: 0: 100, 1: 50, 2: 0; m: 0: 3, 1: -1, 2: 1"
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & b (solid)", "m (dashed)", "steps", "0", "1", "2", "100", "-1", "3"} <= set(texts)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_hold_their_values_and_are_few_and_even(low: float, span: float) -> None:
    found = ticks(low, low + span)
    size = found[1] - found[0]
    assert found[0] <= low + 1e-6 * size
    assert found[-1] >= low + span - 1e-6 * size
    assert 2 <= len(found) <= 7
    assert all(b - a == pytest.approx(size, rel=1e-6) for a, b in itertools.pairwise(found))
