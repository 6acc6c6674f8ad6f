"""Jacobians of blocks: known answers, the paper's formula, and Lanczos compared with the whole matrix."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import Through
from torch import nn

from benchmark.layers.residual import Residual
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods, tracks

NAME = "Wang2022Cauchy"
QUANTITIES = ("sigma_max", "residual_gain", "log_norm", "norm_bound")


@pytest.fixture
def jacobians():
    return methods.module(NAME, "jacobians")


def tokens(count: int, width: int, n: int = 3) -> torch.Tensor:
    return torch.rand(n, count, width, generator=torch.Generator().manual_seed(0))


def linear(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight.data.copy_(weight)
    return layer


def residuals(*bodies: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(f"block {i}", Residual(body).eval().requires_grad_(False)) for i, body in enumerate(bodies, 1)]


def encoder(depth: int, **options: int) -> list[tuple[str, nn.Module]]:
    """The encoder blocks of a small ViT."""
    torch.manual_seed(0)
    model = methods.method(NAME).build(tracks.load("digits").data, mixer="attention", depth=depth, heads=2, **options)
    return methods.method(NAME).blocks(model.eval().requires_grad_(False))


def singular(matrix: torch.Tensor) -> float:
    return float(torch.linalg.svdvals(matrix.double())[0])


@pytest.mark.parametrize("dense", [1024, 0], ids=["formed", "Lanczos"])
def test_the_rotation_field_has_norm_5_and_moves_nothing_apart(jacobians, monkeypatch, dense) -> None:
    monkeypatch.setattr(jacobians, "DENSE", dense)
    blocks = residuals(linear(torch.tensor([[0.0, -5.0], [5.0, 0.0]])))
    seen: list[tuple[int, int]] = []
    (values,) = jacobians.amplification(blocks, tokens(1, 2), progress=lambda *done: seen.append(done)).blocks.values()
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert values["sigma_max"].tolist() == pytest.approx([5.0] * 3)
    assert values["log_norm"].tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert values["residual_gain"].tolist() == pytest.approx([math.sqrt(26)] * 3)


def quantities_of(formed: torch.Tensor) -> dict[str, float]:
    """Return all quantities of a Jacobian I + J in float64, by their definitions."""
    branch = formed.double() - torch.eye(len(formed))
    return {
        "sigma_max": singular(branch),
        "residual_gain": singular(formed),
        "log_norm": float(torch.linalg.eigvalsh((branch + branch.mT) / 2)[-1]),
        "norm_bound": math.sqrt(float(branch.abs().sum(0).max() * branch.abs().sum(1).max())),
    }


def test_a_transformer_s_values_are_their_definitions_and_bound_its_norm_by_15(jacobians, monkeypatch) -> None:
    monkeypatch.setattr(jacobians, "BATCH", 2)
    blocks, given = encoder(depth=2, width=16, patch_size=4), tokens(5, 16)
    result = jacobians.amplification(blocks, given, encoder=True)
    assert result.exact
    for _, block in blocks:
        block.double()
    for i in range(len(given)):
        x, chain, gains, branches = given[i : i + 1].double(), torch.eye(80, dtype=torch.float64), 1.0, 0.0
        for name, block in blocks:
            formed = torch.autograd.functional.jacobian(block, x).reshape(80, 80)
            expected = quantities_of(formed)
            measured = {quantity: float(values[i]) for quantity, values in result.blocks[name].items()}
            assert measured == pytest.approx(expected, rel=1e-5)
            x, chain = block(x), formed @ chain
            gains, branches = gains * expected["residual_gain"], branches + expected["sigma_max"]
        whole = [singular(chain), gains, math.exp(branches)]
        assert whole == sorted(whole)
        assert [float(values[i]) for values in result.encoder.values()] == pytest.approx(whole, rel=1e-4)


@pytest.mark.slow
def test_beyond_1024_entries_lanczos_and_streamed_rows_give_the_same_or_nan(jacobians, monkeypatch) -> None:
    blocks, given = encoder(depth=1, width=64, patch_size=2), tokens(17, 64, n=1)
    free = jacobians.amplification(blocks, given, encoder=True)
    assert (free.exact, free.encoder) == (False, {})
    monkeypatch.setattr(jacobians, "DENSE", 2000)
    monkeypatch.setattr(jacobians, "ROWS", {"cpu": 1088 * 7})  # rows that do not divide 1088
    formed = jacobians.amplification(blocks, given)
    assert formed.exact
    for quantity in QUANTITIES:
        values = (float(result.blocks["block 1"][quantity]) for result in (free, formed))
        assert next(values) == pytest.approx(next(values), rel=1e-5)
    monkeypatch.setattr(jacobians, "DENSE", 0)
    monkeypatch.setattr(jacobians, "STEPS", 3)  # too few to converge
    unknown = jacobians.amplification(blocks, given, quantities=QUANTITIES[:3]).blocks["block 1"]
    assert all(values.isnan().all() for values in unknown.values())


def test_lanczos_keeps_maps_apart_and_ends_at_an_invariant_subspace(jacobians) -> None:
    maps = torch.stack([torch.eye(6), torch.diag(torch.arange(6.0) - 7), torch.zeros(6, 6), torch.full((6, 6), math.nan)])
    largest = jacobians.largest_eigenvalue(lambda v: (maps @ v[:, :, None])[:, :, 0], torch.ones(4, 6))
    assert largest.tolist() == pytest.approx([1.0, -2.0, 0.0, math.nan], abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("dense", [1024, 0], ids=["formed", "Lanczos"])
def test_a_jacobian_that_is_not_finite_gives_nan(jacobians, monkeypatch, dense) -> None:
    monkeypatch.setattr(jacobians, "DENSE", dense)
    block = Through(nn.Identity(), lambda x: torch.exp(1000 * x.abs() + 1000))
    values = jacobians.amplification([("a", block)], tokens(2, 3)).blocks["a"]
    assert all(of_quantity.isnan().all() for of_quantity in values.values())


def test_an_image_without_a_finite_output_leaves_the_encoder_of_the_others(jacobians) -> None:
    share = Through(nn.Identity(), lambda x: x / x.sum((1, 2), keepdim=True))  # 0 by 0 for an image of zeros
    given = tokens(2, 4)
    given[1] = 0
    whole = jacobians.amplification([("1", share), ("2", nn.Identity())], given, encoder=True).encoder
    assert whole["norm"].isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("scale", [1e-6, 1e-9])
@pytest.mark.parametrize("identity", [0.0, 0.5])
def test_nearly_a_multiple_of_the_identity_has_its_values(jacobians, scale, identity) -> None:
    """LAPACK's quickest driver does not converge where the eigenvalues lie together in float32."""
    random = torch.randn(6, 80, 80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for noise in random:
        whole = (identity * torch.eye(80, dtype=torch.float64) + scale * noise).float()
        values = {quantity: jacobians._dense(whole.numpy(), quantity) for quantity in QUANTITIES}
        assert values == pytest.approx(quantities_of(whole), rel=1e-5)


class Linear(torch.autograd.Function):
    """2 x, whose derivative has a derivative of zero."""

    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, grad):
        return 2 * grad.detach() + 0 * grad


def test_lanczos_refuses_a_block_whose_second_derivative_is_silently_zero(jacobians, monkeypatch) -> None:
    blocks = [("a", Through(nn.Identity(), Linear.apply))]
    values = jacobians.amplification(blocks, tokens(2, 3)).blocks["a"]
    assert values["sigma_max"].tolist() == [1.0] * 3
    monkeypatch.setattr(jacobians, "DENSE", 0)
    with pytest.raises(BenchmarkError, match="cannot be differentiated twice"):
        jacobians.amplification(blocks, tokens(2, 3))
