"""Cost of stages, and on which device: `times.js` beside the pages, which no hash covers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmark.runtime import files
from benchmark.runtime.clock import device_cost
from leaderboard.rank import Row

Cost = dict[str, int | float | str]  # of a step (benchmark/runtime/clock.py)
# of training: the name, the devices that count ("" for processors), and the most seconds of them
BUDGETS = (
    ("10 GPU-minutes", ("NVIDIA H100", "NVIDIA H200"), 600.0),
    ("1 GPU-hour", ("NVIDIA H100", "NVIDIA H200"), 3600.0),
    ("3 core-hours", (), 10800.0),
)


def write_times(site: Path, folder: Path, rows: list[Row], published: Path | None = None) -> None:
    """Write the times that are `published`, in times.json there; of other rows those of their build in `folder`."""
    kept = published / "times.json" if published else None
    again = "bring it back with git, or delete it and publish the rows again"
    published_times = files.read_model(kept, dict[str, dict[str, Cost]], again) if kept and kept.exists() else {}
    files.write(site / "times.js", f"const TIMES = {json.dumps(times(folder, rows, published_times), sort_keys=True)};\n")


def times(
    folder: Path, rows: list[Row], published: Mapping[str, dict[str, Cost]] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """Return seconds of training and of everything after it, by row, where each was measured; both by device; and `budgets`.

    A GPU's seconds are those for which a stage held it; a processor's those of all cores that its processes kept busy.
    """
    seconds: dict[str, dict[str, Any]] = {}
    for row in rows:
        built = sorted((folder / row.record.row / "times").glob("*.json"))
        measured = published.get(row.record.row) or {path.stem: files.read_model(path, Cost) for path in built}
        if "train" not in measured:
            continue
        parts = {"evaluation": [cost for stage, cost in measured.items() if stage != "train"]}
        if row.record.training:  # where weights were only taken over, nothing was trained
            parts["training"] = [measured["train"]]
        parts = {part: costs for part, costs in parts.items() if costs}
        seconds[row.record.row] = {part: round(sum(map(device_cost, of)), 1) for part, of in parts.items()}
        seconds[row.record.row]["devices"] = {part: _by_device(of) for part, of in parts.items()}
        recipe = row.record.settings.training
        if row.record.training and not (recipe and recipe.init_from):  # else others paid for the weights at the start
            seconds[row.record.row]["budgets"] = budgets(measured["train"])
    return seconds


def budgets(training: Mapping[str, Any]) -> list[str]:
    """Return the names of the BUDGETS that hold what a training step cost; none where its device is not named."""
    device, is_gpu = training.get("device"), "device_seconds" in training
    return [
        name
        for name, devices, most in BUDGETS
        if device and device_cost(training) <= most and (device.startswith(devices) if devices else not is_gpu)
    ]


def _by_device(measured: list[dict[str, Any]]) -> dict[str, float]:
    """Return seconds by device, without stages that name no device (older ones)."""
    seconds: dict[str, float] = {}
    for stage in measured:
        if device := stage.get("device"):
            seconds[device] = seconds.get(device, 0.0) + device_cost(stage)
    return {device: round(much, 1) for device, much in seconds.items()}
