"""What steps took: here before published, and rows that take longest first."""

from __future__ import annotations

import math
import shutil

from tiny_linear_row import NAMES, ROW
from typer.testing import CliRunner

from benchmark.commands.main import app
from benchmark.loading.rows import load_row
from benchmark.pipeline import costs, repro
from benchmark.runtime import files


def test_what_was_published_is_known_where_nothing_ran(linear_row) -> None:
    row = load_row(*NAMES)
    for step in ("train", "attack-papers", "reliability", "attention", "collect"):
        files.write_json(ROW / f"times/{step}.json", {"wall_seconds": 2.0, "core_seconds": 1.5, "cost_seconds": 1.5})
    assert repro.haste(row)[0] == -10.0
    costs.publish("tiny", [row.name])
    shutil.rmtree(ROW / "times")
    assert repro.haste(row)[0] == -10.0
    files.write_json(ROW / "times/train.json", {"wall_seconds": 7.0, "core_seconds": 7.0, "cost_seconds": 7.0})
    assert repro.haste(row)[0] == -15.0
    planned = CliRunner().invoke(app, ["plan", "--track", "tiny"])
    assert "together 15 s, 13 core-seconds" in planned.stdout
    (costs.PUBLISHED / "tiny" / costs.FILE).unlink()
    assert repro.haste(row)[0] == -math.inf
    assert "4 steps never ran here" in CliRunner().invoke(app, ["plan", "--track", "tiny"]).stdout
