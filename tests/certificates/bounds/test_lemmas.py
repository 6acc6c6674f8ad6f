"""Lemmas of the bounds at inputs where equality holds or nearly does, so that half of a constant is violated.

Each test builds the extreme configuration of one docstring's inequality in float64. It checks that the bound is above what
the layer does there, and close to it.
"""

from __future__ import annotations

import math

import pytest
import torch

from benchmark.certificates.bounds.attention import QuickAttention
from benchmark.certificates.bounds.attention_ascent import attention
from benchmark.certificates.bounds.l2_attention import L2AttentionBound, window_mixing_constants
from benchmark.certificates.bounds.layer_bound import PerturbationSet, exact_layer_bound
from benchmark.certificates.bounds.scaled_cosine import scaled_cosine_norm_upper
from benchmark.certificates.bounds.sensitivity import attention_sensitivity
from benchmark.certificates.bounds.sll import SLLBound
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.lipschitz import SLLBlock, SmoothSLLBlock
from benchmark.layers.scaled_cosine import ScaledCosineAttention


def f64(*values: object) -> torch.Tensor:
    return torch.tensor(*values, dtype=torch.float64)


def assert_attained(reached: torch.Tensor | float, bound: torch.Tensor | float, share: float = 0.98) -> None:
    """Check that `bound` is above what was reached, and that `share` of it was."""
    assert share * float(bound) <= float(reached) <= float(bound) * (1 + 1e-9)


# Dot-product attention, one head of inner width 1. Channel 0 holds what queries read, channel 1 what keys read, channel 2 the
# values. Tokens 0 and 1 have opposite values; all others have a score of 50 less and so no weight.


def two_tokens(moved: str, gap: float, tokens: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], dict]:
    """x, weights and options for keys that move (scores c x_j1, c from the queries' bias) or for queries that move."""
    x = torch.zeros(1, tokens, 3, dtype=torch.float64)
    x[0, :2, 2] = f64([1e6, -1e6])
    query, key, value, output = (torch.zeros(1, *shape, dtype=torch.float64) for shape in [(3, 1)] * 3 + [(1, 3)])
    key[0, 1, 0] = value[0, 2, 0] = output[0, 0, 0] = 1.0
    if moved == "keys":
        x[0, 1:, 1] = -gap
        x[0, 2:, 1] -= 50
        return x, (query, key, value, output), {"query_bias": f64([[1.0]])}
    query[0, 0, 0] = 1.0
    x[0, :2, 1] = f64([20.0, -20.0])
    return x, (query, key, value, output), {"query_bias": f64([[gap / 40]])}


@pytest.mark.parametrize(
    ("moved", "gap", "e", "tokens"),
    [
        ("keys", 0.0, 1e-3, 2),  # weights 1/2: softmax's slope 1/2, the norm of T by keys
        ("keys", 0.0, 1e-3, 30),  # the norms of T where T T^* is not formed
        ("keys", 12.0, 3.0, 2),  # the growth e^w of a small weight
        ("queries", 0.0, 1e-4, 2),
        ("queries", 12.0, 0.1, 2),
    ],
)
def test_the_sensitivity_of_dot_products_is_attained_by_keys_and_by_queries(moved, gap, e, tokens) -> None:
    x, weights, options = two_tokens(moved, gap, tokens)
    move = torch.zeros_like(x)
    if moved == "keys":
        move[0, :2, 1] = f64([-e, e]) / math.sqrt(2)
    else:
        move[0, 0, 0] = -e
    reached = (attention(x + move, *weights, **options) - attention(x, *weights, **options)).norm()
    quick, bound = QuickAttention(x, *weights, **options), attention_sensitivity(x, *weights, **options)
    assert_attained(reached, bound.bound(f64([e])), 0.9)
    assert_attained(reached, quick.bound(f64([e])), 0.9)
    if moved == "keys":
        assert_attained(math.sqrt(tokens), bound.m[0, 0])
        assert_attained(math.sqrt(tokens), quick.m[0, 0])


@pytest.mark.parametrize("joint", [False, True])
def test_half_of_the_scores_move_is_attained_by_values_that_move_with_the_weights(joint) -> None:
    """||(P' - P) G A|| <= e ||A|| tau / 2: equal tokens of one channel, which keys and values both read."""
    x, one, e = torch.zeros(1, 2, 1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64), 1e-3
    bound = attention_sensitivity(x, 0 * one, one, one, one, query_bias=f64([[1.0]]))
    move = e * f64([[[1.0], [-1.0]]]) / math.sqrt(2)
    reached = math.sqrt(2) * ((move.softmax(1) - 0.5) * move).sum().abs()  # both rows of (P' - P) G are the same
    for part in bound._remainders(bound.joint if joint else bound.summed, f64([e]))[:, 0, 0]:  # after Z, after D
        assert_attained(reached, part)


