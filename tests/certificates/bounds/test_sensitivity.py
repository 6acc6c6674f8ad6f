"""Bounds of dot-product attention: above gradient ascent in extreme settings, exact where they must be, and ordered."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from searched import few
from tiny_models import attend, attention_bound, attention_case, steepest

from benchmark.certificates.bounds.sensitivity import METHODS, SOFTMAX_CURVATURE, attention_sensitivity

ROUNDING = 1 - 1e-9  # ascent itself computes with rounding
CORE = [(0, 1.0, 1.0, 0.1), (0, 0.1, 0.0, 1.0), (0, 10.0, 30.0, 1e-3)]
CASES = itertools.product(range(3), [0.1, 1.0, 10.0], [0.0, 0.1, 1.0, 30.0], [1e-3, 0.1, 1.0])


@pytest.mark.parametrize("residual", few([True], [False]))
@pytest.mark.parametrize(("seed", "norm", "spread", "radius"), few(CORE, [case for case in CASES if case not in CORE]))
def test_every_method_is_above_every_perturbation_found_and_the_tight_one_is_least(
    residual, seed, norm, spread, radius
) -> None:
    x, weights = attention_case(seed, norm, spread, heads=(2, 1, 4)[seed], n=(4, 2, 6)[seed], d=8)
    tight, paper, naive = (attention_bound(x, *weights, radius, residual=residual, method=m) for m in METHODS)
    assert (tight >= steepest(x, weights, radius, residual) * ROUNDING).all()
    assert ((tight <= paper * (1 + 1e-9)) & (paper <= naive * (1 + 1e-9))).all()


EXTREMES = {
    "inputs of scale 1000": lambda x, w: (x * 1000, w),
    "nearly one-hot attention": lambda x, w: (x, (w[0] * 30, w[1] * 30, *w[2:])),
    "exactly uniform attention": lambda x, w: (x, (w[0] * 0, *w[1:])),
    "repeated tokens": lambda x, w: (x[:, :1].expand_as(x).clone(), w),
    "one zero token": lambda x, w: (x * (torch.arange(x.shape[1]) > 0)[:, None], w),
    "zero values": lambda x, w: (x, (*w[:2], w[2] * 0, w[3])),
    "all zero": lambda x, w: (x * 0, tuple(t * 0 for t in w)),
}


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("radius", few([0.1], [1e-3, 1.0]))
def test_extreme_settings(extreme, radius) -> None:
    x, weights = EXTREMES[extreme](*attention_case(1, heads=3, n=5, d=6))
    for query_bias in (None, torch.ones(3, 2, dtype=torch.float64)):
        reached = steepest(x, weights, radius, True, query_bias, steps=15, starts=1)
        bound = attention_bound(x, *weights, radius, query_bias=query_bias)
        assert torch.isfinite(bound).all()
        assert (bound >= reached * ROUNDING).all()


@pytest.mark.parametrize("seed", few([0], range(1, 60)))
def test_monotone_in_the_radius_and_zero_at_zero(seed) -> None:
    x, weights = attention_case(seed)
    sensitivity = attention_sensitivity(x, *weights)
    for method in METHODS:
        bounds = [sensitivity.bound(torch.full((3,), radius).double(), method) for radius in (0, 1e-3, 0.1, 0.3, 2, 6)]
        assert all((small <= large).all() for small, large in itertools.pairwise(bounds))
        assert (bounds[0] == 0).all()


def test_tight_to_first_order() -> None:
    x, weights = attention_case(3)
    assert (attention_bound(x, *weights, 1e-5) <= 1.01 * steepest(x, weights, 1e-5, steps=120)).all()


@pytest.mark.parametrize("bias", [None, torch.ones(2, 3).double()], ids=["unbiased", "biased"])
def test_norms_are_those_of_dense_derivatives(bias) -> None:
    """||DF||, ||T||, ||T(.)C|| and the spread of each row."""
    x, weights = attention_case(4)
    sensitivity = attention_sensitivity(x, *weights, query_bias=bias)
    centre, B = torch.eye(4).double() - 1 / 4, weights[0] @ weights[1].mT
    c = torch.zeros(2, 6).double() if bias is None else (weights[1] @ bias[..., None])[..., 0]
    for image in range(3):
        whole = torch.autograd.functional.jacobian(lambda z: attend(z[None], weights, True, bias)[0], x[image])
        exact = torch.linalg.matrix_norm(whole.reshape(24, 24), ord=2)
        assert torch.allclose(sensitivity.linear.jacobian[image], exact, rtol=1e-8)
        for head in range(2):
            scores = torch.autograd.functional.jacobian(lambda z, h=head: z @ B[h] @ z.T + z @ c[h], x[image])  # i j a k
            for bound, map_ in (
                (sensitivity.m, scores),
                (sensitivity.m_centred, torch.einsum("ijak,jl->ilak", scores, centre)),
            ):
                exact = torch.linalg.matrix_norm(map_.reshape(16, -1), ord=2)
                assert torch.allclose(bound[image, head], exact, rtol=1e-6)
            spread = (scores[:, :, None] - scores[:, None]).flatten(3).norm(dim=3).flatten(1).amax(1)
            assert torch.allclose(sensitivity.spread[image, head], spread, rtol=1e-6)


def test_the_curvature_of_softmax_is_attained() -> None:
    """By two scores where p (1 - p) (1 - 2 p) is largest."""
    p = torch.tensor([math.log(2 + math.sqrt(3)), 0.0], dtype=torch.float64).softmax(0)
    move = torch.tensor([1e-4, -1e-4], dtype=torch.float64)
    remainder = (p.log() + move).softmax(0) - p - p * (move - (p * move).sum())
    assert float(remainder.norm() / move.norm() ** 2) == pytest.approx(SOFTMAX_CURVATURE, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w: (x[..., :5], *w, 0.1), "do not fit"),
        (lambda x, w: (x, *w[:3], w[3][:, :2], 0.1), "do not fit"),
        (lambda x, w: (x, *w, -0.1), "negative"),
        (lambda x, w: (x, *w, math.nan), "not finite"),
        (lambda x, w: (x * math.nan, *w, 0.1), "not finite"),
        (lambda x, w: (x, w[0] * math.inf, *w[1:], 0.1), "not finite"),
    ],
)
def test_bad_input_is_refused(change, message) -> None:
    x, weights = attention_case(0)
    with pytest.raises(ValueError, match=message):
        attention_bound(*change(x, weights))
    with pytest.raises(ValueError, match="unknown method"):
        attention_bound(x, *weights, 0.1, method="best")
