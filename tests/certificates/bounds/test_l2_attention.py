"""L2 attention: the layer against its formula, and its global constants against attempts to exceed them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jacobian_ascent import ascend, jacobian_norm
from searched import examples, few

from benchmark.certificates.bounds.l2_attention_norm import l2_attention_norm_upper
from benchmark.certificates.unsound_paper_formula import printed_attention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention
from benchmark.layers.attention_l2_constant import H_LARGEST, kim_constant, mixing_constant, phi_inverse


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


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_layer_is_its_formula(heads) -> None:
    layer = layer_of(0, 8, heads)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    query, value, output = layer.head_weights()
    scale, result = math.sqrt(8 / heads), torch.zeros_like(x)
    for q, v, o in zip(query, value, output, strict=True):
        y = x @ q
        weights = (-((y[:, :, None] - y[:, None]) ** 2).sum(-1) / scale).softmax(-1)
        result += weights @ x @ (q @ q.mT / scale) @ v @ o
    assert torch.allclose(layer(x), result, atol=1e-12)


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
    assert found <= l2_attention_norm_upper(layer, tokens) <= l2_attention_norm_upper(layer, tokens, "kim")


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
