"""What stages cost and on what: `times.js` beside the pages, which no hash covers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmark.runtime import files
from benchmark.runtime.clock import device_cost
from leaderboard.rank import Row


def write_times(site: Path, folder: Path, rows: list[Row], published: Path | None = None) -> None:
    """Write those of rows that are built in `folder`; of others those that are `published`, in times.json there."""
    kept = published / "times.json" if published else None
    known = files.read_json(kept) if kept and kept.exists() else {}
    files.write(site / "times.js", f"const TIMES = {json.dumps(times(folder, rows, known), sort_keys=True)};\n")


def times(
    folder: Path, rows: list[Row], known: Mapping[str, dict[str, Any]] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """Return seconds of training and of everything after it, by row, where they were measured, and both by device.

    A GPU's seconds are those for which a stage held it; a processor's those of all cores that its processes kept busy.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        measured = {
            p.stem: json.loads(p.read_text()) for p in sorted((folder / row.record.row / "times").glob("*.json"))
        }
        measured = measured or known.get(row.record.row, {})
        if "train" not in measured:
            continue
        parts = {"evaluation": [one for stage, one in measured.items() if stage != "train"]}
        if row.record.training:  # where weights were only taken over, nothing was trained
            parts["training"] = [measured["train"]]
        found[row.record.row] = {part: round(sum(map(device_cost, of)), 1) for part, of in parts.items()}
        found[row.record.row]["devices"] = {part: _by_device(of) for part, of in parts.items()}
    return found


def _by_device(measured: list[dict[str, Any]]) -> dict[str, float]:
    """Times that were written before stages named their device count for none."""
    seconds: dict[str, float] = {}
    for one in measured:
        parts = one.get("parts", {})
        if "device" in one:
            own = {one["device"]: device_cost(one) - sum(parts.values())}
            for device, much in [*own.items(), *parts.items()]:
                seconds[device] = seconds.get(device, 0.0) + much
    return {device: round(much, 1) for device, much in seconds.items()}
