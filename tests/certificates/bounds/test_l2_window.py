"""Windowed L2 attention with a position bias: its global constants against exact Jacobians, ascent and pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jacobian_ascent import ascend, jacobian_norm
from searched import examples, few
from torch import nn

from benchmark.certificates.bounds.l2_attention import (
    L2WindowBound,
    l2_attention_norm_upper,
    l2_window_norm_upper,
    mixing_constant,
    phi_inverse_of_exp,
    window_mixing_constants,
)
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.lipschitz import lipschitz_constant
from benchmark.layers.attention_window import MASKED, L2WindowAttention
from benchmark.runtime.errors import BenchmarkError

# Two tokens on a line this far apart, B = b off the diagonal and 0 on it: the norm of the Jacobian there.
EXCEEDED = [(2.0, 1.75, 2.82), (10.0, 3.21, 10.22), (50.0, 7.075, 50.04)]
KINDS = ("spread", "aligned", "sparse", "repeated", "far apart", "masked")


def mix(z: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Z -> softmax(B_ij - |z_i - z_j|^2) Z, (tokens, d) to the same."""
    return (bias - ((z[:, None] - z[None]) ** 2).sum(-1)).softmax(-1) @ z


def head(kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Z (tokens, d), B and a mask (tokens, tokens), biases up to 50, tokens where derivatives are large."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    tokens, width = 2 + seed % 6, 1 + seed % 3
    bias = draw(tokens, tokens)
    bias = bias * torch.rand(1, generator=generator) * 50 / bias.abs().max()
    gap = float((bias - bias.diagonal()[:, None]).max())
    z = draw(tokens, width) * 0.2 * max(gap, 1.0) ** 0.5
    if kind == "aligned":
        z = z[:, :1] * draw(1, width)
    elif kind == "sparse":
        z = z * (torch.rand(z.shape, generator=generator) < 0.4)
    elif kind == "repeated":
        z = z[torch.randint(0, 2, (tokens,), generator=generator)]
    elif kind == "far apart":  # at about the distance where a bias and the scores are alike
        z = 0.1 * z / z.norm()
        z[0, 0] += math.sqrt(float(phi_inverse_of_exp(torch.tensor([gap]))) + 1)
    mask = torch.zeros_like(bias)
    if kind == "masked":
        part = torch.rand(tokens, generator=generator) < 0.5
        mask[part[:, None] != part] = MASKED
    return z, bias, mask


def layer_of(seed: int, *, side: int = 4, window: int = 2, shift: int = 0, bias: float = 1.0) -> L2WindowAttention:
    """Width 4, two heads, weights of size 1, position biases of deviation `bias`."""
    torch.manual_seed(seed)
    layer = L2WindowAttention(4, 2, side=side, window=window, shift=shift).double().requires_grad_(False)
    for linear in (layer.content.query, layer.content.value, layer.content.output):
        linear.weight.copy_(torch.randn(4, 4).double() / 2)
    layer.bias_table.copy_(bias * torch.randn(layer.bias_table.shape).double())
    return layer


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(-600, 180))
def test_phi_inverse_of_exp_is_above_the_root_and_close(v) -> None:
    from mpmath import mp, mpf

    with mp.workdps(40):
        found = mpf(float(phi_inverse_of_exp(torch.tensor([v], dtype=torch.float64))))
        exact = mp.lambertw(mp.exp(mpf(v) - 1)).real
        assert exact <= found <= exact * (1 + mpf(10) ** -8)


@pytest.mark.parametrize("v", [181.0, 1e3, 2e5, 1e6])
def test_phi_inverse_of_exp_does_not_overflow(v) -> None:
    found = float(phi_inverse_of_exp(torch.tensor([v], dtype=torch.float64)))
    assert v <= found + math.log(found) + 1 <= v * (1 + 1e-8)
    assert 0 < float(phi_inverse_of_exp(torch.tensor([-math.inf]))) < 1e-250


@pytest.mark.parametrize("kind", KINDS)
def test_no_jacobian_exceeds_the_constant(kind) -> None:
    """Forty random heads of each kind, by dense SVD; a mask only lowers, so the constant is the one without it."""
    closest = 0.0
    for seed in range(40):
        z, bias, mask = head(kind, seed)
        found = jacobian_norm(lambda x, b=bias + mask: mix(x, b), z).item()
        bound = window_mixing_constants(bias[None]).item()
        assert found <= bound
        if bound > 2:  # elsewhere tokens see nothing but themselves, and both are 1
            closest = max(closest, found / bound)
    assert closest > 0.25  # the heads are no sham


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", few([3], [1]))
def test_ascent_does_not_exceed_the_constant(kind, seed) -> None:
    z, bias, mask = head(kind, seed)
    torch.manual_seed(seed)
    bound = window_mixing_constants(bias[None]).item()
    found = ascend(lambda x: mix(x, bias + mask), z + 0.01 * torch.randn(z.shape).double(), 25, 0.05)
    assert found <= bound


