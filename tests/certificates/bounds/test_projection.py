"""The sensitivity of a token's projection, against the same formula in 60 digits, where the ball is tiny beside the token."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
import torch
from searched import few

from benchmark.certificates.bounds.layer_bound import PerturbationSet
from benchmark.certificates.bounds.projection import ProjectionBound, projection_bound
from benchmark.layers.tokens import LayerProject


def exact(r: float | Decimal, ball: float, e: float) -> Decimal:
    """sup |p(x + D) - p(x)| over |D| <= e for |x| = r, by the proof's two forms."""
    with localcontext() as context:
        context.prec = 60
        r, ball, e = Decimal(r), Decimal(ball), Decimal(e)
        if r <= ball:
            return e
        if e * e <= r * r - ball * ball:
            return min(e, ball * (2 * (1 - (1 - (e / r) ** 2).sqrt())).sqrt())
        chord = (ball / r) * (e * e - (r - ball) ** 2)
        return min(e, 2 * ball, chord.sqrt())


RATIOS = (1e-12, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 0.3, 0.5, 0.7, 1 - 1e-6, 1 - 1e-12, 1 - 2.0**-52)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("r", few([3e-4], [0.7, 1.0, 5e6]))
def test_nothing_cancels_where_the_ball_is_tiny(r, ratio) -> None:
    """Around all places where a form begins or ends: e = r - R, the tangent's sqrt(r^2 - R^2), r and r + R."""
    ball = r * ratio
    meet = float(((Decimal(r) - Decimal(ball)) * (Decimal(r) + Decimal(ball))).sqrt())
    tried = [r * share for share in (1e-9, 1e-4, 0.1, 0.5, 0.99, 2.0, 100.0)]
    for place in (r - ball, meet, r, r + ball):
        tried += [place * (1 + sign * 10.0**power) for power in range(-16, -3) for sign in (-1, 1)] + [place]
        tried += [place + sign * ball * share for share in (1e-6, 1e-3, 0.1, 0.5) for sign in (-1, 1)]
    for e in tried:
        if e > 0:
            found = Decimal(
                float(
                    projection_bound(
                        torch.tensor([[r]], dtype=torch.float64), ball, torch.tensor([e], dtype=torch.float64)
                    )
                )
            )
            true = exact(r, ball, e)
            assert found >= true
            assert found <= true * Decimal(1 + 1e-10) or found <= true * (1 + Decimal("1e-14") * Decimal(r / ball) ** 2)


def test_the_length_of_a_token_is_not_believed_to_the_last_digit() -> None:
    """A norm that float64 rounds up by a unit moves the bound by r / R units, which the layer's own bound covers."""
    generator = torch.Generator().manual_seed(0)
    for ratio in (1e-7, 1e-5, 1e-3):
        x = torch.randn(20, 1, 12, dtype=torch.float64, generator=generator)
        norms = torch.linalg.vector_norm(x, dim=-1)
        with localcontext() as context:
            context.prec = 60
            true = [sum(Decimal(v) ** 2 for v in row).sqrt() for row in x[:, 0].tolist()]
        ball = ratio * float(norms.min())
        layer = ProjectionBound(LayerProject(ball), x)
        for share in (-0.5, 0.0, 0.5, 0.9):
            delta = norms[:, 0] + share * ball
            for one, length, e in zip(layer.bound(delta).tolist(), true, delta.tolist(), strict=True):
                assert Decimal(one) >= exact(length, ball, e)


@pytest.mark.parametrize("share", [1e-9, 1e-7, 1e-5, 1e-3])
def test_a_small_turn_is_not_lost(share) -> None:
    """sqrt(2 - 2 sqrt(1 - q^2)) is q for small q, where the difference is 0 in float64."""
    x = torch.zeros(1, 1, 3, dtype=torch.float64)
    x[0, 0, 0] = 1.0
    size = torch.tensor([share], dtype=torch.float64)
    perturbation = PerturbationSet(torch.eye(3, dtype=torch.float64).reshape(3, 1, 1, 3), size, 0 * size, size)
    a = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).reshape(1, 1, 1, 3)  # across the token
    layer = ProjectionBound(LayerProject(1.0), x)
    kink = layer._bends(perturbation)[1]
    curved = layer._bends(perturbation)[0] * share**2
    assert layer.remainder_along(a, perturbation) >= share * kink + curved
