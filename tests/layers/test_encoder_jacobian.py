"""Jacobians of blocks: known answers, the paper's formula, and Lanczos compared with the whole matrix."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import Through
from torch import nn

from benchmark.layers import encoder_jacobian as jacobian
from benchmark.layers.encoder_blocks import default_blocks
from benchmark.layers.encoder_jacobian import QUANTITIES, amplification, largest_eigenvalue
from benchmark.layers.residual import Residual
from benchmark.layers.vit import vision_transformer
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Tokens(nn.Module):
    """The first `count` x `width` pixels as tokens."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.count, self.width = count, width

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, : self.count * self.width].view(-1, self.count, self.width)


def linear(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight.data.copy_(weight)
    return layer


def sequence(count: int, width: int, *bodies: nn.Module) -> nn.Sequential:
    residuals = [Residual(body) for body in bodies]
    return nn.Sequential(Tokens(count, width), *residuals, nn.Flatten()).eval().requires_grad_(False)


def vit(width: int, patch_size: int, depth: int = 2) -> nn.Module:
    torch.manual_seed(0)
    data = DataSpec(source="digits", seed=0, validation=40, test=40, shape=(1, 8, 8), classes=10)
    model = vision_transformer(data, patch_size=patch_size, width=width, depth=depth, heads=2)
    return model.eval().requires_grad_(False)


def singular(matrix: torch.Tensor) -> float:
    return float(torch.linalg.svdvals(matrix.double())[0])


@pytest.mark.parametrize("dense", [1024, 0], ids=["formed", "Lanczos"])
def test_the_rotation_field_has_norm_5_and_moves_nothing_apart(monkeypatch, dense) -> None:
    monkeypatch.setattr(jacobian, "DENSE", dense)
    model = sequence(1, 2, linear(torch.tensor([[0.0, -5.0], [5.0, 0.0]])))
    seen: list[tuple[int, int]] = []
    (block,) = amplification(model, default_blocks(model), IMAGES, progress=lambda *done: seen.append(done)).blocks
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert block.values["sigma_max"].tolist() == pytest.approx([5.0] * 3)
    assert block.values["log_norm"].tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert block.values["residual_gain"].tolist() == pytest.approx([math.sqrt(26)] * 3)


def quantities_of(formed: torch.Tensor) -> dict[str, float]:
    """Return all quantities of a Jacobian I + J in float64, by their definitions."""
    branch = formed.double() - torch.eye(len(formed))
    return {
        "sigma_max": singular(branch),
        "residual_gain": singular(formed),
        "log_norm": float(torch.linalg.eigvalsh((branch + branch.mT) / 2)[-1]),
        "norm_bound": math.sqrt(float(branch.abs().sum(0).max() * branch.abs().sum(1).max())),
    }


def test_a_transformer_s_values_are_their_definitions_and_bound_its_norm_by_15() -> None:
    model = vit(width=16, patch_size=4)
    result = amplification(model, default_blocks(model), IMAGES, encoder=True, batch_size=2)
    assert all(block.exact and block.entries == 80 for block in result.blocks)
    tokens = model[1]._pos_embed(model[1].patch_embed(model[0](IMAGES))).double()
    model.double()
    for i in range(len(IMAGES)):
        x, chain, gains, branches = tokens[i : i + 1], torch.eye(80, dtype=torch.float64), 1.0, 0.0
        for measured, block in zip(result.blocks, model[1].blocks, strict=True):
            formed = torch.autograd.functional.jacobian(block, x).reshape(80, 80)
            expected = quantities_of(formed)
            assert {name: float(values[i]) for name, values in measured.values.items()} == pytest.approx(
                expected, rel=1e-5
            )
            x, chain = block(x), formed @ chain
            gains, branches = gains * expected["residual_gain"], branches + expected["sigma_max"]
        whole = [singular(chain), gains, math.exp(branches)]
        assert whole == sorted(whole)
        assert [float(values[i]) for values in result.encoder.values()] == pytest.approx(whole, rel=1e-4)


def test_beyond_1024_entries_lanczos_and_streamed_rows_give_the_same_or_nan(monkeypatch) -> None:
    model = vit(width=64, patch_size=2, depth=1)
    (free,) = amplification(model, default_blocks(model), IMAGES[:1]).blocks
    assert (free.entries, free.exact) == (1088, False)
    monkeypatch.setattr(jacobian, "DENSE", 2000)
    monkeypatch.setattr(jacobian, "ROWS", {"cpu": 1088 * 7})  # rows that do not divide 1088
    (formed,) = amplification(model, default_blocks(model), IMAGES[:1]).blocks
    assert formed.exact
    for quantity in QUANTITIES:
        assert float(free.values[quantity]) == pytest.approx(float(formed.values[quantity]), rel=1e-5)
    monkeypatch.setattr(jacobian, "DENSE", 0)
    monkeypatch.setattr(jacobian, "STEPS", 3)  # too few to converge
    (block,) = amplification(model, default_blocks(model), IMAGES[:1], quantities=QUANTITIES[:3]).blocks
    assert all(block.values[quantity].isnan().all() for quantity in QUANTITIES[:3])


def test_lanczos_keeps_maps_apart_and_ends_at_an_invariant_subspace() -> None:
    maps = torch.stack(
        [torch.eye(6), torch.diag(torch.arange(6.0) - 7), torch.zeros(6, 6), torch.full((6, 6), math.nan)]
    )
    largest = largest_eigenvalue(lambda v: (maps @ v[:, :, None])[:, :, 0], torch.ones(4, 6))
    assert largest.tolist() == pytest.approx([1.0, -2.0, 0.0, math.nan], abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("dense", [1024, 0], ids=["formed", "Lanczos"])
def test_a_jacobian_that_is_not_finite_gives_nan(monkeypatch, dense) -> None:
    monkeypatch.setattr(jacobian, "DENSE", dense)
    model = sequence(2, 3, Through(nn.Identity(), lambda x: torch.exp(1000 * x.abs() + 1000)))
    (block,) = amplification(model, default_blocks(model), IMAGES).blocks
    assert all(values.isnan().all() for values in block.values.values())


def test_an_image_without_a_finite_output_leaves_the_encoder_of_the_others() -> None:
    share = Through(nn.Identity(), lambda x: x / x.sum((1, 2), keepdim=True))  # 0 by 0 for an image of zeros
    model = nn.Sequential(share, nn.Identity())
    images = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0))
    images[1] = 0
    encoder = amplification(model, [("1", model[0]), ("2", model[1])], images, encoder=True).encoder
    assert encoder["norm"].isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("scale", [1e-6, 1e-9])
