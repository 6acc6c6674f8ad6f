"""Every certificate holds for the float32 network of the model's layers and weights, and for no other."""

from __future__ import annotations

import copy
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import fake_lirpa
import pytest
import torch
from mutations import attends
from tiny_certified import affine, network
from torch import nn

from benchmark.certificates import box_lipschitz, crown, lipschitz, local, published
from benchmark.certificates.bounds import checked_copy
from benchmark.certificates.local import certified_at, certify, float32_gap
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError


def around(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Patchify(2), *middle, MeanPool(), NormalisedHead(4, 3)).eval().requires_grad_(False)


SIX = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
ZEROS = torch.zeros(6, dtype=torch.long)


def test_reduced_precision_is_refused(monkeypatch) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(BenchmarkError, match="outside autocast"):
        certified_at(around(), SIX, ZEROS, 0.1)
    for variable, mode in (("ONEDNN_DEFAULT_FPMATH_MODE", "BF16"), ("DNNL_DEFAULT_FPMATH_MODE", "any")):
        monkeypatch.setenv(variable, "STRICT")
        certify(around(), SIX, ZEROS)
        monkeypatch.setenv(variable, mode)
        with pytest.raises(BenchmarkError, match=f"{variable}={mode} lets oneDNN"):
            certify(around(), SIX, ZEROS)
        monkeypatch.undo()
    reduced = SimpleNamespace(matmul=None, conv=SimpleNamespace(fp32_precision="bf16"))
    for owner, name, value in ((torch.backends, "mkldnn", reduced), (torch, "get_float32_matmul_precision", lambda: "high")):
        monkeypatch.setattr(owner, name, value)
        with pytest.raises(BenchmarkError, match="TF32"):
            certify(around(), SIX, ZEROS)
        monkeypatch.undo()


def certified_in_bfloat16() -> None:
    torch.backends.fp32_precision = "bf16"
    certify(around(), SIX, ZEROS)


def test_switches_of_torch_that_disagree_are_refused() -> None:
    """In a process of its own, since these settings cannot be taken back."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        error = pool.submit(certified_in_bfloat16).exception()
    assert isinstance(error, BenchmarkError)
    assert "torch cannot say whether float32 products" in str(error)


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
    measured, allowed = float32_gap(model, images, labels)
    assert 0 < measured <= allowed < 1e-3
    nan = (torch.zeros(10, 4, dtype=torch.float64), torch.full((10, 4), torch.nan))  # a bound that overflows
    assert local.checked_gap(model, images, labels, lambda *_: nan)[1] == torch.inf
    monkeypatch.setattr(
        "benchmark.certificates.bounds.network_bound.NetworkBound.composed", lambda *_, **__: torch.full((10, 4), 1e-9)
    )
    with pytest.raises(BenchmarkError, match="error analysis"):
        float32_gap(model, images, labels)


IMAGES = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Identity(), BoundedLinear(16, 6), nn.ReLU(), nn.Linear(6, 3))


def attentive() -> nn.Sequential:
    return nn.Sequential(*attends())


KINDS = [(local, attentive), (published, attentive), (lipschitz, dense), (box_lipschitz, dense), (crown, affine)]


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
    return module.certified_at(model, IMAGES, labels, 0.01) if hasattr(module, "certified_at") else None


HIDDEN = [
    lambda model: model[2].register_forward_hook(lambda _module, _inputs, output: 5 * output),
    lambda model: setattr(model[2], "derive", lambda: torch.full_like(model[2].raw, 3.0)),
]


@pytest.mark.sweep
def test_hidden_changes_of_an_object_move_no_radius_and_are_detected_by_its_logits(certificate) -> None:
    module, made = certificate
    honest = made()
    labels = honest(IMAGES).argmax(1)
    radii, verdict = module.certify(honest, IMAGES, labels, precision=0.2), at(module, honest, labels)
    assert (radii > 0).any()
    module.float32_gap(honest, IMAGES, labels)
    for change in HIDDEN:
        model = made()
        change(model)
        assert (model(IMAGES) != honest(IMAGES)).any(), change
        assert torch.equal(module.certify(model, IMAGES, labels, precision=0.2), radii), change
        assert verdict is None or torch.equal(at(module, model, labels), verdict), change
        with pytest.raises(BenchmarkError, match=r"logits differ by up to .* from those of the network that its layers"):
            module.float32_gap(model, IMAGES, labels)


def test_models_that_write_to_their_images_or_give_other_logits_are_detected(certificate) -> None:
    """Writing to images computes another function, which the changed images would hide."""
    module, made = certificate
    labels = made()(IMAGES).argmax(1)
    model, images = made(), IMAGES.clone()
    model.register_forward_pre_hook(lambda _module, inputs: (inputs[0].mul_(0.5),))
    with pytest.raises(BenchmarkError, match="logits differ"):
        module.float32_gap(model, images, labels)
    assert torch.equal(images, IMAGES)
    for change in (lambda y: y.double(), lambda y: y[:, :2], lambda y: nn.Parameter(y), lambda y: y * torch.nan):
        model = made()
        model.register_forward_hook(lambda _module, _inputs, output, change=change: change(output))
        with pytest.raises(BenchmarkError, match="the model"):
            module.float32_gap(model, IMAGES, labels)


@pytest.mark.sweep
def test_hooks_that_only_look_and_rebuilding_change_nothing(certificate, monkeypatch) -> None:
    module, made = certificate
    model, outputs = made(), []
    labels = model(IMAGES).argmax(1)
    gap, radii = module.float32_gap(model, IMAGES, labels), module.certify(model, IMAGES, labels, precision=0.2)
    model[2].register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    assert module.float32_gap(model, IMAGES, labels) == gap
    assert len(outputs) == 1
    for place in (checked_copy, local, lipschitz):
        if hasattr(place, "rebuilt"):
            monkeypatch.setattr(place, "rebuilt", copy.deepcopy)
    assert torch.equal(module.certify(made(), IMAGES, labels, precision=0.2), radii)
    assert module.float32_gap(made(), IMAGES, labels) == gap


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


def test_an_embedding_in_training_mode_is_refused_by_every_certificate(certificate) -> None:
    module, made = certificate
    model = made()
    model[2] = OrthogonalLinear(model[2].raw.shape[1], model[2].raw.shape[0]).requires_grad_(False).eval()
    labels = model(IMAGES).argmax(1)
    module.certify(model, IMAGES, labels, precision=0.1)
    for name in ("certify", "float32_gap", "certified_at"):
        arguments = (0.01,) if name == "certified_at" else ()
        if call := getattr(module, name, None):
            with pytest.raises(BenchmarkError, match="training mode"):
                call(model.train(), IMAGES, labels, *arguments)
