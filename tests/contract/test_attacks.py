"""Every attack of benchmark/attacks keeps what benchmark/attacks/__init__.py says, whoever wrote it."""

from __future__ import annotations

import inspect
from typing import Any

import components
import pytest
import torch
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.attacks.ball import into_ball
from benchmark.attacks.engine import square
from benchmark.evaluation.run_attack import run_attack
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, ThreatModel

# parameters without a default, and norms where an attack knows one alone
PARAMETERS: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 5, "step_size": 0.1},
    "cw": {"steps": 20, "step_size": 0.05, "c": 5.0},
}
NORMS = {"cw": ("L2",)}
EPS = {"Linf": 0.15, "L2": 1.0}
HARNESS = ("seed", "component", "engine", "indices", "slots")

ATTACKS = components.names("attacks", "attack")
CASES = [(name, norm) for name in ATTACKS for norm in NORMS.get(name, ("Linf", "L2"))]


@pytest.fixture(autouse=True)
def _few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square asks thousands of times where it finds nothing."""
    monkeypatch.setattr(square, "QUERIES", 60)


def model() -> nn.Sequential:
    """As the harness and training hand it over, frozen and in evaluation mode; with a buffer and one part in training mode."""
    made = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.Identity(), Linear(classes=5)).eval()
    made[2].train()
    return made.requires_grad_(False)


def state(network: nn.Module) -> list[Any]:
    """All that an attack has to leave alone."""
    tensors = [tensor.tolist() for tensor in network.state_dict().values()]
    flags = [(p.requires_grad, p.grad) for p in network.parameters()]
    return [tensors, flags, [part.training for part in network.modules()]]


def given(name: str) -> dict[str, Any]:
    attack = components.module("attacks", name).attack
    return components.parameters(attack, PARAMETERS.get(name, {}), HARNESS, "PARAMETERS of tests/contract/test_attacks.py")


def ways(name: str) -> list[dict[str, str]]:
    """Each component by each engine, as the harness asks for them."""
    module = components.module("attacks", name)
    parts = [{"component": part} for part in getattr(module, "components", ())] or [{}]
    engines = [{"engine": engine} for engine in getattr(module, "engines", ())] or [{}]
    return [part | engine for part in parts for engine in engines]


def takes(name: str, option: str) -> bool:
    parameters = inspect.signature(components.module("attacks", name).attack).parameters.values()
    return any(p.name == option or p.kind is p.VAR_KEYWORD for p in parameters)


@pytest.fixture
def images() -> tuple[torch.Tensor, torch.Tensor]:
    drawn = grey_images(5)
    return drawn, model()(drawn).argmax(1)


@pytest.mark.parametrize("name", ATTACKS)
def test_what_an_attack_says_of_itself_it_can_be_asked_for(name) -> None:
    module = components.module("attacks", name)
    assert [*inspect.signature(module.attack).parameters][:4] == ["model", "images", "labels", "threat"]
    assert takes(name, "seed")
    for says, option in (("components", "component"), ("engines", "engine")):
        assert all(isinstance(value, str) for value in getattr(module, says, ()))
        assert takes(name, option) or not hasattr(module, says), f"{says} without {option}="
    if hasattr(module, "per_image"):
        assert (module.per_image, takes(name, "indices"), takes(name, "slots")) == (True, True, True)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_results_are_images_of_the_ball_the_same_each_time_and_nothing_else_has_changed(name, norm, images) -> None:
    network, (x, labels), threat = model(), images, ThreatModel(norm=norm, eps=EPS[norm])
    before, kept = state(network), (x.clone(), labels.clone())
    attack, options = components.module("attacks", name).attack, given(name)
    for way in ways(name):
        found = attack(network, x, labels, threat, seed=0, **options, **way)
        torch.rand(1)  # whatever was drawn before
        assert torch.equal(attack(model(), x, labels, threat, seed=0, **options, **way), found), way
        assert (found.shape, found.dtype, found.requires_grad) == (x.shape, torch.float32, False), way
        into_ball(found, x, threat, f"{name} {way}")
        assert all(map(torch.equal, (x, labels), kept)), way
        assert (state(network), x.requires_grad) == (before, False), way


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("name", [n for n in ATTACKS if hasattr(components.module("attacks", n), "per_image")])
def test_per_image_attacks_find_the_same_in_other_company(name, norm, images) -> None:
    """By the images' numbers in the data set, whatever the batch, its order and the slots; the fast engine says so."""
    threat = ThreatModel(norm=norm, eps=0.4 * EPS[norm])  # some images stand
    attack, options, (x, labels) = components.module("attacks", name).attack, given(name), images
    for way in ways(name):
        if way.get("engine") == "reference":
            continue
        whole = attack(model(), x, labels, threat, seed=0, indices=[7, 8, 9, 10, 11], slots=128, **options, **way)
        part = attack(model(), x[[3, 1]], labels[[3, 1]], threat, seed=0, indices=[10, 8], slots=3, **options, **way)
        assert torch.equal(part, whole[[3, 1]]), way


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_the_harness_runs_it_and_its_verdicts_are_the_models(name, norm, images) -> None:
    x, labels = images
    labels = labels.clone()
    labels[2] = (labels[2] + 1) % 5  # wrong when clean: not attacked
    network = model()
    spec = AttackSpec(attack=name, norm=norm, eps=EPS[norm], parameters=given(name))
    done, after = run_attack(network, x, labels, spec, batch_size=2)
    into_ball(done.adversarial, x, spec.threat, name)
    right = network(done.adversarial).argmax(1) == labels
    assert done.robust.tolist() == after.correct.tolist() == right.tolist()
    assert torch.equal(done.adversarial[2], x[2])
    assert not right.all(), f"{name} breaks nothing at {spec.threat.label} on a linear model"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_unknown_parameter_is_refused_in_one_line(name, images) -> None:
    norm = NORMS.get(name, ("Linf",))[0]
    spec = AttackSpec(attack=name, norm=norm, eps=0.1, parameters={**given(name), "stepps": 3})
    with pytest.raises(BenchmarkError, match="stepps"):
        run_attack(model(), *images, spec, batch_size=5)
