"""Objectives give the loop what benchmark/training/objective.py asks for: all of the benchmark, and those of submissions
in `components.OWN`.
"""

from __future__ import annotations

import importlib
import inspect
import math
from typing import Any

import components
import pytest
import torch
from components import assert_out_of_range, recipe
from tiny_models import grey_images
from torch import nn

from benchmark.attacks import fgsm
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.isometries import Absolute
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.components import typed_parameters
from benchmark.specs.threat import ThreatModel
from benchmark.training.fitting import check_recipe

LIPSCHITZ = ("bcp", "gloro", "local_lip")  # need a network with a Lipschitz constant
WHOLE_LABELS = ("local_margin", "margin", *LIPSCHITZ)  # refuse shares of classes
OBJECTIVES = components.names("training", "objective")


def attack(model, images, labels, strength, loss=None, /):
    threat = ThreatModel(norm="Linf", eps=0.1 * strength)
    return fgsm.attack(model, images, labels, threat, seed=None, random_start=True, loss=loss)


def given(name: str) -> dict[str, Any]:
    function = components.module("training", name).objective
    examples, _ = components.OBJECTIVES.get(name, ({}, None))
    return components.parameters(function, examples, (), "OBJECTIVES of tests/support/components.py")


def objective(name: str):
    return components.module("training", name).objective(attack, **given(name))


def attached(name: str, network: nn.Module):
    """Ready for a loss."""
    made = objective(name)
    made.attach(network, IMAGES)
    return made


def model(name: str) -> nn.Sequential:
    """In training mode but for one part, with one frozen parameter, and with statistics that move in a training step where
    the objective takes such a network.
    """
    torch.manual_seed(0)
    layers = (nn.BatchNorm2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4))
    if name == "local_margin":
        layers = (nn.Identity(), nn.Flatten(), Absolute(18), OrthogonalLinear(36, 8), Absolute(4), NormalisedHead(8, 4))
    if name in LIPSCHITZ:
        layers = (nn.Identity(), nn.Flatten(), ClippedReLU((36,)), *layers[3:])
    made = nn.Sequential(*layers)
    made.train()[0].eval()
    made[3].bias.requires_grad_(False)
    return made


def flags(network: nn.Module) -> tuple[list[bool], list[bool]]:
    return [part.training for part in network.modules()], [p.requires_grad for p in network.parameters()]


