"""The penalty `spectral_norm`: the singular values that it sees."""

from __future__ import annotations

import pytest
import torch
from tiny_models import attentive
from torch import nn

from benchmark.layers.attention import SelfAttention
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods
from benchmark.training.objective import Penalty


def made(model: nn.Module, factor: float) -> Penalty:
    return methods.module("Hu2024SpecFormer", "spectral_norm").penalty(model, list, factor=factor)


def advanced(penalty: Penalty, steps: int) -> float:
    for _ in range(steps):
        penalty.advance()
    return penalty().item()


def test_every_linear_layer_outside_attention_counts_and_there_must_be_one() -> None:
    model = attentive()
    outside = [model[1].weight, model[4].weight]
    penalty = made(model, 0.5)
    expected = sum(0.25 * torch.linalg.matrix_norm(weight.detach(), ord=2).item() ** 2 for weight in outside)
    assert advanced(penalty, 300) == pytest.approx(expected, rel=1e-4)
    penalty().backward()
    u, s, vh = torch.linalg.svd(outside[0].detach())
    assert torch.allclose(outside[0].grad, 0.5 * s[0] * torch.outer(u[:, 0], vh[0]), atol=1e-4)  # of factor / 2 sigma^2
    assert all(part.weight.grad is None for part in (model[2].body[1].query, model[2].body[1].output))
    with pytest.raises(BenchmarkError, match=r"has no nn\.Linear outside attention"):
        made(nn.Sequential(Patchify(3), SelfAttention(9, 3), MeanPool()), 1.0)


def test_a_weight_that_was_zero_is_seen_again() -> None:
    model = attentive()
    weight = model[4].weight
    before = weight.detach().clone()
    weight.data.zero_()
    penalty = made(model, 2.0)
    at_zero = advanced(penalty, 1)
    weight.data.copy_(before)
    assert advanced(penalty, 100) > at_zero + 0.01
