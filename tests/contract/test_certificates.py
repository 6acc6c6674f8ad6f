"""Every certificate of benchmark/certificates keeps what benchmark/certificates/__init__.py says and its guarantee claims."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import components
import fake_lirpa
import pytest
import torch
from searched import few
from tiny_certified import affine
from tiny_certified import network as attention_network
from torch import nn

from benchmark.attacks import apgd, pgd
from benchmark.attacks.ball import into_ball
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import LayerProject
from benchmark.specs.threat import ThreatModel

PARAMETERS: dict[str, dict[str, Any]] = {}  # those without a default
CERTIFICATES = components.names("certificates", "certify")


def l2_attention_network() -> nn.Sequential:
    torch.manual_seed(1)
    return affine(Residual(nn.Sequential(LayerProject(1.0), L2Attention(6, 2))))


def clipped_network() -> nn.Sequential:
    torch.manual_seed(2)
    layers = [nn.Conv2d(1, 4, 3, padding=1), ClippedReLU((4, 4, 4)), nn.Conv2d(4, 4, 4, stride=2, padding=1), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(16, 12), ClippedReLU((12,)), NormalisedHead(12, 5)]
    model = nn.Sequential(Normalise(), *layers).eval().requires_grad_(False)
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.weight *= 2
    return model


# the layers that it is for; any other certificate is held to the affine network
NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "local": lambda: attention_network(1),
    "published": lambda: attention_network(1),
    "lipschitz": l2_attention_network,
    "box_lipschitz": clipped_network,
}
CASES = [(name, affine) for name in CERTIFICATES] + [(name, make) for name, make in NETWORKS.items()]
IDS = [f"{name}-{'its own' if make is not affine else 'affine'}" for name, make in CASES]
IMAGES = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.6 + 0.2


@pytest.fixture(autouse=True)
def _bounds_of_crown(monkeypatch: pytest.MonkeyPatch) -> None:
    """auto_LiRPA is not installed everywhere; the double is exact on affine networks."""
    fake_lirpa.install(monkeypatch)


def certify(name: str, model: nn.Sequential, labels: torch.Tensor) -> torch.Tensor:
    function = components.module("certificates", name).certify
    table = "PARAMETERS of tests/contract/test_certificates.py"
    return function(
        model, IMAGES, labels, precision=0.01, **components.parameters(function, PARAMETERS.get(name, {}), (), table)
    )


def balanced(make: Callable[[], nn.Sequential]) -> tuple[nn.Sequential, torch.Tensor]:
    """The network with biases by which several classes are predicted, and its predictions."""
    model = make()
    model[-1].bias.data -= model(IMAGES).mean(0)
    labels = model(IMAGES).argmax(1)
    assert len(labels.unique()) > 1
    return model, labels


@cache
def certified(name: str, make: Callable[[], nn.Sequential]) -> torch.Tensor:
    """The radii of the network's own predictions."""
    return certify(name, *balanced(make))


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "make"), CASES, ids=IDS)
def test_radii_are_float64_and_nothing_else_has_changed(name, make) -> None:
    model, labels = balanced(make)
    kept, images = copy.deepcopy(model), IMAGES.clone()
    radii = certify(name, model, labels)
    assert (radii.shape, radii.dtype) == (labels.shape, torch.float64)
    assert (torch.isfinite(radii) & (radii >= 0)).all()
    assert (radii > 0).sum() > len(labels) / 2
    assert torch.equal(radii, certified(name, make)), "no certificate may depend on chance"
    assert torch.equal(IMAGES, images)
    assert all(torch.equal(v, kept.state_dict()[k]) for k, v in model.state_dict().items())
    assert [part.training for part in model.modules()] == [part.training for part in kept.modules()]
    assert {(p.requires_grad, p.grad, p.dtype) for p in model.parameters()} == {(False, None, torch.float32)}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(("name", "make"), CASES, ids=IDS)
def test_a_wrong_or_tied_prediction_is_not_certified(name, make) -> None:
    model, labels = balanced(make)
    classes = len(model[-1].bias)
    for other in range(1, classes):
        assert (certify(name, model, (labels + other) % classes) == 0).all()
    last = model[-1]
    if isinstance(last, NormalisedHead):
        last.raw.data[1] = last.raw.data[2]
    last.bias.data[[1, 2]] = 50.0  # the same row and bias: a tie on every image, above all others
    logits = model(IMAGES)
    assert torch.equal(logits[:, 1], logits[:, 2])
    assert logits.argmax(1).le(2).all()
    assert (certify(name, model, torch.ones_like(labels)) == 0).all()
    assert (certify(name, model, torch.full_like(labels, 2)) == 0).all()


@pytest.mark.parametrize("name", CERTIFICATES)
def test_the_guarantee_is_a_sentence_that_names_its_ball(name) -> None:
    words = components.module("certificates", name).guarantee()
    assert re.fullmatch(r"\S.*\.", words)
    assert {"radius", "l2"} <= {*re.findall(r"\w+", words)}


@pytest.mark.parametrize(("name", "make"), CASES, ids=IDS)
def test_rounding_found_is_at_most_the_rounding_proven(name, make) -> None:
    model, labels = balanced(make)
    measured, proven = components.module("certificates", name).float32_gap(model, IMAGES, labels)
    assert {type(measured), type(proven)} == {float}
    assert 0 <= measured <= proven < 0.1


def broken_inside(model: nn.Sequential, labels: torch.Tensor, radii: torch.Tensor, most: int = 6) -> list[int]:
    """Of the first `most` certified images, those that PGD from four starts or APGD breaks within their radius, by the float32 model's own verdicts."""
    broken = []
    for i in (radii > 0).nonzero()[:most, 0].tolist():
        threat = ThreatModel(norm="L2", eps=float(radii[i]) * (1 - 1e-6))  # inside, whatever float32 rounds
        x, y = IMAGES[i].repeat(4, 1, 1, 1), labels[i].repeat(4)
        tried = pgd.attack(model, x, y, threat, seed=i, steps=12, step_size=threat.eps / 4)
        auto = apgd.attack(model, x[:1], y[:1], threat, seed=i)
        moved = into_ball(torch.cat([tried, auto]), IMAGES[i].repeat(5, 1, 1, 1), threat, "pgd and apgd")
        if (model(moved).argmax(1) != labels[i]).any():
            broken.append(i)
    return broken


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "make"), CASES, ids=IDS)
@pytest.mark.parametrize("most", few([1], [6]))
def test_no_attack_breaks_an_image_inside_its_certified_ball(name, make, most) -> None:
    model, labels = balanced(make)
    assert not broken_inside(model, labels, certified(name, make), most)


def test_radii_too_large_would_be_seen() -> None:
    model, labels = balanced(affine)
    assert broken_inside(model, labels, 1.5 * certified("local", affine))
