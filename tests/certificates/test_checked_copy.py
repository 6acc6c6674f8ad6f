"""Every certificate speaks of the float32 network that the model's layers and weights describe, and of no other."""

from __future__ import annotations

import copy
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import fake_lirpa
import pytest
import torch
from tiny_certified import network
from torch import nn

from benchmark.certificates import box_lipschitz, crown, lipschitz, local, published
from benchmark.certificates.bounds import checked_copy
from benchmark.certificates.local import certified_at, certify, float32_gap
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.derived import cache_weights
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError


def around(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Patchify(2), *middle, MeanPool(), NormalisedHead(4, 3)).eval().requires_grad_(False)


SIX = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
ZEROS = torch.zeros(6, dtype=torch.long)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_networks_of_another_precision_are_refused(dtype) -> None:
    with pytest.raises(BenchmarkError, match="float32 networks"):
        certify(around().to(dtype), SIX, ZEROS)


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(BenchmarkError, match="outside autocast"):
        certified_at(around(), SIX, ZEROS, 0.1)


def test_convolutions_in_bfloat16_are_refused(monkeypatch) -> None:
    reduced = SimpleNamespace(matmul=None, conv=SimpleNamespace(fp32_precision="bf16"))
    monkeypatch.setattr(torch.backends, "mkldnn", reduced)
    with pytest.raises(BenchmarkError, match="TF32"):
        certify(around(), SIX, ZEROS)


def certified_in_bfloat16() -> None:
    torch.backends.fp32_precision = "bf16"
    certify(around(), SIX, ZEROS)


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
    certify(around(), SIX, ZEROS)
    monkeypatch.setenv(name, mode)
    with pytest.raises(BenchmarkError, match=f"{name}={mode} lets oneDNN"):
        certify(around(), SIX, ZEROS)


def test_flushing_denormal_numbers_is_refused() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        with pytest.raises(BenchmarkError, match="flushed to zero"):
            certify(around(), SIX, ZEROS)
    finally:
        torch.set_flush_denormal(False)
    assert (certify(around(), SIX, ZEROS) >= 0).all()


@pytest.mark.parametrize("norm", [LayerProject(1.0), nn.LayerNorm(4)])
def test_nothing_is_certified_where_float32_overflows(norm) -> None:
    """Squares of tokens of size 1e20 are infinite in float32, which then sees other tokens than float64."""
    model = around(nn.Linear(4, 4), norm)
    model[1].weight.data *= 1e20
    with pytest.raises(BenchmarkError, match="could overflow"):
        certify(model, SIX, ZEROS)
    model = around(*(nn.Linear(4, 4, bias=False) for _ in range(4)), norm)
    for layer in model[1:5]:
        layer.weight.data[:] = 1e6 * torch.eye(4)  # each below the limit, together 1e24
    labels = model.double()(SIX.double()).argmax(1)
    assert (certify(model.float(), SIX, labels) == 0).all()


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


IMAGES = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def attends() -> nn.Sequential:
    mixed = (LayerProject(1.0), ResidualAttention(4, 2, qk_norm=1.0, vo_norm=0.5), SLLBlock(4, 6))
    return nn.Sequential(Normalise(), Patchify(2), BoundedLinear(4, 4), Positions(4, 4), *mixed, MeanPool(), NormalisedHead(4, 3))  # fmt: skip


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Identity(), BoundedLinear(16, 6), nn.ReLU(), nn.Linear(6, 3))


def affine() -> nn.Sequential:
    return nn.Sequential(Normalise(), Patchify(2), BoundedLinear(4, 4), MeanPool(), NormalisedHead(4, 3))


KINDS = [(local, attends), (published, attends), (lipschitz, dense), (box_lipschitz, dense), (crown, affine)]


@pytest.fixture(params=KINDS, ids=[module.__name__.rpartition(".")[2] for module, _ in KINDS])
def certificate(request, monkeypatch):
    """A certificate's module, and a maker of a network that it takes."""
    fake_lirpa.install(monkeypatch)
    module, make = request.param

    def made() -> nn.Sequential:
        torch.manual_seed(0)
        model = make().eval().requires_grad_(False)
        model[-1].bias.data -= model(IMAGES).mean(0)
        return model

    return module, made


def at(module, model: nn.Module, labels: torch.Tensor) -> torch.Tensor | None:
    if not hasattr(module, "certified_at"):
        return None
    return module.certified_at(model, IMAGES, labels, 0.01)


def change_cache(model: nn.Sequential) -> None:
    cache_weights(model)
    settings, made_of, weight = model[2]._cached
    model[2]._cached = (settings, made_of, 9 * weight)


