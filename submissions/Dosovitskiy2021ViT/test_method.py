"""The paper's counts on the small network."""

from __future__ import annotations

import torch

from benchmark.specs import methods, submissions, tracks


def test_parameter_count_is_the_architectures() -> None:
    """Patch embedding, class token, positions, per block 12 d^2 + 13 d, final norm, head."""
    model = methods.build(submissions.load("Dosovitskiy2021ViT"), "standard", tracks.load("digits"))
    d, tokens = 32, 16
    expected = (4 * d + d) + d + (tokens + 1) * d + 2 * (12 * d * d + 13 * d) + 2 * d + (10 * d + 10)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_normalisation_is_inside_the_model() -> None:
    model = methods.build(submissions.load("Dosovitskiy2021ViT"), "standard", tracks.load("digits")).eval()
    image = torch.rand(1, 1, 8, 8)
    assert torch.allclose(model(image), model[1](2 * image - 1), atol=1e-5)  # rounding
