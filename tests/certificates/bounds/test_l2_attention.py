"""L2 attention, alone and in windows: its constants against exact Jacobians, ascent and pairs, and each lemma of their proofs."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from ball_search import ascend, jacobian_norm
from mpmath import mp, mpf
from searched import few
from tiny_layers import built, draw
from torch import nn

from benchmark.certificates.bounds.l2_attention import (
    l2_attention_norm_upper,
    l2_window_norm_upper,
    phi_inverse_of_exp,
    window_mixing_constants,
)
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.lipschitz import lipschitz_constant
from benchmark.certificates.unsound_paper_formula import printed_attention
from benchmark.layers.attention_l2 import (
    H_LARGEST,
    L2Attention,
    ReleasedL2Attention,
    kim_constant,
    mixing_constant,
    phi_inverse,
)
from benchmark.layers.attention_window import MASKED, L2WindowAttention
from benchmark.runtime.errors import BenchmarkError


def layer_of(seed: int, width: int, heads: int, query: float = 1.0, kind: type[L2Attention] = L2Attention) -> L2Attention:
    layer = built(kind(width, heads), seed)
    layer.query.weight.mul_(query)
    return layer


def mix(z: torch.Tensor, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
    """Z -> softmax(B_ij - |z_i - z_j|^2) Z, (tokens, d) to the same."""
    return (bias - ((z[:, None] - z[None]) ** 2).sum(-1)).softmax(-1) @ z


def test_phi_inverse_is_above_the_root_and_close() -> None:
    with mp.workdps(40):
        for value in [0.0, 5e-324, 1e-310, 1e-300, *(10.0**power * 1.7 for power in range(-290, 80, 5)), 1e80]:
            root, exact = mpf(phi_inverse(value)), mp.lambertw(mpf(value) / mp.e).real
            assert exact <= root
            assert root <= exact * (1 + mpf(10) ** -12) or value < 1e-300
        for v in [-600.0, *(step * 1.37 for step in range(-430, 130, 7)), 180.0]:
            root = mpf(float(phi_inverse_of_exp(torch.tensor([v], dtype=torch.float64))))
            exact = mp.lambertw(mp.exp(mpf(v) - 1)).real
            assert exact <= root <= exact * (1 + mpf(10) ** -8)
    for v in (181.0, 1e3, 2e5, 1e6):
        root = float(phi_inverse_of_exp(torch.tensor([v], dtype=torch.float64)))
        assert v <= root + math.log(root) + 1 <= v * (1 + 1e-8)
    assert 0 < float(phi_inverse_of_exp(torch.tensor([-math.inf]))) < 1e-250


def test_constants_refuse_what_they_cannot_bound() -> None:
    for value in (-1.0, math.nan, math.inf, 1e81):
        with pytest.raises(ValueError, match="phi"):
            phi_inverse(value)
    with pytest.raises(ValueError, match="tokens"):
        mixing_constant(0)
    with pytest.raises(TypeError, match="L2Attention is no L2WindowAttention"):
        l2_window_norm_upper(layer_of(0, 4, 2))
    with pytest.raises(TypeError, match="ReleasedL2Attention"):
        l2_attention_norm_upper(layer_of(1, 8, 2, kind=ReleasedL2Attention), 3)


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 17, 65, 197])
def test_the_constant_is_below_the_published_ones(tokens) -> None:
    c = phi_inverse(tokens - 1)
    apart = math.sqrt(tokens) + 2 * c + 2 * math.sqrt(c * H_LARGEST * (tokens - 1))
    assert mixing_constant(tokens) <= apart * (1 + 1e-9)
    assert apart <= kim_constant(tokens) * (1 + 1e-9)


@pytest.mark.parametrize(("tokens", "width"), [(2, 1), (3, 64), (17, 8), (200, 8)])
def test_the_lemmas_of_the_constant(tokens, width) -> None:
    """Row and column sums as the proof has them, over scales from all tokens equal to all apart."""
    c, share = phi_inverse(tokens - 1), math.sqrt(tokens) / (tokens - 1)
    for seed, spread in enumerate((0.1, 0.3, 1.0, 1.5, 2.0, 4.0)):
        z = draw(tokens, width, seed=seed) * spread / math.sqrt(width)
        z[: tokens // 2] *= 0.1
        squares = ((z[:, None] - z[None]) ** 2).sum(-1)
        p = (-squares).softmax(-1)
        assert (p * squares).sum(1).max() <= c * (1 + 1e-12)
        assert p.sum(0).max() <= math.sqrt(tokens)
        column = share * math.log(1 / share - 1) if share < 0.2178 else H_LARGEST
        assert (p * squares).sum(0).max() <= (tokens - 1) * column
    b = torch.linspace(1e-6, 0.5, 100001, dtype=torch.float64)
    h = b * (1 / b - 1).log()
    assert h.max() <= H_LARGEST
    column = (tokens - 1) * float(h[b <= share].max())
    assert mixing_constant(tokens) >= tokens**0.25 + 2 * c + 2 * math.sqrt(c * column)


@pytest.mark.parametrize("tokens", few([2, 5], [3, 9]))
@pytest.mark.parametrize("start", ["spread", "two clusters", "one apart"])
def test_ascent_does_not_exceed_the_mixing_constant(tokens, start) -> None:
    z = draw(tokens, 2, seed=tokens)
    if start == "two clusters":  # where the first published bound nearly is: all sqrt(c + 1) from one token
        z = 0.05 * z
        z[1:, 0] += math.sqrt(phi_inverse(tokens - 1) + 1)
    elif start == "one apart":
        z = 0.1 * z
        z[0] += 1.2
    assert 0.28 * mixing_constant(tokens) <= ascend(mix, z, 40, 0.05) <= mixing_constant(tokens)


@pytest.mark.parametrize(
    ("heads", "tokens", "query"),
    few([(2, 3, 3.0)], [(8, 2, 0.5), (1, 5, 3.0), (2, 3, 0.5), (4, 9, 30.0), (4, 17, 0.1), (8, 65, 1.0)]),
)
def test_ascent_does_not_exceed_the_bound_of_the_layer(heads, tokens, query) -> None:
    layer = layer_of(heads, 8, heads, query)
    reached = ascend(lambda x: layer(x[None])[0], draw(tokens, 8) / query, 20, 0.1 / query)
    assert reached <= l2_attention_norm_upper(layer, tokens)


@pytest.mark.parametrize(("query", "times"), [(3.0, 1.6), (10.0, 5.4), (30.0, 16.0)])
def test_the_squared_power_as_printed_is_exceeded(query, times) -> None:
    """W_Q -> t W_Q, X -> X / t multiplies the truth by t^2 / t = t against the printed t: it fails for large t, and more so."""
    layer = layer_of(0, 4, 1)
    for linear, size in ((layer.query, query), (layer.value, 1.0), (layer.output, 1.0)):
        linear.weight.copy_(size * torch.eye(4))
    reached = ascend(lambda x: layer(x[None])[0], draw(3, 4) / query, 40, 0.1 / query)
    assert printed_attention(layer, 3) * max(1.0, times / 4) < reached <= l2_attention_norm_upper(layer, 3)


def test_released_code_is_not_lipschitz() -> None:
    """Tokens that differ along the null space of W_Q,h^T leave the scores alone and make the values as large as one likes."""
    layer, sound = layer_of(1, 8, 2, kind=ReleasedL2Attention), layer_of(1, 8, 2)
    free = torch.linalg.svd(layer.head_weights()[0][0].mT).Vh[4:]  # 4 of 8 directions
    near, far = draw(3, 8), draw(3, 4, seed=1) @ free
    norms = [jacobian_norm(lambda x: layer(x[None])[0], near + size * far).item() for size in (1, 10, 100, 1000)]
    assert norms[3] > 5 * norms[2] > 25 * norms[1]
    assert jacobian_norm(lambda x: sound(x[None])[0], near + 1000 * far) <= l2_attention_norm_upper(sound, 3)


KINDS = ("spread", "aligned", "sparse", "repeated", "far apart", "masked")


def head(kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Z (tokens, d), B and a mask (tokens, tokens), biases up to 50, tokens where derivatives are large."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, dtype=torch.float64, generator=generator)
    tokens, width = 2 + seed % 6, 1 + seed % 3
    bias = normal(tokens, tokens)
    bias = bias * torch.rand(1, generator=generator) * 50 / bias.abs().max()
    gap = float((bias - bias.diagonal()[:, None]).max())
    z = normal(tokens, width) * 0.2 * max(gap, 1.0) ** 0.5
    if kind == "aligned":
        z = z[:, :1] * normal(1, width)
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


def windows_of(seed: int, *, shift: int = 0, bias: float = 1.0) -> L2WindowAttention:
    """4 x 4 tokens in windows of 2 x 2, width 4, two heads, weights of size 1, position biases of deviation `bias`."""
    layer = built(L2WindowAttention(4, 2, side=4, window=2, shift=shift), seed)
    layer.bias_table.mul_(bias * math.sqrt(2))  # `built` divides it by the root of the number of heads
    return layer


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_no_jacobian_exceeds_the_constant_of_windows_and_every_lemma_holds(kind) -> None:
    """Forty random heads of each kind; a mask only lowers, so the constant is the one without it."""
    closest = 0.0
    for seed in range(40):
        z, bias, mask = head(kind, seed)
        reached = jacobian_norm(lambda x, b=bias + mask: mix(x, b), z).item()
        bound = window_mixing_constants(bias[None]).item()
        assert reached <= bound
        if bound > 2:  # elsewhere tokens see nothing but themselves, and both are 1
            closest = max(closest, reached / bound)
        gaps, off = bias - bias.diagonal()[:, None], 1 - torch.eye(len(z), dtype=torch.float64)
        squares = ((z[:, None] - z[None]) ** 2).sum(-1)
        p = (bias + mask - squares).softmax(-1)
        assert ((p * squares).sum(1) <= phi_inverse_of_exp((gaps.exp() * off).sum(1).log())).all()
        assert (p * off <= gaps.sigmoid() * (1 + 1e-9)).all()
        assert (p * squares <= phi_inverse_of_exp(gaps) * (1 + 1e-9) * off).all()
        assert torch.linalg.matrix_norm(p, ord=2) <= (1 + (gaps.sigmoid() * off).sum(0).max()).sqrt() * (1 + 1e-9)
        if seed == 3:
            start = z + 0.01 * draw(*z.shape)
            assert ascend(lambda x, b=bias + mask: mix(x, b), start, 25, 0.05) <= bound
    assert closest > 0.25  # the heads are no sham


@pytest.mark.parametrize(("bias", "distance", "norm"), [(2.0, 1.75, 2.82), (10.0, 3.21, 10.22), (50.0, 7.075, 50.04)])
def test_the_unbiased_constant_is_exceeded_and_the_biased_is_not(bias, distance, norm) -> None:
    """Two tokens on a line, `distance` apart, with a bias off the diagonal: the norm of the Jacobian there."""
    table = bias * (1 - torch.eye(2, dtype=torch.float64))
    reached = jacobian_norm(lambda x: mix(x, table), torch.tensor([[0.0], [distance]], dtype=torch.float64)).item()
    assert reached == pytest.approx(norm, abs=0.01)
    assert mixing_constant(2) < 2.31 < reached <= window_mixing_constants(table[None]).item()


@pytest.mark.parametrize(("shift", "bias"), few([(1, 10.0)], [(0, 0.0), (0, 10.0), (1, 0.0)]))
def test_ascent_does_not_exceed_the_bound_of_a_layer_of_windows(shift, bias) -> None:
    layer, start = windows_of(shift, shift=shift, bias=bias), draw(16, 4, seed=1)
    reached = ascend(lambda x: layer(x[None])[0], start * (1 + bias) ** 0.5, 12, 0.1)
    assert reached <= lipschitz_constant(layer, start[None]) == l2_window_norm_upper(layer)


def test_heads_with_little_bias_keep_their_smaller_constants() -> None:
    layer = windows_of(0)
    layer.bias_table.zero_()
    none = l2_window_norm_upper(layer)
    mixing = float(window_mixing_constants(layer.bias())[0])
    assert none == pytest.approx(l2_attention_norm_upper(layer.content, 4) * mixing / mixing_constant(4))
    layer.bias_table[0, 1] = 30.0
    biased = l2_window_norm_upper(layer)
    layer.bias_table[0, 0] = 30.0
    assert none < biased < l2_window_norm_upper(layer)


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
def test_windows_that_the_proof_leaves_out_are_refused(change, reason) -> None:
    layer, x = windows_of(0, shift=1), torch.zeros(1, 16, 4, dtype=torch.float64)
    change(layer)
    with pytest.raises(BenchmarkError, match=reason):
        exact_layer_bound(layer, x)