CHANGES = [
    lambda model: model[2].register_forward_hook(lambda _module, _given, output: 5 * output),
    lambda model: model[2].register_forward_pre_hook(lambda _module, given: (5 * given[0],)),
    lambda model: setattr(model[2], "forward", lambda x: 7 * nn.functional.linear(x, model[2].weight)),
    lambda model: setattr(model[2], "_compiled_call_impl", lambda x: -nn.functional.linear(x, model[2].weight)),
    lambda model: setattr(model[2], "derive", lambda: torch.full_like(model[2].raw, 3.0)),
    change_cache,
]


def test_what_an_object_hides_moves_no_radius_and_is_found_by_its_logits(certificate) -> None:
    module, made = certificate
    honest = made()
    labels = honest(IMAGES).argmax(1)
    radii, verdict = module.certify(honest, IMAGES, labels, precision=0.2), at(module, honest, labels)
    assert (radii > 0).any()
    module.float32_gap(honest, IMAGES, labels)
    for change in CHANGES:
        model = made()
        change(model)
        assert (model(IMAGES) != honest(IMAGES)).any(), change
        assert torch.equal(module.certify(model, IMAGES, labels, precision=0.2), radii), change
        if verdict is not None:
            assert torch.equal(at(module, model, labels), verdict), change
        with pytest.raises(
            BenchmarkError, match=r"logits differ by up to .* from those of the network that its layers"
        ):
            module.float32_gap(model, IMAGES, labels)


def test_a_model_that_writes_to_its_images_is_found(certificate) -> None:
    """It computes another function of what it was given, which the images left behind would hide."""
    module, made = certificate
    model, images = made(), IMAGES.clone()
    labels = model(images).argmax(1)
    model.register_forward_pre_hook(lambda _module, given: (given[0].mul_(0.5),))
    with pytest.raises(BenchmarkError, match="logits differ"):
        module.float32_gap(model, images, labels)
    assert torch.equal(images, IMAGES)


def test_hooks_that_only_look_change_nothing(certificate) -> None:
    module, made = certificate
    model, seen = made(), []
    labels = model(IMAGES).argmax(1)
    gap = module.float32_gap(model, IMAGES, labels)
    model[2].register_forward_hook(lambda _module, _given, output: seen.append(output))
    assert module.float32_gap(model, IMAGES, labels) == gap
    assert len(seen) == 1


def test_logits_of_another_kind_are_refused(certificate) -> None:
    module, made = certificate
    labels = made()(IMAGES).argmax(1)
    for change in (lambda y: y.double(), lambda y: y[:, :2], lambda y: nn.Parameter(y), lambda y: y * torch.nan):
        model = made()
        model.register_forward_hook(lambda _module, _given, output, change=change: change(output))
        with pytest.raises(BenchmarkError, match="the model"):
            module.float32_gap(model, IMAGES, labels)


def test_hooks_on_every_module_are_refused(certificate) -> None:
    module, made = certificate
    model = made()
    labels = model(IMAGES).argmax(1)
    registry = nn.modules.module
    for register in (
        registry.register_module_forward_hook,
        registry.register_module_forward_pre_hook,
        registry.register_module_full_backward_hook,
        registry.register_module_parameter_registration_hook,
    ):
        handle = register(lambda *_: None)
        try:
            with pytest.raises(BenchmarkError, match="torch has global"):
                module.certify(model, IMAGES, labels)
        finally:
            handle.remove()
    assert (module.certify(model, IMAGES, labels, precision=0.1) > 0).any()


def test_an_embedding_in_training_mode_is_refused_by_every_certificate(certificate) -> None:
    module, made = certificate
    model = made()
    model[2] = OrthogonalLinear(model[2].raw.shape[1], model[2].raw.shape[0]).requires_grad_(False).eval()
    labels = model(IMAGES).argmax(1)
    module.certify(model, IMAGES, labels, precision=0.1)
    calls = [module.certify, module.float32_gap]
    if hasattr(module, "certified_at"):
        calls.append(lambda *_: at(module, model, labels))
    for call in calls:
        with pytest.raises(BenchmarkError, match="training mode"):
            call(model.train(), IMAGES, labels)


def test_no_radius_moves_by_rebuilding(certificate, monkeypatch) -> None:
    module, made = certificate
    model = made()
    labels = model(IMAGES).argmax(1)
    radii, gap = module.certify(model, IMAGES, labels, precision=0.2), module.float32_gap(model, IMAGES, labels)
    for place in (checked_copy, local, lipschitz):
        if hasattr(place, "rebuilt"):
            monkeypatch.setattr(place, "rebuilt", copy.deepcopy)
    assert torch.equal(module.certify(model, IMAGES, labels, precision=0.2), radii)
    assert module.float32_gap(model, IMAGES, labels) == gap
