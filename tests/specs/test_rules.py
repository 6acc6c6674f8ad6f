"""Tracks, attacks and recipes: defaults, names, and what is read as it was written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from stages import stage_code, stage_names
from torch import nn

from benchmark import protocol
from benchmark.data import corruptions
from benchmark.runtime.yaml_file import read_yaml
from benchmark.specs import methods, submissions, tracks
from benchmark.specs.rows import load_row
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import COMMON, EXTRA, CorruptionSpec, Track
from benchmark.specs.training import TrainingSpec


def test_names_of_threats_and_attacks() -> None:
    assert ThreatModel(norm="L2", eps=3.0).label == "L2 3"
    again = AttackSpec(attack="autoattack", name="autoattack_again", norm="L2", eps=1.0)
    assert again.id == "autoattack_again-L2-1"
    assert methods.attack_file("autoattack") == Path("benchmark/attacks/autoattack.py")


def test_corruptions_default_to_the_fifteen_at_five_severities() -> None:
    assert len(CorruptionSpec().cells) == 75
    assert len(set(COMMON + EXTRA)) == 19
    library = corruptions._library()
    assert tuple(tuple(library.get_corruption_names(kind)) for kind in ("common", "validation")) == (COMMON, EXTRA)


def test_options_that_a_recipe_leaves_out_are_off_and_keep_its_digest() -> None:
    given = TrainingSpec(objective="standard", epochs=2, batch_size=2, learning_rate=0.1)
    assert not given.augmentation.any
    assert "closing" not in given.model_dump()
    options = (given.sam, given.ema, given.clip_norm, given.schedule, given.weight_decay_on)
    assert options == (0, 0, 0, "one_cycle", "all")


def test_a_development_suite_may_repeat_an_attack_of_the_published_ones() -> None:
    track = tracks.load("digits").model_dump()
    track["development"]["more"] = [*track["suites"]["standard"], *track["development"]["quick"]]
    assert Track.model_validate(track).threats == tracks.load("digits").threats


def test_a_quoted_key_is_text_whatever_it_says(tmp_path) -> None:
    path = tmp_path / "one.yaml"
    for key in ("no", "2", "1.5", "null", "on"):
        path.write_text(f"variants:\n  '{key}': {{title: A}}\n")
        assert read_yaml(path) == {"variants": {key: {"title": "A"}}}


def test_every_model_of_a_submission_is_a_torch_module() -> None:
    for name in submissions.names():
        submission = submissions.load(name)
        for variant in (v for v, entry in submission.variants.items() if "digits" in entry.tracks):
            assert isinstance(methods.build(submission, variant, tracks.load("digits")), nn.Module)


def test_every_closed_row_of_a_track_is_smoothed_when_the_track_says_so() -> None:
    for name in ("Wong2020Fast-linf", "Havens2024LoFAST-mean_pool"):
        row = load_row("digits", name)
        assert stage_names("digits", name)[-4:] == ["smooth", "pictures", "attention", "collect"]
        without = dataclasses.replace(row, track=row.track.model_copy(update={"smoothing": None}))
        opened = dataclasses.replace(row, submission=row.submission.model_copy(update={"division": "open"}))
        for other in (without, opened):
            assert "smooth" not in [step.name for step in protocol.plan(other)]
        assert Path("benchmark/certificates/smoothing.py") in stage_code("smooth", "digits", name)
        assert Path("benchmark/certificates/smoothing.py") not in stage_code("train", "digits", name)
