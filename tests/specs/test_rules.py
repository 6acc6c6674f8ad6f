"""Rules of tracks, attacks and YAML: what makes no sense is refused, the rest is read as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmark.data import corruptions
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.yaml_file import read_yaml
from benchmark.specs import methods, tracks
from benchmark.specs.base import to_json
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import COMMON, EXTRA, CorruptionSpec, PicturesSpec, Track


@pytest.mark.parametrize(
    ("kind", "rules", "message"),
    [
        (CorruptionSpec, {"names": ["frosted"]}, "unknown corruption 'frosted'; did you mean 'frost'?"),
        (CorruptionSpec, {"severities": [0]}, "unknown severity 0; known: 1, 2, 3, 4, 5"),
        (CorruptionSpec, {"names": ["fog", "fog"]}, "fog stands twice"),
        (CorruptionSpec, {"severities": [2, 2]}, "2 stands twice"),
        (CorruptionSpec, {"names": []}, "names"),
        (CorruptionSpec, {"seed": -1}, "seed"),
        (PicturesSpec, {"eps": 8}, "less than or equal to 1"),
        (PicturesSpec, {"eps": 0.1, "images": 0}, "images"),
        (PicturesSpec, {"eps": 0.1, "radii": [1, 2, 3, 4, 5]}, "at most 4"),
        (PicturesSpec, {"eps": 0.1, "radii": [1, 1]}, "a radius stands twice"),
        (PicturesSpec, {"eps": 0.1, "radii": [0]}, "greater than 0"),
        (ThreatModel, {"norm": "Linf", "eps": 8}, "pixels in [0, 1]"),
        (ThreatModel, {"norm": "L2", "eps": -0.1}, "greater than or equal to 0"),
        (AttackSpec, {"attack": "pgd", "name": "auto_attack", "norm": "L2", "eps": 1.0}, "would pass for AutoAttack"),
    ],
)
def test_rules_that_make_no_sense_are_refused(kind, rules, message) -> None:
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(rules)
    assert message in str(raised.value)


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


FGSM = {"attack": "fgsm", "norm": "Linf", "eps": 0.15}


def test_records_are_frozen_and_round_trip() -> None:
    track = tracks.load("digits")
    with pytest.raises(ValidationError):
        track.version = 2
    assert Track.model_validate_json(to_json(track)) == track


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"suites": {"a": [FGSM], "b": [FGSM]}, "development": {}}, r"fgsm-Linf-0\.15 stands twice"),
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


@pytest.mark.parametrize("key", ["no", "2", "1.5", "null", "on"])
def test_a_key_that_is_no_text_is_told_to_be_quoted(tmp_path, key) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(f"variants:\n  {key}: {{title: A}}\n")
    with pytest.raises(BenchmarkError, match=r"one\.yaml: not valid YAML: the key .* is no text; put it in quotes"):
        read_yaml(path)
    path.write_text(f"variants:\n  '{key}': {{title: A}}\n")
    assert read_yaml(path) == {"variants": {key: {"title": "A"}}}
