"""Self-attention with biases and scales under the certificates: what they take, what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmark.certificates import local, published
from benchmark.layers.attention import SelfAttention
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError


def attending(scale: float = 0.0, width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    attention = SelfAttention(width, 2, scale=scale)
    return nn.Sequential(
        Normalise(), Patchify(2), nn.Linear(4, width), attention, MeanPool(), NormalisedHead(width, 3)
    ).eval().requires_grad_(False)  # fmt: skip


def test_the_published_bound_is_of_attention_without_biases_and_scales_alone() -> None:
    model, images = attending(scale=300.0), torch.rand(4, 1, 4, 4)
    with pytest.raises(
        BenchmarkError, match="the published bound is of ResidualAttention; use the certificate `local`"
    ):
        published.certify(model, images, model(images).argmax(1))
    assert (local.certify(model, images, model(images).argmax(1)) > 0).any()


def test_attention_too_wide_for_its_jacobian_inside_a_residual_is_certified_by_composing(monkeypatch) -> None:
    monkeypatch.setattr("benchmark.certificates.bounds.attention.FORMED_SIDE", 10)
    model = attending()
    model[3] = Residual(nn.Sequential(nn.LayerNorm(8), model[3]))
    images = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    radii = local.certify(model, images, labels)
    assert (radii > 0).any()
    assert bool(local.certified_at(model, images, labels, float(radii.max()) / 2).any())