IMAGES, LABELS = grey_images(), torch.arange(16) % 4
SHARES = 0.7 * nn.functional.one_hot(LABELS, 4) + 0.3 / 4


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("labels", [LABELS, SHARES], ids=["whole labels", "shares of classes"])
def test_a_loss_is_a_finite_number_with_a_gradient(name, strength, labels) -> None:
    if labels is SHARES and name in WHOLE_LABELS:
        with pytest.raises(BenchmarkError, match=rf"{name} objective needs whole labels; [^\n]+$"):
            attached(name, network := model(name)).loss(network, IMAGES, labels, strength)
        return
    network, kept = model(name), IMAGES.clone()
    before = flags(network), {k: v.clone() for k, v in network.state_dict().items()}
    loss = attached(name, network).loss(network, IMAGES, labels, strength)
    assert (loss.shape, loss.dtype, math.isfinite(loss.item())) == ((), torch.float32, True)
    assert all(p.grad is None for p in network.parameters()), "what runs inside leaves no gradient"
    assert flags(network) == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in network.state_dict().items())
    assert torch.equal(IMAGES, kept)
    loss.backward()
    learned = [p for p in network.parameters() if p.requires_grad]
    assert all(torch.isfinite(p.grad).all() for p in learned)
    assert any(p.grad.any() for p in learned)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_score_is_a_number_and_moves_nothing(name) -> None:
    """The loop puts the model into training mode itself before each epoch; modes are its own matter."""
    network = model(name)
    before = flags(network)[1], {k: v.clone() for k, v in network.state_dict().items()}
    found = objective(name)
    assert found.selected_by.startswith("validation")
    score = found.score(network, IMAGES, LABELS)
    assert (type(score), math.isfinite(score)) == (float, True)
    assert flags(network)[1] == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_same_seed_gives_the_same_loss(name) -> None:
    losses = []
    for _ in range(2):
        network = model(name)
        torch.manual_seed(1)
        losses.append(attached(name, network).loss(network, IMAGES, LABELS, 1.0))
    assert torch.equal(*losses)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_state_moves_by_advance_alone_and_no_weight_with_it(name) -> None:
    network, made = model(name), objective(name)
    state = made.attach(network, IMAGES)
    before, weights = [{k: v.clone() for k, v in m.state_dict().items()} for m in (state or nn.Module(), network)]
    made.loss(network, IMAGES, LABELS, 1.0)
    made.score(network, IMAGES, LABELS)
    network.train()
    assert all(torch.equal(v, before[k]) for k, v in (state or nn.Module()).state_dict().items())
    made.advance()
    assert all(torch.equal(v, weights[k]) for k, v in network.state_dict().items())
    if name in LIPSCHITZ:
        assert not any(torch.equal(v, before[k]) for k, v in state.state_dict().items())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_a_step_put_right_stays_as_it_is(name) -> None:
    """Weights that an objective allows are left alone, so that `after_step` twice is `after_step`."""
    network, made = model(name), objective(name)
    made.attach(network, IMAGES)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.sub_(2.0)
    made.after_step(network)
    once = {k: v.clone() for k, v in network.state_dict().items()}
    made.after_step(network)
    assert all(torch.equal(v, once[k]) for k, v in network.state_dict().items())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_unknown_and_missing_parameters_are_refused_in_one_line(name) -> None:
    owner = components.owner("training", name)
    check_recipe(recipe(name, "fgsm", parameters=given(name)), owner)
    wrong = [({**given(name), "bettta": 6}, "bettta")]
    signature = inspect.signature(components.module("training", name).objective).parameters
    needed = [n for n, p in signature.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    wrong += [({k: v for k, v in given(name).items() if k != left_out}, left_out) for left_out in needed]
    for parameters, named in wrong:
        with pytest.raises(BenchmarkError, match=rf"{name}: .*{named}"):
            check_recipe(recipe(name, "fgsm", parameters=parameters), owner)


NAN, INF = float("nan"), float("inf")
RADII = ("gloro", "bcp", "local_lip")
REFUSED = [
    *((name, {"radius": radius}) for name in RADII for radius in ("big", 0.0, -1, INF, NAN, True)),
    *((name, {"radius": 0.1, "power_steps": steps}) for name in RADII for steps in (1.5, 0)),
    *(("bcp", {"radius": 0.1, "kappa": kappa}) for kappa in (1.0, -0.1, NAN)),
    ("local_lip", {"radius": 0.1, "local_steps": 0}),
    *(("trades", {"beta": beta}) for beta in (0.0, -1.0, NAN, INF)),
    *((name, {"label_smoothing": share}) for name in ("standard", "adversarial") for share in (1.5, -0.1, NAN)),
    *(("penalties.msvp", {"lambda_q": factor}) for factor in (-1e-3, NAN, INF, "much", True)),
    ("penalties.msvp", {"heads": "row"}),
]


def component(name: str):
    module = importlib.import_module(f"benchmark.training.{name}")
    return module.penalty if name.startswith("penalties.") else module.objective


@pytest.mark.parametrize(("name", "parameters"), REFUSED, ids=str)
def test_a_value_outside_its_range_is_refused_by_name(name, parameters) -> None:
    assert_out_of_range(component(name), **parameters)


def test_whole_numbers_of_a_recipe_come_as_floats_and_radii_as_whole_numbers() -> None:
    typed = typed_parameters(component("local_lip"), {"radius": 1, "local_steps": 3.0}, "the recipe")
    assert typed == {"radius": 1.0, "local_steps": 3}
    assert isinstance(typed["local_steps"], int)
