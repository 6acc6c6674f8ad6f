"""A row's training by epoch: its loss, and the scores by which the epoch was selected."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmark.records.record import Record
from leaderboard.charts.vega import Chart, layered, name, number

NAMES = {"score": "score that selects", "trained": "right under the attack trained on", "pgd": "right under that and PGD"}
POINTS = 400  # epochs drawn at most


def read_history(folder: Path, record: Record) -> dict[str, list[float]]:
    """Return what the row's `folder` kept of each epoch; nothing where it is missing, damaged or of other weights."""
    try:
        about = json.loads((folder / "train" / "stage.json").read_text())
        history = json.loads((folder / "train" / "history.json").read_text())
        if about["sha256"]["model.safetensors"] != record.sha256.get("weights"):
            return {}
        return {name: [float(value) for value in history[name]] for name in ("loss", *NAMES) if history.get(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def training_charts(record: Record, history: dict[str, list[float]]) -> list[Chart]:
    """Return charts of the loss and of the scores on validation images; none if no history was kept."""
    if record.training is None:
        return []
    epoch, charts = record.training.selected_epoch, []
    if loss := history.get("loss"):
        words = f"Loss over {len(loss)} epochs, from {loss[0]:.3g} to {loss[-1]:.3g}."
        caption = f"Training loss, the mean of each epoch.{_skipped(loss)}"
        lines = _lines({"training loss": loss}, epoch)
        charts.append(Chart("training-loss", caption, words, _drawn("loss"), HEADS, lines))
    scores = {NAMES[name]: history[name] for name in NAMES if history.get(name)}
    if scores:
        ends = "; ".join(f"{name}: {seen[-1]:.3g} at the end, {max(seen):.3g} at most" for name, seen in scores.items())
        caption = (
            f"On validation images. The score is {record.training.selected_by}; the line stands at epoch {epoch}, which was "
            "selected."
        )
        longest = max(scores.values(), key=len)
        words, lines = f"Scores over epochs. {ends}.", _lines(scores, epoch)
        caption += _skipped(longest)
        charts.append(Chart("training-scores", caption, words, _drawn("on validation images"), HEADS, lines))
    return charts


HEADS = ("epoch", "curve", "value", "selected")


def _lines(curves: dict[str, list[float]], selected: int) -> list[tuple[int, str, float | None, bool]]:
    return [
        (i, name, values[i - 1] if math.isfinite(values[i - 1]) else None, i == selected)
        for name, values in curves.items()
        for i in range(1, len(values) + 1)
        if (i - 1) % _every(values) == 0 or i in (selected, len(values))
    ]


def _every(values: list[float]) -> int:
    return -(-len(values) // POINTS)


def _skipped(values: list[float]) -> str:
    return f" One epoch in {_every(values)} is drawn." if _every(values) > 1 else ""


def _drawn(title: str) -> dict[str, Any]:
    legend = {"title": None, "orient": "bottom", "columns": 1, "labelLimit": 0}
    curve = name("curve", sort=None, legend=legend)
    lines = {
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 12}},
        "encoding": {
            "y": number("value", title=title, scale={"zero": title != "loss"}), "color": curve, "strokeDash": curve,
            "tooltip": [number("epoch"), name("curve"), number("value", format=".4g")],
        },
    }  # fmt: skip
    selected = {"transform": [{"filter": "datum.selected"}], "mark": {"type": "rule", "strokeDash": [4, 4]}}
    x = number("epoch", title="epoch", axis={"tickMinStep": 1, "labelFlush": False})
    return layered(220, [selected, lines], encoding={"x": x})
