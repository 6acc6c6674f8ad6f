"""Suites: those of a track's development, which are no stage of the pipeline, and what may not be mistaken for another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from edited_file import edit
from stages import run_stage, stage_code
from tiny_linear_row import BROUGHT, EXACT, NAMES, ROW

from benchmark.commands.attack import try_suite
from benchmark.loading import tracks
from benchmark.pipeline import generate
from benchmark.results.record import headline_names
from benchmark.runtime.errors import BenchmarkError


def test_a_development_suite_is_tried_and_leaves_no_trace(linear_row, capsys) -> None:
    edit("params.yaml", "wall: full", "wall: none")
    before = {path: path.read_bytes() for path in Path("work/tiny").rglob("*") if path.is_file()}
    n, clean, attacks = try_suite("tiny", NAMES[1], "quick")
    assert {path: path.read_bytes() for path in Path("work/tiny").rglob("*") if path.is_file()} == before
    standing = attacks["quick-L2-0.5"]
    assert 0 < standing.count < clean <= n == 20
    assert [*standing.parts] == ["apgd-ce", "apgd-t"]
    assert standing.parts["apgd-t"] == standing.count
    assert any("attacking" in line and "apgd-ce" in line for line in capsys.readouterr().err.splitlines())
    linear_row.bring("Tiny2026Linear", "brought", EXACT, BROUGHT)
    _, clean, attacks = try_suite("tiny", NAMES[1], "adaptive")
    assert attacks["brought-L2-0.5"].count < clean
    assert not (ROW / "attack-adaptive").exists()


def test_a_suite_that_is_unknown_or_not_to_be_published_is_refused(linear_row) -> None:
    for suite, near in (("quik", "did you mean 'quick'"), ("paper", "did you mean 'papers'")):
        with pytest.raises(BenchmarkError, match=rf"no suite '{suite}'; {near}"):
            try_suite("tiny", NAMES[1], suite)
    with pytest.raises(BenchmarkError, match="quick is for development and never published"):
        run_stage("attack-quick", *NAMES)
    with pytest.raises(BenchmarkError, match="declares no adaptive attack"):
        run_stage("attack-adaptive", *NAMES)
    (ROW / "train/model.safetensors").unlink()
    with pytest.raises(BenchmarkError, match=r"model\.safetensors is missing"):
        try_suite("tiny", NAMES[1], "quick")


def test_development_suites_are_no_rule_of_the_comparison(linear_row) -> None:
    """With and without them: the same stages, columns and code; only files that name the track's file by hash see it."""
    path = Path("benchmark/tracks/tiny.yaml")
    before, track, code = generate.generate(), tracks.load("tiny"), stage_code("attack-papers", *NAMES)
    path.write_text(yaml.safe_dump({k: v for k, v in yaml.safe_load(path.read_text()).items() if k != "development"}))
    without = tracks.load("tiny")
    assert (track.development, without.development) != ({}, {})
    assert without.development == {}
    assert generate.generate() == before
    assert (without.threats, headline_names(without)) == (track.threats, headline_names(track))
    assert stage_code("attack-papers", *NAMES) == code
    for stages in (yaml.safe_load(text).get("stages", {}) for name, text in before.items() if name.name == "dvc.yaml"):
        assert "development" not in json.dumps(stages)
        assert "quick" not in json.dumps(stages)
