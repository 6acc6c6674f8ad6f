"""Every certificate speaks of the network that the model's layers and weights describe, and of no other."""

from __future__ import annotations

import copy

import fake_lirpa
import pytest
import torch
from torch import nn

from benchmark.certificates import box_lipschitz, crown, lipschitz, local, published
from benchmark.certificates.bounds import checked_copy
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.derived import cache_weights
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError

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
