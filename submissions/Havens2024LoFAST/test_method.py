"""The paper's identities on the network that is built."""

from __future__ import annotations

import torch

from benchmark import submissions, tracks
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.tokens import LayerProject


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return submissions.build(submissions.load("Havens2024LoFAST"), "mean_pool", tracks.load("digits"))


def test_attention_weights_respect_their_bounds() -> None:
    for layer in model():
        if isinstance(layer, ResidualAttention):
            for linear, bound in ((layer.query, 1.0), (layer.key, 1.0), (layer.value, 0.25), (layer.output, 0.25)):
                assert torch.linalg.matrix_norm(linear.weight.double(), ord=2) <= bound * (1 + 1e-6)


def test_projection_stands_before_the_branch_splits() -> None:
    layers = list(model())
    places = [i for i, layer in enumerate(layers) if isinstance(layer, ResidualAttention)]
    assert len(places) == 2
    assert all(isinstance(layers[i - 1], LayerProject) for i in places)


def test_layer_project_is_equation_29() -> None:
    x = torch.randn(2, 5, 7) * 3
    norms = x.norm(dim=-1, keepdim=True)
    expected = torch.where(norms > 1.5, 1.5 * x / norms, x)
    assert torch.allclose(LayerProject(1.5)(x), expected)
