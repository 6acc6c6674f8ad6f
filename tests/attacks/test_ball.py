"""Images are put back into ball and box, or refused; margins, and logits that are not finite."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Through
from torch import nn

from benchmark.attacks.ball import distances, into_ball
from benchmark.attacks.prediction import logits, margins
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel


@pytest.mark.parametrize("norm", ["L2", "Linf"])
def test_rounding_is_put_back_into_the_ball_and_more_is_refused(norm) -> None:
    images = torch.rand(50, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    threat = ThreatModel(norm=norm, eps=0.3)
    direction = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    size = torch.linalg.vector_norm(direction, float("inf") if norm == "Linf" else 2, (1, 2, 3), keepdim=True)
    inside = into_ball((images + direction / size * 0.300001).clamp(-5e-6, 1 + 5e-6), images, threat, "test")
    assert distances(inside, images)[norm].max() <= 0.3 + 1e-12
    assert 0 <= inside.min() <= inside.max() <= 1
    assert torch.equal(into_ball(images, images, ThreatModel(norm=norm, eps=0.0), "test"), images)
    flat = torch.full_like(images, 0.5)
    small = into_ball(flat + direction / size * 2e-3, flat, ThreatModel(norm=norm, eps=2e-3), "test")
    assert distances(small, flat)[norm].min() > 1e-3, "no image goes back to its clean one"
    with pytest.raises(BenchmarkError, match="left its"):
        into_ball(flat + direction / size * 0.31, flat, threat, "test")


def test_nan_another_shape_and_points_outside_the_box_are_refused() -> None:
    images, threat = torch.full((2, 1, 2, 2), 0.9), ThreatModel(norm="Linf", eps=0.5)
    wrong = {"not finite": images * float("nan"), "shape": images[:1], r"left \[0, 1\]": images + 0.3}
    for words, adversarial in wrong.items():
        with pytest.raises(BenchmarkError, match=words):
            into_ball(adversarial, images, threat, "test")


def test_logits_that_are_not_finite_name_the_image() -> None:
    images = torch.zeros(5, 1, 2, 2)
    images[3] = 0.9
    model = Through(nn.Flatten(), after=lambda z, x: z.masked_fill(x.flatten(1) > 0.8, float("nan")))
    with pytest.raises(BenchmarkError, match="evaluation image 3"):
        logits(model, images, 2)


def test_a_margin_is_the_true_logit_less_the_largest_other() -> None:
    assert margins(torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 5.0]]), torch.tensor([0, 1])).tolist() == [1.0, 0.0]
