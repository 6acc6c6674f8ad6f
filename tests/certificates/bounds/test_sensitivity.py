"""The attention bounds: one-sided against ascent over extreme settings, exact where they must be, and ordered."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from searched import examples, few
from tiny_attention import attend, attention_bound, attention_case, steepest

from benchmark.certificates.bounds.sensitivity import METHODS, SOFTMAX_CURVATURE, attention_sensitivity
from benchmark.layers.attention import ResidualAttention

ROUNDING = 1 - 1e-9  # ascent itself computes with rounding


CASES = list(itertools.product([0.1, 1.0, 10.0], [0.0, 0.1, 1.0, 30.0], [1e-3, 0.1, 1.0]))
CORE = CASES[1::10]  # every norm, spread and radius


@pytest.mark.parametrize("residual", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("norm", "spread", "radius"), few(CORE, [case for case in CASES if case not in CORE]))
def test_every_method_is_above_every_perturbation_found(residual, norm, spread, radius) -> None:
    x, weights = attention_case(0, norm, spread)
    found = steepest(x, weights, radius, residual)
    for method in METHODS:
        assert (attention_bound(x, *weights, radius, residual=residual, method=method) >= found * ROUNDING).all(), (
            method
        )


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
    bias = torch.ones(3, 2, dtype=torch.float64)
    for query_bias in (None, bias):
        found = steepest(x, weights, radius, True, query_bias, steps=15, starts=1)
        bound = attention_bound(x, *weights, radius, query_bias=query_bias)
        assert torch.isfinite(bound).all()
        assert (bound >= found * ROUNDING).all()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 4]),
    st.integers(2, 6),
    st.floats(-1, 1.3),
    st.floats(-1, 1),
    st.floats(-3, 0),
)
@pytest.mark.slow
def test_tight_is_least_and_above_ascent(seed, heads, n, norm, spread, radius) -> None:
    x, weights = attention_case(seed, 10**norm, 10**spread, heads=heads, n=n, d=8, batch=2)
    tight, paper, naive = (attention_bound(x, *weights, 10**radius, method=m) for m in METHODS)
    assert (tight <= paper * (1 + 1e-9)).all()
    assert (paper <= naive * (1 + 1e-9)).all()
    assert (tight >= steepest(x, weights, 10**radius, steps=15, starts=1) * ROUNDING).all()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 2.0), st.floats(1.0, 3.0))
def test_monotone_in_the_radius_and_zero_at_zero(seed, radius, factor) -> None:
    x, weights = attention_case(seed)
    sensitivity = attention_sensitivity(x, *weights)
    for method in METHODS:
        small, large = (sensitivity.bound(torch.full((3,), r).double(), method) for r in (radius, radius * factor))
        assert (small <= large).all()
        assert (sensitivity.bound(torch.zeros(3, dtype=torch.float64), method) == 0).all()


def test_homogeneous_in_the_values_without_the_residual() -> None:
    x, (w_q, w_k, w_v, w_o) = attention_case(5)
    once = attention_bound(x, w_q, w_k, w_v, w_o, 0.3, residual=False)
    assert torch.allclose(attention_bound(x, w_q, w_k, 7 * w_v, w_o, 0.3, residual=False), 7 * once, rtol=1e-9)


def test_rescaling_input_against_scores_keeps_the_ratio() -> None:
    """X -> X / t with W_Q -> t W_Q, W_K -> t W_K leaves the attention alone, so the bound scales by 1 / t."""
    x, (w_q, w_k, w_v, w_o) = attention_case(6)
    once = attention_bound(x, w_q, w_k, w_v, w_o, 0.3)
    again = attention_bound(x / 4, 4 * w_q, 4 * w_k, w_v, w_o, 0.3 / 4)
    assert torch.allclose(again, once / 4, rtol=1e-9)


def test_tight_to_first_order() -> None:
    x, weights = attention_case(3)
    assert (attention_bound(x, *weights, 1e-5) <= 1.01 * steepest(x, weights, 1e-5, steps=120)).all()


@pytest.mark.parametrize("biased", [False, True])
def test_jacobian_is_the_dense_one(biased) -> None:
    x, weights = attention_case(4)
    bias = torch.randn(2, 3, dtype=torch.float64) if biased else None

    def flat(z: torch.Tensor) -> torch.Tensor:
        return attend(z[None], weights, True, bias)[0]

    dense = torch.stack([torch.autograd.functional.jacobian(flat, x[i]).reshape(24, 24) for i in range(3)])
    found = attention_sensitivity(x, *weights, query_bias=bias).linear.jacobian
    assert torch.allclose(found, torch.linalg.matrix_norm(dense, ord=2), rtol=1e-8)


def test_score_map_is_the_dense_one() -> None:
    """||T||, ||T(.)C|| and the spread of each row against the dense derivative of the scores."""
    x, (w_q, w_k, *rest) = attention_case(7)
    n, B = 4, w_q @ w_k.mT
    sensitivity = attention_sensitivity(x, w_q, w_k, *rest)
    centre = torch.eye(n).double() - 1 / n
    for image in range(3):
        for head in range(2):
            dense = torch.autograd.functional.jacobian(lambda z, h=head: z @ B[h] @ z.T, x[image])  # i j a k
            flat = dense.reshape(n * n, -1)
            assert float(sensitivity.m[image, head]) == pytest.approx(float(torch.linalg.matrix_norm(flat, ord=2)))
            middle = torch.einsum("ijak,jl->ilak", dense, centre).reshape(n * n, -1)
            assert float(sensitivity.m_centred[image, head]) == pytest.approx(
                float(torch.linalg.matrix_norm(middle, ord=2))
            )
            for i in range(n):
                gaps = dense[i][:, None] - dense[i][None]
                assert float(sensitivity.spread[image, head, i]) == pytest.approx(
                    float(gaps.flatten(2).norm(dim=2).max())
                )


def test_the_curvature_of_softmax_is_attained() -> None:
    """By two scores where p (1 - p) (1 - 2 p) is largest."""
    p = torch.tensor([math.log(2 + math.sqrt(3)), 0.0], dtype=torch.float64).softmax(0)
    move = torch.tensor([1e-4, -1e-4], dtype=torch.float64)
    remainder = (p.log() + move).softmax(0) - p - p * (move - (p * move).sum())
    assert float(remainder.norm() / move.norm() ** 2) == pytest.approx(SOFTMAX_CURVATURE, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w: (x[..., :5], w, 0.1), "do not fit"),
        (lambda x, w: (x, (*w[:3], w[3][:, :2]), 0.1), "do not fit"),
        (lambda x, w: (x, w, -0.1), "negative"),
        (lambda x, w: (x, w, math.nan), "not finite"),
        (lambda x, w: (x * math.nan, w, 0.1), "not finite"),
        (lambda x, w: (x, (w[0] * math.inf, *w[1:]), 0.1), "not finite"),
    ],
)
def test_bad_input_is_refused(change, message) -> None:
    x, weights, radius = change(*attention_case(0))
    with pytest.raises(ValueError, match=message):
        attention_bound(x, *weights, radius)
    with pytest.raises(ValueError, match="unknown method"):
        attention_bound(*[attention_case(0)[0], *attention_case(0)[1]], 0.1, method="best")


def test_attention_layer_is_its_head_weights() -> None:
    torch.manual_seed(0)
    layer = ResidualAttention(8, 2, qk_norm=2.0, vo_norm=0.5).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    assert torch.allclose(layer(x), attend(x, layer.head_weights()))
