"""Suites: those of a track's development, which are no stage of the pipeline, and what may not be mistaken for another."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch
import yaml
from pydantic import ValidationError
from stages import run_stage, stage_code
from tiny_linear_row import BROUGHT, EXACT, NAMES, ROW
from tiny_models import Linear, grey_images

from benchmark.attacks import autoattack, quick
from benchmark.commands.attack import try_suite
from benchmark.evaluation import evidence
from benchmark.loading import methods, tracks
from benchmark.pipeline import generate
from benchmark.results.headline import headline_names
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import Track


def test_a_development_suite_is_tried_and_leaves_no_trace(linear_row) -> None:
    before = {path: path.read_bytes() for path in Path("work/tiny").rglob("*") if path.is_file()}
    told: list[str] = []
    trial = try_suite("tiny", "Tiny2026Linear-small", "quick", told.append)
    assert {path: path.read_bytes() for path in Path("work/tiny").rglob("*") if path.is_file()} == before
    assert 0 < trial.robust["quick-L2-0.5"] < trial.clean <= trial.n == 20
    assert [*trial.parts["quick-L2-0.5"]] == ["apgd-ce", "apgd-t"]
    assert trial.parts["quick-L2-0.5"]["apgd-t"] == trial.robust["quick-L2-0.5"]
    assert any("attacking" in line and "apgd-ce" in line for line in told)
    linear_row.bring("Tiny2026Linear", "brought", EXACT, BROUGHT)
    tried = try_suite("tiny", "Tiny2026Linear-small", "adaptive", told.append)
    assert tried.robust["brought-L2-0.5"] < tried.clean
    assert not (ROW / "attack-adaptive").exists()


def test_a_suite_that_is_unknown_or_not_to_be_published_is_refused(linear_row) -> None:
    for suite, near in (("quik", "did you mean 'quick'"), ("paper", "did you mean 'papers'")):
        with pytest.raises(BenchmarkError, match=rf"no suite '{suite}'; {near}"):
            try_suite("tiny", "Tiny2026Linear-small", suite, print)
    with pytest.raises(BenchmarkError, match="quick is for development and never published"):
        run_stage("attack-quick", *NAMES)
    with pytest.raises(BenchmarkError, match="declares no adaptive attack"):
        run_stage("attack-adaptive", *NAMES)
    (ROW / "train/model.safetensors").unlink()
    with pytest.raises(BenchmarkError, match=r"model\.safetensors is missing"):
        try_suite("tiny", "Tiny2026Linear-small", "quick", print)


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
    for stages in (json.loads(text).get("stages", {}) for name, text in before.items() if name.name == "dvc.yaml"):
        assert "development" not in json.dumps(stages)
        assert "quick" not in json.dumps(stages)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"development": {"standard": []}}, "a suite standard is published"),
        ({"development": {"adaptive": []}}, "a suite adaptive is published"),
        ({"suites": {"adaptive": []}, "development": {}}, "the suite adaptive is each row's own"),
        ({"suites": {"standard": [{"attack": "quick", "norm": "L2", "eps": 1.0}]}}, "quick is a part of AutoAttack"),
        ({"development": {"d": [{"attack": "pgd", "norm": "L2", "eps": 1.0}] * 2}}, "stands twice in the development suite d"),
    ],
)  # fmt: skip
def test_tracks_with_suites_that_could_be_mistaken_are_refused(change, message) -> None:
    with pytest.raises(ValidationError, match=message):
        Track.model_validate(tracks.load("digits").model_dump() | change)


def test_a_development_suite_may_repeat_an_attack_of_the_published_ones() -> None:
    track = tracks.load("digits").model_dump()
    track["development"]["more"] = [*track["suites"]["standard"], *track["development"]["quick"]]
    assert Track.model_validate(track).threats == tracks.load("digits").threats


def test_quick_is_the_first_two_parts_of_autoattack_by_another_name() -> None:
    model, images = Linear().eval().requires_grad_(False), grey_images()
    labels = model(images).argmax(1)
    threat = ThreatModel(norm="L2", eps=float(model.radius(images, labels, "L2").median()))
    assert quick.components == autoattack.components[:2]
    for part in quick.components:
        found = quick.attack(model, images, labels, threat, seed=0, component=part)
        assert torch.equal(found, autoattack.attack(model, images, labels, threat, seed=0, component=part))
    with pytest.raises(ValueError, match="no component 'square'"):
        quick.attack(model, images, labels, threat, seed=0, component="square")
    specs = tracks.load("digits").development["quick"]
    assert [spec.id for spec in specs] == ["quick-Linf-0.15", "quick-L2-0.5"]


def test_evidence_of_two_stages_with_one_column_is_refused() -> None:
    shared = {"label": [1], "clean_prediction": [1], "clean_margin": [0.5]}
    first = pa.table({**shared, "pgd-L2-1:success": [True]})
    with pytest.raises(BenchmarkError, match="attack-adaptive and one before it both hold pgd-L2-1:success"):
        evidence.merge({"attack-papers": first, "attack-adaptive": first})


def test_only_autoattack_may_have_its_name() -> None:
    spec = {"norm": "L2", "eps": 1.0}
    assert AttackSpec(attack="autoattack", name="autoattack_again", **spec).id == "autoattack_again-L2-1"
    with pytest.raises(ValidationError, match="would pass for AutoAttack"):
        AttackSpec(attack="pgd", name="auto_attack", **spec)
    assert methods.attack_file("autoattack") == Path("benchmark/attacks/autoattack.py")
