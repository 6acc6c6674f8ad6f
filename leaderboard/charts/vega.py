"""Charts that a page draws with Vega-Lite; their numbers are in the page, and beside it as CSV."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert

SCRIPT = "static/vega.js"
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


@dataclass(frozen=True)
class Chart:
    """One figure.

    Attributes:
        name: of its element on the page and of its file, such as "sandwich".
        words: the numbers that matter, for who does not see the picture.
        drawn: Vega-Lite without data (`layered`).
        heads, lines: the numbers, which the data set `table` has as a record a line.
    """

    name: str
    caption: str
    words: str
    drawn: Mapping[str, Any]
    heads: Sequence[str]
    lines: Sequence[Sequence[object]]

    @property
    def content(self) -> dict[str, Any]:
        """Return what the page's script draws: the specification, and the numbers as short lines."""
        return {"drawn": self.drawn, "heads": self.heads, "lines": self.lines}

    @property
    def spec(self) -> dict[str, Any]:
        """Return the specification in Vega-Lite, with the numbers."""
        return {**self.drawn, "datasets": {"table": [dict(zip(self.heads, line, strict=True)) for line in self.lines]}}

    @property
    def file(self) -> str:
        return f"{self.name}.csv"

    @property
    def csv(self) -> str:
        return csv_text([self.heads, *self.lines])


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def layered(height: int, layers: Sequence[Mapping[str, Any]], **shared: Any) -> dict[str, Any]:
    """Return Vega-Lite of layers over the data set `table`; `shared`: what all layers have, as "encoding" or "transform"."""
    return {
        "$schema": SCHEMA, "data": {"name": "table"}, "width": "container", "height": height, **shared, "layer": [*layers],
    }  # fmt: skip


def number(field: str, **more: Any) -> dict[str, Any]:
    """Return the Vega-Lite encoding of a field that has numbers."""
    return {"field": field, "type": "quantitative", **more}


def name(field: str, **more: Any) -> dict[str, Any]:
    """Return the Vega-Lite encoding of a field that has names."""
    return {"field": field, "type": "nominal", **more}


def script(kept: Path = Path()) -> str:
    """Return Vega, Vega-Lite and vega-embed as one script: the file `kept` if it is of this version, since making it takes
    seconds.
    """
    mark = f"// vl-convert-python {version('vl-convert-python')}\n"
    text = kept.read_text() if kept.is_file() else ""
    return text if text.startswith(mark) else mark + _bundle()


@functools.cache
def _bundle() -> str:
    return vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub asks for what it need not have


def picture(chart: Chart, title: str) -> bytes:
    """Return a PNG of at least 1,200 x 630 pixels, on white, as link previews (Open Graph) show it.

    Its letters are larger than a page's.
    """
    axis = {"labelFontSize": 16, "titleFontSize": 18, "titleFontWeight": "normal", "gridColor": "#eee"}
    config = {
        "axis": axis, "legend": {"labelFontSize": 18, "labelLimit": 400}, "text": {"fontSize": 16},
        "title": {"fontSize": 24, "anchor": "start", "offset": 12}, "view": {"stroke": None},
    }  # fmt: skip
    sized = {**chart.spec, "width": 1060, "height": 460, "background": "white", "padding": 24}
    return vl_convert.vegalite_to_png(json.dumps({**sized, "title": title, "config": config}))
