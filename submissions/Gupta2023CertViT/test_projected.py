"""Projection after each step: norms at most the cap, weights inside it left alone, the cap kept after a kill."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from components import assert_out_of_range
from tiny_clipped import convolutional
from tiny_models import Linear, grey_images
from tiny_training import resumed_to_the_same_bytes, run, spec
from torch import nn

from benchmark.layers import convolution_matrices
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.methods import module
from benchmark.training import standard

projected = module("Gupta2023CertViT", "projected")


def attentive() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Patchify(3), nn.Linear(9, 8), nn.Dropout(0.5), L2Attention(8, 2), MeanPool(), nn.Linear(8, 4))


def norms(model: nn.Sequential) -> list[float]:
    """Dense spectral norms of all linear layers and convolutions, float64."""
    parts = [part for part in model.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    shapes, results = {}, []
    with ExitStack() as hooks:
        for part in parts:
            hooks.enter_context(part.register_forward_pre_hook(lambda part, x: shapes.update({part: x[0].shape[1:]})))
        model(grey_images()[:1])
    for part in parts:  # also weights that attention multiplies without calling their layer
        matrix = part.weight.detach().double()
        if isinstance(part, nn.Conv2d):
            basis = torch.eye(shapes[part].numel(), dtype=torch.float64).unflatten(1, shapes[part])
            matrix = part._conv_forward(basis, matrix, None).flatten(1)
        results.append(float(torch.linalg.matrix_norm(matrix, ord=2)))
    return results


@pytest.mark.sweep
@pytest.mark.parametrize("network", [convolutional, attentive])
@pytest.mark.parametrize("cap", [0.05, 0.7])
def test_no_norm_is_above_the_cap(tmp_path, network, cap) -> None:
    free, held = network(), network()
    for model, objective in ((free, standard.objective(None)), (held, projected.objective(None, norm=cap))):
        run(model, objective, spec(epochs=2), tmp_path / type(objective).__name__)
    assert max(norms(held)) <= cap
    assert max(norms(held)) >= 0.9999 * cap
    assert max(norms(free)) > cap * 1.1


def test_norm_0_keeps_the_norms_of_the_start(tmp_path) -> None:
    model = convolutional()
    start = norms(model)
    run(model, projected.objective(None, norm=0), spec(epochs=2), tmp_path / "c")
    after = norms(model)
    assert all(b <= a * (1 + 1e-9) for a, b in zip(start, after, strict=True))
    assert max(b / a for a, b in zip(start, after, strict=True)) > 0.999  # training would have raised some


def test_a_projection_scales_and_leaves_the_rest_alone() -> None:
    model = convolutional()
    model[2].weight.data *= 3
    before = [p.detach().clone() for p in model.parameters()]
    objective = projected.objective(None, norm=2.0)
    objective.attach(model, grey_images())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    high, (conv, *_) = norms(model), [model[2].weight.detach().clone()]
    objective.after_step(model)
    for index, (a, b) in enumerate(zip(before, model.parameters(), strict=True)):
        if index == 2:
            factor = 2.0 / high[1]
            assert torch.allclose(b, factor * conv, rtol=2e-5)
        else:
            assert torch.equal(a, b)


def test_a_large_convolution_ends_below_the_cap(monkeypatch) -> None:
    model = convolutional()
    monkeypatch.setattr(convolution_matrices, "SIDE", 1)
    objective = projected.objective(None, norm=0.1)
    objective.attach(model, grey_images())
    objective.after_step(model)
    assert max(norms(model)) <= 0.1
    assert min(norms(model)[:2]) > 0.07


def test_models_that_are_refused() -> None:
    dilated = nn.Sequential(nn.Conv2d(1, 1, 3, dilation=2), nn.Flatten(), nn.Linear(4, 4))
    nothing = r"^Linear has no nn.Linear or nn.Conv2d that projection could hold$"
    for model, message in ((Linear(), nothing), (dilated, "dilation")):
        with pytest.raises(BenchmarkError, match=message):
            projected.objective(None, norm=1.0).attach(model, grey_images())


def test_a_stopped_run_resumes_to_the_same_bytes_and_caps(tmp_path) -> None:
    def start(place: str, **options):
        torch.manual_seed(0)
        objective = projected.objective(None, norm=0.0)
        result = run(attentive(), objective, spec(epochs=3, batch_size=40, ema=0.9), tmp_path / place, **options)
        return result, objective.caps.state_dict()

    assert resumed_to_the_same_bytes(start, stop=1)


@pytest.mark.parametrize("norm", [-1.0, float("nan"), float("inf"), "1", True])
def test_a_norm_that_is_none_is_refused(norm) -> None:
    assert_out_of_range(projected.objective, norm=norm)