# SLL: one channel, one neuron at its kink.


def at_the_kink(layer: SLLBlock, x: float = 0.0) -> tuple[SLLBlock, torch.Tensor]:
    layer = layer.double().requires_grad_(False)
    layer.weight.fill_(0.7)
    layer.bias.zero_()
    return layer, f64([[[x]]])


@pytest.mark.parametrize("layer", [SLLBlock(1, 1), SmoothSLLBlock(1, 1, bend=2.0)], ids=["relu", "smooth"])
def test_a_neuron_s_remainder_passes_2_w_over_t_on(layer) -> None:
    layer, x = at_the_kink(layer)
    bound, e, a = exact_layer_bound(layer, x), f64([0.1]), f64([[[[1.0]]]])
    ball = PerturbationSet(a, e, 0 * e, e)
    missed = layer(x + e * a) - layer(x) - bound.jvp(e * a)
    assert_attained(missed.norm(), bound.remainder(ball))
    assert_attained(-missed.sum(), bound.remainder_along(a, ball))
    assert_attained(-missed.sum(), bound.remainder_along_elementwise(a, ball))
    if (relaxed := bound.relax_for_rival(a, ball)) is not None:
        taken, b = relaxed
        for sign in (1.0, -1.0):
            assert_attained(sign * float(b) * e - (layer(x + sign * e) - layer(x)), taken)


def test_the_excess_of_an_sll_block_whose_scale_is_too_small_is_attained() -> None:
    """||J||^2 <= 1 + 4 lam (lam - 1) with lam = w^2 / T = 2: J = 1 - 2 lam = -3."""

    class Uneven(SLLBlock):
        def derive(self) -> torch.Tensor:
            return super().derive() / 2

    layer, x = at_the_kink(Uneven(1, 1), x=1.0)
    slope = torch.autograd.functional.jacobian(layer, x).abs()
    assert_attained(slope, SLLBound(layer, x).jacobian_norm)
    assert_attained(slope, SLLBound(layer, x).everywhere)


def test_the_remainder_of_l2_attention_is_nearly_attained_by_two_tokens_that_part() -> None:
    """A token's mean p u, p = 1 / (1 + e^(u^2 - b)), has the second derivative -6 u p (1 - p) for small u."""
    layer = L2Attention(1, 1).double().requires_grad_(False)
    for part in (layer.query, layer.value, layer.output):
        part.weight.fill_(1.0)
    p, e, u = 0.18, 1e-5, 1e-2
    offsets = math.log(p / (1 - p)) * f64([[[[0.0, 1.0], [1.0, 0.0]]]])

    def mixed(z: torch.Tensor) -> torch.Tensor:
        return (offsets[0, 0] - (z - z.mT) ** 2).softmax(-1) @ z

    z = f64([[0.0], [u]])
    bound = L2AttentionBound(layer, z[None], offsets=offsets, everywhere=100.0)
    move = e * f64([[-1.0], [1.0]]) / math.sqrt(2)
    second = torch.func.jvp(lambda y: torch.func.jvp(mixed, (y,), (move,))[1], (z,), (move,))[1]
    ball = PerturbationSet(move[None, None], *(f64([number]) for number in (1.0, 0.0, e)))
    assert_attained(second.norm() / 2, bound.remainder(ball), 0.6)


