"""L2 attention, alone and in windows: its formula, and its constants against exact Jacobians, ascent and pairs."""

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


def layer_of(
    seed: int, width: int, heads: int, query: float = 1.0, kind: type[L2Attention] = L2Attention
) -> L2Attention:
    torch.manual_seed(seed)
    layer = kind(width, heads).double().requires_grad_(False)
    for linear in (layer.query, layer.value, layer.output):
        linear.weight.copy_(torch.randn(width, width).double() / math.sqrt(width))
    layer.query.weight.mul_(query)
    return layer


def mix(z: torch.Tensor) -> torch.Tensor:
    """Z -> softmax(-|z_i - z_j|^2) Z, (tokens, d) to the same."""
    return (-((z[:, None] - z[None]) ** 2).sum(-1)).softmax(-1) @ z


@settings(max_examples=examples(300), deadline=None)
@given(st.floats(0, 1e80))
def test_phi_inverse_is_above_the_root_and_close(value) -> None:
    from mpmath import mp, mpf

    with mp.workdps(40):
        found, exact = mpf(phi_inverse(value)), mp.lambertw(mpf(value) / mp.e).real
        assert found >= exact
        assert found <= exact * (1 + mpf(10) ** -12) or value < 1e-300


def test_phi_inverse_refuses_what_it_cannot_bound() -> None:
    for value in (-1.0, math.nan, math.inf, 1e81):
        with pytest.raises(ValueError, match="phi"):
            phi_inverse(value)
    with pytest.raises(ValueError, match="tokens"):
        mixing_constant(0)


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
    generator = torch.Generator().manual_seed(tokens)
    for spread in (0.1, 0.3, 1.0, 1.5, 2.0, 4.0):
        z = torch.randn(tokens, width, generator=generator, dtype=torch.float64) * spread / math.sqrt(width)
        z[: tokens // 2] *= 0.1
        squares = ((z[:, None] - z[None]) ** 2).sum(-1)
        p = (-squares).softmax(-1)
        assert (p * squares).sum(1).max() <= c * (1 + 1e-12)
        assert p.sum(0).max() <= math.sqrt(tokens)
        assert (p * squares).sum(0).max() <= (tokens - 1) * H_LARGEST
        if share < 0.2178:
            assert (p * squares).sum(0).max() <= (tokens - 1) * share * math.log(1 / share - 1)
    b = torch.linspace(1e-6, 0.5, 100001, dtype=torch.float64)
    h = b * (1 / b - 1).log()
    assert h.max() <= H_LARGEST
    column = (tokens - 1) * float(h[b <= share].max())
    assert mixing_constant(tokens) >= tokens**0.25 + 2 * c + 2 * math.sqrt(c * column)


@pytest.mark.parametrize("tokens", few([2, 5], [3, 9]))
@pytest.mark.parametrize("start", ["spread", "two clusters", "one apart"])
def test_ascent_does_not_exceed_the_mixing_constant(tokens, start) -> None:
    torch.manual_seed(tokens)
    z = torch.randn(tokens, 2, dtype=torch.float64)
    if start == "two clusters":  # where the first published bound nearly is: all sqrt(c + 1) from one token
        z = 0.05 * z
        z[1:, 0] += math.sqrt(phi_inverse(tokens - 1) + 1)
    elif start == "one apart":
        z = 0.1 * z
        z[0] += 1.2
    found = ascend(mix, z, 40, 0.05)
    assert found <= mixing_constant(tokens)
    assert found >= 0.28 * mixing_constant(tokens)  # the search is no sham


@pytest.mark.parametrize(("heads", "tokens"), [(2, 3), (8, 2), (1, 5)])
@pytest.mark.parametrize("query", [0.5, 3.0])
def test_ascent_does_not_exceed_the_bound_of_the_layer(heads, tokens, query) -> None:
    layer = layer_of(heads, 8, heads, query)
    start = torch.randn(tokens, 8, dtype=torch.float64) / query
    found = ascend(lambda x: layer(x[None])[0], start, 20, 0.1 / query)
    assert found <= l2_attention_norm_upper(layer, tokens)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(2, 65),
    st.floats(0.1, 30),
    st.floats(1e-3, 30),
    st.floats(1e-4, 10),
    st.integers(0, 999),
)
def test_random_pairs_do_not_exceed_the_bound(heads, tokens, query, size, distance, seed) -> None:
    layer = layer_of(seed, 8, heads, query)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, tokens, 8, dtype=torch.float64, generator=generator) * size / query
    x[10:] = x[10:, :1] + 0.1 * (x[10:] - x[10:, :1])  # half of them bunched, where the derivative is large
    move = torch.randn(20, tokens, 8, dtype=torch.float64, generator=generator)
    move *= distance / query / move.flatten(1).norm(dim=1)[:, None, None]
    ratio = (layer(x + move) - layer(x)).flatten(1).norm(dim=1) / move.flatten(1).norm(dim=1)
    assert ratio.max() <= l2_attention_norm_upper(layer, tokens)