@pytest.mark.parametrize("identity", [0.0, 0.5])
def test_nearly_a_multiple_of_the_identity_has_its_values(scale, identity) -> None:
    """LAPACK's quickest driver does not converge where the eigenvalues lie together in float32."""
    random = torch.randn(6, 80, 80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for noise in random:
        whole = (identity * torch.eye(80, dtype=torch.float64) + scale * noise).float()
        values = {quantity: jacobian._dense(whole.numpy(), quantity) for quantity in QUANTITIES}
        assert values == pytest.approx(quantities_of(whole), rel=1e-5)


def test_the_encoder_is_not_given_where_blocks_are_not_one_chain_or_too_large(monkeypatch) -> None:
    bodies = [linear(torch.eye(4)) for _ in range(3)]
    model = sequence(2, 4, *bodies)
    blocks = default_blocks(model)
    result = amplification(model, [blocks[0], blocks[2]], IMAGES, encoder=True)
    assert result.encoder is None
    assert result.why_not == "the output of block 'residual 1' is not the input of block 'residual 3'"
    monkeypatch.setattr(jacobian, "DENSE", 7)
    result = amplification(model, blocks, IMAGES, encoder=True)
    assert result.why_not == "block 'residual 1' has 8 entries, more than the 7 of which a Jacobian is formed"


class Once(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, grad):
        return 2 * grad


def test_blocks_without_the_derivatives_needed_are_named(monkeypatch) -> None:
    detached, single = (Through(nn.Identity(), change) for change in (lambda x: 2 * x.detach(), Once.apply))
    model = nn.Sequential(Tokens(2, 3), detached, single, nn.Flatten())
    assert amplification(model, [("b", model[2])], IMAGES).blocks[0].values["sigma_max"].tolist() == [1.0] * 3
    for dense in (1024, 0):
        monkeypatch.setattr(jacobian, "DENSE", dense)
        with pytest.raises(BenchmarkError, match="block 'a' has no derivative by its tokens"):
            amplification(model, [("a", model[1])], IMAGES)
    with pytest.raises(BenchmarkError, match="block 'b' cannot be differentiated twice"):
        amplification(model, [("b", model[2])], IMAGES)
    with pytest.raises(BenchmarkError, match="no image"):
        amplification(model, [("b", model[2])], IMAGES[:0])
