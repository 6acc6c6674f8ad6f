"""Rules of tracks and attacks: what makes no sense is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmark.data import corruptions
from benchmark.loading import methods
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import COMMON, EXTRA, CorruptionSpec, PicturesSpec


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