@pytest.mark.parametrize(("query", "times"), [(3.0, 1.6), (10.0, 5.4), (30.0, 16.0)])
def test_the_squared_power_as_printed_is_exceeded(query, times) -> None:
    """W_Q -> t W_Q, X -> X / t multiplies the truth by t^2 / t = t against the printed t: it fails for large t, and more so."""
    layer = layer_of(0, 4, 1)
    layer.query.weight.copy_(query * torch.eye(4))
    layer.value.weight.copy_(torch.eye(4))
    layer.output.weight.copy_(torch.eye(4))
    start = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / query
    found = ascend(lambda x: layer(x[None])[0], start, 40, 0.1 / query)
    assert found > printed_attention(layer, 3)
    assert found <= l2_attention_norm_upper(layer, 3)
    assert found / printed_attention(layer, 3) > times / 4


def test_released_code_is_not_lipschitz() -> None:
    """Tokens that differ along the null space of W_Q,h^T leave the scores alone and make the values as large as one likes."""
    layer = layer_of(1, 8, 2, kind=ReleasedL2Attention)
    query = layer.head_weights()[0][0]  # (8, 4): its columns leave 4 directions of the tokens free
    free = torch.linalg.svd(query.mT).Vh[4:]
    generator = torch.Generator().manual_seed(0)
    near = torch.randn(3, 8, dtype=torch.float64, generator=generator)
    far = torch.randn(3, 4, dtype=torch.float64, generator=generator) @ free
    norms = [jacobian_norm(lambda x: layer(x[None])[0], near + size * far).item() for size in (1, 10, 100, 1000)]
    assert norms[3] > 5 * norms[2] > 25 * norms[1]
    sound = layer_of(1, 8, 2)
    assert jacobian_norm(lambda x: sound(x[None])[0], near + 1000 * far) <= l2_attention_norm_upper(sound, 3)
    with pytest.raises(TypeError, match="ReleasedL2Attention"):
        l2_attention_norm_upper(layer, 3)


# Two tokens on a line this far apart, B = b off the diagonal and 0 on it: the norm of the Jacobian there.
EXCEEDED = [(2.0, 1.75, 2.82), (10.0, 3.21, 10.22), (50.0, 7.075, 50.04)]
KINDS = ("spread", "aligned", "sparse", "repeated", "far apart", "masked")


def biased_mix(z: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
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


def windows_of(seed: int, *, side: int = 4, window: int = 2, shift: int = 0, bias: float = 1.0) -> L2WindowAttention:
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
        found = jacobian_norm(lambda x, b=bias + mask: biased_mix(x, b), z).item()
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
    found = ascend(lambda x: biased_mix(x, bias + mask), z + 0.01 * torch.randn(z.shape).double(), 25, 0.05)
    assert found <= bound


@pytest.mark.parametrize(("bias", "distance", "norm"), EXCEEDED)
def test_the_unbiased_constant_is_exceeded_and_the_biased_is_not(bias, distance, norm) -> None:
    table = bias * (1 - torch.eye(2, dtype=torch.float64))
    found = jacobian_norm(lambda x: biased_mix(x, table), torch.tensor([[0.0], [distance]], dtype=torch.float64)).item()
    assert found == pytest.approx(norm, abs=0.01)
    assert mixing_constant(2) < 2.31 < found <= window_mixing_constants(table[None]).item()


def test_the_lemmas_of_the_biased_constant() -> None:
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
def test_ascent_does_not_exceed_the_bound_of_windows(shift, bias) -> None:
    layer = windows_of(shift, shift=shift, bias=bias)
    start = torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = ascend(lambda x: layer(x[None])[0], start * (1 + bias) ** 0.5, 12, 0.1)
    assert found <= lipschitz_constant(layer, start[None]) == l2_window_norm_upper(layer)


def test_heads_with_little_bias_keep_their_smaller_constants() -> None:
    layer = windows_of(0)
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
    layer, delta = windows_of(0, shift=1), torch.full((2,), 1e-3, dtype=torch.float64)
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
    layer, x = windows_of(0, shift=1), torch.zeros(1, 16, 4, dtype=torch.float64)
    change(layer)
    with pytest.raises(BenchmarkError, match=reason):
        exact_layer_bound(layer, x)


def test_other_layers_than_windows_are_refused() -> None:
    with pytest.raises(TypeError, match="L2Attention is no L2WindowAttention"):
        l2_window_norm_upper(windows_of(0).content)