@pytest.mark.parametrize(("bias", "distance", "norm"), EXCEEDED)
def test_the_unbiased_constant_is_exceeded_and_the_biased_is_not(bias, distance, norm) -> None:
    table = bias * (1 - torch.eye(2, dtype=torch.float64))
    found = jacobian_norm(lambda x: mix(x, table), torch.tensor([[0.0], [distance]], dtype=torch.float64)).item()
    assert found == pytest.approx(norm, abs=0.01)
    assert mixing_constant(2) < 2.31 < found <= window_mixing_constants(table[None]).item()


def test_the_lemmas_of_the_constant() -> None:
    """Row means, weights and their products, as the proof has them."""
    for seed in range(24):
        z, bias, mask = head(KINDS[seed % len(KINDS)], seed)
        gaps = bias - bias.diagonal()[:, None]
        off = 1 - torch.eye(len(z), dtype=torch.float64)
        squares = ((z[:, None] - z[None]) ** 2).sum(-1)
        p = (bias + mask - squares).softmax(-1)
        c = phi_inverse_of_exp((gaps.exp() * off).sum(1).log())
        assert ((p * squares).sum(1) <= c).all()
        assert (p * off <= gaps.sigmoid() * (1 + 1e-9)).all()
        assert (p * squares <= phi_inverse_of_exp(gaps) * (1 + 1e-9) * off).all()
        assert torch.linalg.matrix_norm(p, ord=2) <= (1 + (gaps.sigmoid() * off).sum(0).max()).sqrt() * (1 + 1e-9)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("bias", [0.0, 10.0])
def test_ascent_does_not_exceed_the_bound_of_the_layer(shift, bias) -> None:
    layer = layer_of(shift, shift=shift, bias=bias)
    start = torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = ascend(lambda x: layer(x[None])[0], start * (1 + bias) ** 0.5, 12, 0.1)
    assert found <= lipschitz_constant(layer, start[None]) == l2_window_norm_upper(layer)


def test_heads_with_little_bias_keep_their_smaller_constants() -> None:
    layer = layer_of(0)
    layer.bias_table.zero_()
    none = l2_window_norm_upper(layer)
    assert none == pytest.approx(
        l2_attention_norm_upper(layer.content, 4) * float(window_mixing_constants(layer.bias())[0]) / mixing_constant(4)
    )
    layer.bias_table[0, 1] = 30.0
    one = l2_window_norm_upper(layer)
    layer.bias_table[0, 0] = 30.0
    assert none < one < l2_window_norm_upper(layer)


def test_around_an_input_windows_are_tighter_than_everywhere_and_the_largest_counts() -> None:
    layer, delta = layer_of(0, shift=1), torch.full((2,), 1e-3, dtype=torch.float64)
    x = torch.randn(2, 16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bound = exact_layer_bound(layer, x)
    assert isinstance(bound, L2WindowBound)
    assert (bound.bound(delta) < 0.5 * l2_window_norm_upper(layer) * delta).all()
    assert (bound.bound(1e6 * delta) <= l2_window_norm_upper(layer) * 1e6 * delta).all()
    exact = torch.stack([jacobian_norm(lambda y: layer(y[None])[0], image) for image in x])
    assert (bound.jacobian_norm >= exact).all()
    assert torch.allclose(bound.jacobian_norm, exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda layer: layer.bias_table.fill_(math.nan), "position bias"),
        (lambda layer: layer.bias_table.fill_(2e5), "position bias"),
        (lambda layer: layer.mask.mul_(-1), "mask"),
        (lambda layer: layer.mask.fill_(-1), "mask"),
        (lambda layer: setattr(layer.content, "query", nn.Linear(4, 4).double()), "bias"),
        (lambda layer: setattr(layer, "content", nn.Identity()), "Identity"),
        (lambda layer: setattr(layer, "side", 3), "3x3 tokens"),
    ],
)
def test_what_the_proof_leaves_out_is_refused(change, reason) -> None:
    layer, x = layer_of(0, shift=1), torch.zeros(1, 16, 4, dtype=torch.float64)
    change(layer)
    for asked in (exact_layer_bound, lipschitz_constant):
        with pytest.raises(BenchmarkError, match=reason):
            asked(layer, x)


def test_other_layers_are_refused() -> None:
    with pytest.raises(TypeError, match="L2Attention is no L2WindowAttention"):
        l2_window_norm_upper(layer_of(0).content)
