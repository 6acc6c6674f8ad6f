"""Images put back into their ball and box, and those too far outside refused."""

from __future__ import annotations

import pytest
import torch

from benchmark.attacks.ball import distances, into_ball
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel


@pytest.mark.parametrize("norm", ["L2", "Linf"])
def test_into_ball_brings_rounding_back_and_refuses_more(norm) -> None:
    images = torch.rand(50, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    threat = ThreatModel(norm=norm, eps=0.3)
    direction = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    size = torch.linalg.vector_norm(direction, float("inf") if norm == "Linf" else 2, (1, 2, 3), keepdim=True)
    inside = into_ball((images + direction / size * 0.300001).clamp(-5e-6, 1 + 5e-6), images, threat, "test")
    assert distances(inside, images)[norm].max() <= 0.3 + 1e-12
    assert 0 <= inside.min() <= inside.max() <= 1
    assert torch.equal(into_ball(images, images, ThreatModel(norm=norm, eps=0.0), "test"), images)
    flat = torch.full_like(images, 0.5)
    with pytest.raises(BenchmarkError, match="left its"):
        into_ball(flat + direction / size * 0.31, flat, threat, "test")


def test_into_ball_refuses_nan_shape_and_box() -> None:
    images, threat = torch.full((2, 1, 2, 2), 0.9), ThreatModel(norm="Linf", eps=0.5)
    wrong = {"not finite": images * float("nan"), "shape": images[:1], r"left \[0, 1\]": images + 0.3}
    for words, adversarial in wrong.items():
        with pytest.raises(BenchmarkError, match=words):
            into_ball(adversarial, images, threat, "test")
