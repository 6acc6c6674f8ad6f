"""Learning rates over a recipe's time."""

from __future__ import annotations

import pytest
from tiny_training import spec

from benchmark.training.steps import lr_factor


def test_schedules() -> None:
    cosine = spec(epochs=10, schedule="cosine", rate_warmup_epochs=2, final_rate=0.1)
    assert [lr_factor(cosine, p) for p in (0, 1, 2, 6, 10)] == pytest.approx([0.01, 0.505, 1, 0.55, 0.1])
    constant = spec(epochs=10, schedule="constant", rate_warmup_epochs=2)
    assert [lr_factor(constant, p) for p in (0, 2, 9.9)] == pytest.approx([0.01, 1, 1])
    assert [lr_factor(spec(epochs=10), p) for p in (0, 3, 10)] == pytest.approx([0.04, 1, 0])
    assert lr_factor(spec(epochs=10), 6.5) == pytest.approx(0.5)