def test_the_own_term_of_windows_is_attained_by_a_token_between_two_groups() -> None:
    """2 V_i = 2 sum_j P_ij t_ij for a mean of 0: token 0 sees all others at distance sqrt(c + 1), half on either side, and
    nobody else sees anybody. Many others share the weight, so the other two terms of the constant are 1 and near 0.
    """
    tokens, c = 401, 2.0
    beta = math.log(c * math.exp(c + 1) / (tokens - 1))
    bias = torch.full((tokens, tokens), -600.0, dtype=torch.float64).fill_diagonal_(0.0)
    bias[0, 1:] = beta
    side = math.sqrt(c + 1) * torch.ones((tokens - 1) // 2, 1, dtype=torch.float64)
    others = torch.cat([side, -side])

    def first_row(own: torch.Tensor) -> torch.Tensor:
        z = torch.cat([own[None], others])
        return (bias[0] - ((own - z) ** 2).sum(1)).softmax(-1) @ z

    reached = torch.autograd.functional.jacobian(first_row, f64([0.0])).norm()
    assert_attained(reached, window_mixing_constants(bias[None])[0], 0.77)


@pytest.mark.parametrize(
    ("letter", "share"), [("query", 0.99), ("key", 0.7), ("value", 0.97)]
)  # for keys a variance, 1/2, stands against a mean square, 1
def test_each_term_of_scaled_cosine_attention_s_constant_is_nearly_attained(letter, share) -> None:
    """The other two maps are 1e-3 and read inputs of 1e6, so that their rows are fixed at +-1 and their terms vanish.

    Keys: all eight tokens look at two, whose values are 1 and -1 and whose keys part. Values: all look at one. Queries: two
    tokens, with equal weights, whose keys and values are both 1 and -1.
    """
    tokens, tau = {"query": (2, 200.0), "key": (8, 200.0), "value": (8, 20.0)}[letter]
    layer = ScaledCosineAttention(3, 1, eps=1.0, tau=tau).double().requires_grad_(False)
    for place, name in enumerate(("query", "key", "value")):
        linear = getattr(layer, name)
        linear.weight.zero_()
        linear.weight[0, place] = 1.0 if name == letter else 1e-3
    layer.output.weight.copy_(torch.eye(3))
    x = torch.full((1, tokens, 3), 1e6, dtype=torch.float64)
    if letter == "query":
        x[0, :, 0], x[0, 1, 1:] = 0.0, -1e6
    elif letter == "key":
        x[0, :2, 1], x[0, 2:, 1] = 0.05, -0.05
        x[0, 1, 2] = -1e6
    else:
        x[0, 1:, 1] = -1e6
        x[0, :, 2] = 0.0
    jacobian = torch.autograd.functional.jacobian(layer, x).reshape(3 * tokens, -1)
    assert_attained(torch.linalg.matrix_norm(jacobian, ord=2), scaled_cosine_norm_upper(layer, tokens), share)


# Attention over a grid: width 4, one head of inner width 1, weights that pick channels.


def picking(side: int, content: float) -> GridAttention:
    """Queries read channel 0, keys channel 1; values and output are the identity; no offsets, no biases."""
    layer = GridAttention(4, 1, inner=1, side=side, content=content).double().eval().requires_grad_(False)
    eye = torch.eye(4)
    for part, raw in ((layer.query, eye[:1]), (layer.key, eye[1:2]), (layer.value, eye), (layer.output, eye)):
        part.raw.copy_(raw)
        part.bias.zero_()
    layer.table.zero_()
    return layer


def assert_move_is_attained(layer: GridAttention, x: torch.Tensor, channel: int, e: float, share: float) -> None:
    move = torch.zeros_like(x)
    move[0, 0, channel] = e
    assert_attained((layer(x + move) - layer(x)).norm(), exact_layer_bound(layer, x).bound(f64([e])), share)


@pytest.mark.parametrize(("w", "share"), [(1e-3, 0.9), (2.0, 0.75)])
def test_the_spread_and_the_gain_of_grid_attention_are_attained_by_a_query(w, share) -> None:
    """Token 0 gives its right neighbour, whose key is farthest from its own, a small weight, which grows by e^w."""
    e, key, p, value = 0.1, 10.0, 0.02, 12.0
    layer = picking(2, w / (2 * e * key))
    layer.table.fill_(-100.0)
    layer.table[0, :2] = f64([math.log(1 - p), math.log(p)])
    x = torch.zeros(1, 4, 4, dtype=torch.float64)
    x[0, :, 1] = key * f64([-1.0, 1.0, -1.0, 1.0])
    x[0, :, 3] = value * f64([0.0, 1.0, 0.0, 1.0])
    assert_move_is_attained(layer, x, 0, e, share)


@pytest.mark.parametrize(("w", "e", "share"), [(0.3, 0.01, 0.9), (4.0, 0.1, 0.13)])
def test_the_spread_and_the_gain_of_grid_attention_are_attained_by_a_key(w, e, share) -> None:
    """One of 64 tokens, with a value of its own, moves its key against large queries that weigh all tokens alike.

    The spread counts two keys that part, sqrt(2) times one key's move; half of that would take e^w to e^(0.7 w).
    """
    query, value = 100.0, 20.0
    layer = picking(8, w / (e * query))
    layer.query.bias.fill_(query)
    x = torch.zeros(1, 64, 4, dtype=torch.float64)
    x[0, 0, 3] = value
    assert_move_is_attained(layer, x, 1, e, share)
