"""What the error analysis assumes of the network that runs is checked, not believed."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
import torch
from tiny_certified import network
from torch import nn

from benchmark.certificates import local
from benchmark.certificates.local import certified_at, certify, float32_gap
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError


def plain(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Patchify(2), *middle, MeanPool(), NormalisedHead(4, 3)).eval().requires_grad_(False)


IMAGES = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.zeros(6, dtype=torch.long)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_networks_of_another_precision_are_refused(dtype) -> None:
    with pytest.raises(BenchmarkError, match="float32 networks"):
        certify(plain().to(dtype), IMAGES, LABELS)


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(BenchmarkError, match="outside autocast"):
        certified_at(plain(), IMAGES, LABELS, 0.1)


def test_convolutions_in_bfloat16_are_refused(monkeypatch) -> None:
    reduced = SimpleNamespace(matmul=None, conv=SimpleNamespace(fp32_precision="bf16"))
    monkeypatch.setattr(torch.backends, "mkldnn", reduced)
    with pytest.raises(BenchmarkError, match="TF32"):
        certify(plain(), IMAGES, LABELS)


def certified_in_bfloat16() -> None:
    torch.backends.fp32_precision = "bf16"
    certify(plain(), IMAGES, LABELS)


def test_switches_of_torch_that_disagree_are_refused_in_words() -> None:
    """In a process of its own, since torch lets nobody take these settings back."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        refused = pool.submit(certified_in_bfloat16).exception()
    assert isinstance(refused, BenchmarkError)
    assert "torch cannot say whether float32 products" in str(refused)


@pytest.mark.parametrize(
    ("name", "mode"), [("ONEDNN_DEFAULT_FPMATH_MODE", "BF16"), ("DNNL_DEFAULT_FPMATH_MODE", "any")]
)
def test_onednn_asked_for_less_precision_is_refused(monkeypatch, name, mode) -> None:
    monkeypatch.setenv(name, "STRICT")
    certify(plain(), IMAGES, LABELS)
    monkeypatch.setenv(name, mode)
    with pytest.raises(BenchmarkError, match=f"{name}={mode} lets oneDNN"):
        certify(plain(), IMAGES, LABELS)


def test_flushing_denormal_numbers_is_refused() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        with pytest.raises(BenchmarkError, match="flushed to zero"):
            certify(plain(), IMAGES, LABELS)
    finally:
        torch.set_flush_denormal(False)
    assert (certify(plain(), IMAGES, LABELS) >= 0).all()


@pytest.mark.parametrize("norm", [LayerProject(1.0), nn.LayerNorm(4)])
def test_nothing_is_certified_where_float32_overflows(norm) -> None:
    """Squares of tokens of size 1e20 are infinite in float32, which then sees other tokens than float64."""
    model = plain(nn.Linear(4, 4), norm)
    model[1].weight.data *= 1e20
    with pytest.raises(BenchmarkError, match="could overflow"):
        certify(model, IMAGES, LABELS)
    model = plain(*(nn.Linear(4, 4, bias=False) for _ in range(4)), norm)
    for layer in model[1:5]:
        layer.weight.data[:] = 1e6 * torch.eye(4)  # each below the limit, together 1e24
    labels = model.double()(IMAGES.double()).argmax(1)
    assert (certify(model.float(), IMAGES, labels) == 0).all()


class OldTieRule(LayerProject):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.where(norms >= self.radius, x * (self.radius / norms.clamp(min=1e-30)), x)


def test_a_token_on_the_ball_may_be_differentiated_from_either_side(monkeypatch) -> None:
    """Up to torch 2.13 the derivative at the kink is the outside's, from 2.14 on the inside's."""
    model = nn.Sequential(
        Patchify(1), nn.Linear(1, 2), Positions(2, 2), LayerProject(1.0), MeanPool(), NormalisedHead(2, 2)
    ).requires_grad_(False)
    model[1].weight.data[:, 0], model[1].bias.data[:] = torch.tensor([0.6, 0.8]), 0.0
    model[2].offset.data[:] = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
    model[5].raw.data[:] = torch.tensor([[-0.35, 1.0], [0.35, -1.0]])
    image = torch.zeros(1, 1, 1, 2)
    model[5].bias.data[:] = torch.tensor([0.2, 0.0])
    moves = 0.5 * torch.randn(20000, 2, generator=torch.Generator().manual_seed(0))
    for rule in (LayerProject.forward, OldTieRule.forward):
        monkeypatch.setattr(LayerProject, "forward", rule)
        radius = float(certify(model, image, torch.zeros(1, dtype=torch.long)))
        assert radius > 0
        inside = moves[moves.norm(dim=1) < radius].reshape(-1, 1, 1, 2)
        assert len(inside) > 100
        assert (model(inside).argmax(1) == 0).all()


def test_rounding_is_measured_below_its_bound_and_refused_above(monkeypatch) -> None:
    model = network(0)
    images = torch.rand(10, 1, 4, 4)
    labels = model(images).argmax(1)
    found, allowed = float32_gap(model, images, labels)
    assert 0 < found <= allowed < 1e-3
    monkeypatch.setattr(
        "benchmark.certificates.bounds.network_bound.NetworkBound.composed", lambda *_, **__: torch.full((10, 4), 1e-9)
    )
    with pytest.raises(BenchmarkError, match="error analysis"):
        float32_gap(model, images, labels)


def test_a_bound_of_rounding_that_overflows_to_nan_is_none() -> None:
    images, labels = torch.rand(2, 1, 4, 4), torch.tensor([0, 1])
    bounded = (torch.zeros(2, 4, dtype=torch.float64), torch.full((2, 4), torch.nan))
    assert local.checked_gap(network(0), images, labels, lambda *_: bounded)[1] == torch.inf


def test_reduced_precision_products_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    with pytest.raises(BenchmarkError, match="TF32"):
        certify(network(0), torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.long))
