"""Which corruptions a track may ask for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from benchmark.data import corruptions
from benchmark.specs.corruptions import COMMON, EXTRA, CorruptionSpec


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"names": ["frosted"]}, "unknown corruption 'frosted'; did you mean 'frost'?"),
        ({"severities": [0]}, "unknown severity 0; known: 1, 2, 3, 4, 5"),
        ({"names": ["fog", "fog"]}, "fog stands twice"),
        ({"severities": [2, 2]}, "2 stands twice"),
        ({"names": []}, "names"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_rules_are_refused(rules, message) -> None:
    with pytest.raises(ValidationError) as raised:
        CorruptionSpec.model_validate(rules)
    assert message in str(raised.value)


def test_rules_default_to_the_fifteen_at_five_severities() -> None:
    assert len(CorruptionSpec().cells) == 75
    assert len(set(COMMON + EXTRA)) == 19
    library = corruptions._library()
    assert tuple(tuple(library.get_corruption_names(kind)) for kind in ("common", "validation")) == (COMMON, EXTRA)
