"""How long stages took on this machine: `times.js` beside the pages, which no hash covers."""

from __future__ import annotations

import json
from pathlib import Path

from benchmark.runtime import files
from leaderboard.rank import Row


def write_times(site: Path, folder: Path, rows: list[Row]) -> None:
    files.write(site / "times.js", f"const TIMES = {json.dumps(times(folder, rows), sort_keys=True)};\n")


def times(folder: Path, rows: list[Row]) -> dict[str, dict[str, float]]:
    """Wall seconds of training and of everything after it, by row, where this machine measured them."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        seconds = {
            path.stem: json.loads(path.read_text())["wall_seconds"]
            for path in sorted((folder / row.record.row / "times").glob("*.json"))
        }
        if "train" in seconds:
            training = seconds.pop("train")
            found[row.record.row] = {"evaluation": round(sum(seconds.values()), 1)}
            if row.record.training:  # where weights were only taken over, nothing was trained
                found[row.record.row]["training"] = round(training, 1)
    return found
