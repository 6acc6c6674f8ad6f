"""Published constants that are no bounds, each exceeded by a stored head; singular values of the Jacobian are the truth."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ball_search import jacobian_norm
from torch import nn

from benchmark.certificates.unsound_paper_formula import Unsound, specformer_constant
from benchmark.layers.attention import LipschitzNormAttention
from benchmark.specs import methods

BOUNDS = methods.module("Hu2024SpecFormer", "head_bounds")
STORED = json.loads(Path(__file__).with_name("counterexamples.json").read_text())


def stored(name: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """x (tokens, d), and the weights in the file's order, acting on rows."""
    case = {key: torch.tensor(value, dtype=torch.float64) for key, value in STORED[name].items()}
    return case["x"], [case[key] for key in case if key.startswith("w_")]


def attention_head(weights: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    w_q, w_k, w_v = weights
    return lambda x: ((x @ w_q) @ (x @ w_k).mT / math.sqrt(w_q.shape[1])).softmax(-1) @ x @ w_v


@pytest.mark.parametrize(("name", "times"), [("theorem_4_3_near_zero", 1000), ("theorem_4_3_at_zero", 1000)])
def test_specformers_theorem_is_exceeded_and_the_sound_bounds_are_not(name, times) -> None:
    x, weights = stored(name)
    delta = STORED[name]["delta"]
    found = jacobian_norm(attention_head(weights), x)
    published = specformer_constant(x[None], *weights, delta)
    assert type(published) is Unsound
    assert found > times * published.value
    assert found <= BOUNDS.point_norm_upper(x[None], *weights) <= BOUNDS.ball_norm_upper(x[None], *weights, delta)


def test_at_zero_six_tokens_have_the_norm_of_the_values_weight() -> None:
    """P = 1/6 throughout: 2.57, where the theorem has 8.7e-4 within 0.001."""
    x, weights = stored("theorem_4_3_at_zero")
    assert x.shape == (6, 4)
    assert not x.any()
    assert jacobian_norm(attention_head(weights), x) == pytest.approx(2.57, abs=0.01)


def test_lnformers_constant_is_exceeded() -> None:
    """(41) has no W_V, and W_Q and W_K near 0 make it as small as one likes, while attention averages the values."""
    x, weights = stored("equation_41")
    layer = LipschitzNormAttention(2, 1).double().requires_grad_(False)
    for linear, weight in zip((layer.query, layer.key, layer.value, layer.output), weights, strict=True):
        assert isinstance(linear, nn.Linear)
        linear.weight.copy_(weight.mT)
    query, key, _, output = (torch.linalg.matrix_norm(weight, ord=2) for weight in layer.head_weights())
    found, published = jacobian_norm(lambda z: layer(z[None])[0], x), 11 * output.norm() * (query * key).norm()
    assert found > 10_000 * published
    assert found > 0.9 * torch.linalg.matrix_norm(weights[2] @ weights[3], ord=2)
