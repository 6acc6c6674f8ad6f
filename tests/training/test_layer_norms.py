"""The constants of training: kept vectors from below, bounds from above, compared with dense singular values."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import tiny_layers
import torch
from ball_search import ascend
from torch import nn

from benchmark.certificates.bounds.l2_attention import l2_attention_norm_upper
from benchmark.layers import convolution_matrices
from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention, mixing_constant
from benchmark.layers.attention_window import DotProductWindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.kinds import BY_TYPE
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import LayerProject
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.layer_norms import LayerNorms, sequence

KNOWN = {layer for layer, kind in BY_TYPE.items() if kind.constant is not None} - {Residual}

torch.manual_seed(0)
LINEAR = [case for case in tiny_layers.LINEAR if type(case[0]) in KNOWN]  # those that training knows, and more
LINEAR = [case for case in LINEAR if getattr(case[0], "padding_mode", "zeros") == "zeros"] + [
    (nn.Conv2d(2, 3, 4, stride=2, padding=1), (2, 8, 7)),
    (nn.Conv2d(4, 6, 3, stride=(2, 1), groups=2), (4, 5, 5)),
    (OrthogonalLinear(4, 6), (4,)),
    (NormalisedHead(4, 3), (4,)),
]
CURVED = [(nn.ReLU(), 1.0), (nn.ReLU(inplace=True), 1.0), (ClippedReLU((3, 4)), 1.0), (LayerProject(1.0), 1.0)]


def norms_of(layer: nn.Module, shape: tuple[int, ...], power_steps: int = 1000) -> LayerNorms:
    return LayerNorms([layer], torch.rand(1, *shape), power_steps)


def dense(layer: nn.Module, shape: tuple[int, ...]) -> float:
    x = torch.rand(1, *shape)
    jacobian = torch.autograd.functional.jacobian(layer, x).reshape(-1, x.numel())
    return float(torch.linalg.matrix_norm(jacobian.double(), ord=2))


@pytest.mark.sweep
@pytest.mark.parametrize(("layer", "shape"), LINEAR, ids=str)
def test_linear_layers_against_dense_singular_values(layer, shape) -> None:
    layer = copy.deepcopy(layer).float().requires_grad_(True)
    norms, exact = norms_of(layer, shape), dense(layer, shape)
    start = norms()[0].item()
    norms.advance()
    reached, upper = norms()[0].item(), float(norms.upper()[0])
    assert start <= reached + 1e-6
    assert reached <= exact * (1 + 1e-6)
    assert reached == pytest.approx(exact, rel=1e-3)
    assert exact * (1 - 1e-6) <= upper  # the dense reference comes from float32
    assert upper == pytest.approx(exact, rel=1e-5)


def test_each_step_comes_closer_from_below_and_reading_moves_nothing() -> None:
    norms = LayerNorms([nn.Conv2d(2, 3, 4, stride=2, padding=1)], torch.rand(1, 2, 8, 8), 1)
    values = [norms()[0].item()]
    for _ in range(20):
        norms.advance()
        values.append(norms()[0].item())
        assert norms()[0].item() == values[-1]
    assert all(after >= before * (1 - 1e-6) for before, after in pairwise(values))
    assert values[0] < values[-1] <= float(norms.upper()[0]) * (1 + 1e-6)


@pytest.mark.parametrize(("layer", "constant"), CURVED, ids=str)
def test_layers_that_stretch_nothing(layer, constant) -> None:
    norms = norms_of(layer, (3, 4))
    assert norms()[0].item() == float(norms.upper()[0]) == constant
    assert not norms.state_dict()


def test_large_convolutions_are_bounded_by_their_frequencies(monkeypatch) -> None:
    layer = nn.Conv2d(4, 6, 4, stride=2, padding=1, groups=2)
    norms, exact = norms_of(layer, (4, 9, 9)), dense(layer, (4, 9, 9))
    monkeypatch.setattr(convolution_matrices, "SIDE", 1)
    assert exact < float(norms.upper()[0]) < 1.35 * exact


def test_the_gradient_is_that_of_the_norm() -> None:
    layer = nn.Linear(6, 4)
    norms = norms_of(layer, (6,))
    norms.advance()
    norms()[0].backward()
    u, _, vh = torch.linalg.svd(layer.weight)
    assert torch.allclose(layer.weight.grad, torch.outer(u[:, 0], vh[0]), atol=1e-4)


@pytest.mark.slow
def test_a_residual_is_one_more_than_its_body_and_sequences_multiply() -> None:
    body = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    norms = norms_of(Residual(body), (3, 4))
    norms.advance()
    first, last = (float(torch.linalg.matrix_norm(body[i].weight.detach(), ord=2)) for i in (0, 2))
    assert float(norms.upper()[0]) == pytest.approx(1 + 1.1289042 * first * last, rel=1e-5)
    assert norms()[0].item() == pytest.approx(1 + 1.1289042 * first * last, rel=1e-3)


@pytest.mark.parametrize(("width", "heads", "tokens"), [(4, 1, 5), (6, 3, 4)])
def test_l2_attention_is_above_ascent_and_near_the_certificate(width, heads, tokens) -> None:
    torch.manual_seed(tokens)
    layer = L2Attention(width, heads)
    norms = norms_of(layer, (tokens, width), 100)
    norms.advance()
    upper, proven = float(norms.upper()[0]), l2_attention_norm_upper(layer, tokens)
    assert proven <= upper * (1 + 1e-6)  # the certificate takes the least of four forms, two of them these
    assert upper <= 1.5 * proven
    assert upper * 0.99 <= norms()[0].item() <= upper * (1 + 1e-5)
    x = torch.randn(tokens, width, dtype=torch.float64)
    layer = layer.double()
    assert ascend(lambda y: layer(y[None])[0], x, 8, 0.3) <= upper


@pytest.mark.parametrize("uneven", [True, False])
def test_l2_attention_takes_the_less_of_two_forms(uneven) -> None:
    """Where one head has the larger queries and another the larger values, the form that joins heads pays for both."""
    torch.manual_seed(0)
    layer = L2Attention(6, 3)
    if uneven:
        for linear in (layer.query, layer.value, layer.output):
            linear.weight.data.copy_(torch.eye(6))
        layer.query.weight.data[:2] *= 3
        layer.value.weight.data[:2] *= 0.1
    query, value, output = (weight.detach() for weight in layer.head_weights())
    q, v = (torch.linalg.matrix_norm(weight, ord=2) for weight in (query, value))
    stacked = torch.linalg.matrix_norm((query.mT @ value @ output).flatten(0, 1), ord=2)
    o, whole = (torch.linalg.matrix_norm(linear.weight.detach(), ord=2) for linear in (layer.output, layer.query))
    by_head, together = (q**4 * v**2).sum().sqrt() * o, whole * stacked
    assert (by_head < together - 1e-3) if uneven else (together < by_head - 1e-3)
    expected = mixing_constant(4) / 2**0.5 * torch.minimum(by_head, together)
    assert float(norms_of(layer, (4, 6)).upper()[0]) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_a_weight_that_was_zero_is_seen_again() -> None:
    layer = nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    layer.weight.data.zero_()
    norms = norms_of(layer, (4,))
    norms.advance()
    norms()[0].backward()
    assert norms()[0].item() == 0
    assert torch.isfinite(layer.weight.grad).all()
    layer.weight.data.copy_(before)
    norms.advance()
    assert norms()[0].item() == pytest.approx(float(torch.linalg.matrix_norm(before, ord=2)), rel=1e-3)


NONE = "has no global Lipschitz constant"
REFUSED = [
    (nn.LayerNorm(4), (3, 4), "LayerNorm .* use LayerProject"),
    (SelfAttention(4, 2), (3, 4), f"SelfAttention {NONE}"),
    (ResidualAttention(4, 2, qk_norm=1.0, vo_norm=1.0), (3, 4), f"ResidualAttention {NONE}"),
    (DotProductWindowAttention(4, 2, side=2, window=2), (4, 4), f"DotProductWindowAttention {NONE}"),
    (ReleasedL2Attention(4, 2), (3, 4), f"ReleasedL2Attention {NONE}"),
    (nn.Softplus(), (4,), "no global Lipschitz constant is known in training for the layer Softplus"),
    (nn.BatchNorm2d(1), (1, 4, 4), "for the layer BatchNorm2d"),
    (tiny_layers.Doubled(4, 4), (4,), "for the layer Doubled"),
    (Residual(nn.LayerNorm(4)), (3, 4), "LayerNorm"),
    (nn.Conv2d(1, 1, 3, dilation=2), (1, 8, 8), "dilation"),
    (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), (1, 8, 8), "padding mode other than zeros"),
]


@pytest.mark.parametrize(("layer", "shape", "message"), REFUSED)
def test_layers_without_a_constant_are_refused_in_one_line(layer, shape, message) -> None:
    with pytest.raises(BenchmarkError, match=message):
        norms_of(layer, shape)


def test_a_sequence_is_flat_and_ends_in_a_linear_head() -> None:
    inner, head = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU())), NormalisedHead(4, 2)
    layers, last = sequence(nn.Sequential(nn.Flatten(), inner, head), "own")
    assert [type(layer) for layer in layers] == [nn.Flatten, nn.Linear, nn.ReLU]
    assert last is head
    for model, message in (
        (nn.Linear(4, 2), "the own objective needs a plain nn.Sequential, not Linear"),
        (nn.Sequential(), "needs a plain nn.Sequential"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "needs a head of Linear, .*; the last layer is ReLU"),
    ):
        with pytest.raises(BenchmarkError, match=message):
            sequence(model, "own")


def test_the_vectors_do_not_depend_on_the_seed_of_the_weights() -> None:
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        states.append(norms_of(nn.Linear(5, 3), (5,)).vector(0))
    assert torch.equal(*states)
    assert float(states[0].norm()) == pytest.approx(1)
