"""The components of a kind, found by listing their folders, and the parameters that the tests give them."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import components
import pytest
import torch
from tiny_clipped import convolutional, grid_network
from tiny_project import ROOT
from tiny_training import model
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods
from benchmark.specs.components import typed_parameters
from benchmark.specs.threat import AttackSpec
from benchmark.specs.training import TrainingSpec
from benchmark.training.fitting import training_attack, training_objective
from benchmark.training.objective import Objective

# the submissions whose own components keep the contract too, by kind and name; those of other folders need no examples
OWN = {
    "training": {"projected": "Gupta2023CertViT", "local_margin": "Havens2024LoFAST"},
    "training/penalties": {"spectral_norm": "Hu2024SpecFormer"},
}


def names(kind: str, function: str) -> list[str]:
    """Return the names of the benchmark's components, whose files are read so that none can be missed, and of `OWN`."""
    paths = (ROOT / "benchmark" / kind).glob("*.py")
    return sorted([*OWN.get(kind, {}), *(path.stem for path in paths if function in _defined(path))])


def _defined(path: Path) -> set[str]:
    body = ast.parse(path.read_text()).body
    assigned = {ast.unparse(target) for node in body if isinstance(node, ast.Assign) for target in node.targets}
    return assigned | {node.name for node in body if isinstance(node, ast.FunctionDef)}


def owner(kind: str, name: str) -> str:
    """Return the submission whose component this is; "" for the benchmark's."""
    return OWN.get(kind, {}).get(name, "")


def module(kind: str, name: str) -> ModuleType:
    if submission := owner(kind, name):
        return methods.module(submission, name)
    return importlib.import_module(f"benchmark.{kind.replace('/', '.')}.{name}")


def assert_out_of_range(function: Callable, **parameters: object) -> None:
    """Check that the last of a recipe's parameters is refused by name, in one line."""
    name, value = [*parameters.items()][-1]
    with pytest.raises(BenchmarkError, match=rf"^the recipe: {name} {value} should [^\n]+$"):
        typed_parameters(function, parameters, "the recipe")


def parameters(function: Callable, given: Mapping[str, Any], from_the_harness: Collection[str], table: str) -> dict[str, Any]:
    """`given`, when every other parameter of `function` has a default or is `from_the_harness`.

    Raises:
        AssertionError: a parameter that neither has; `table` is where an example belongs.
    """
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    missing = [p.name for p in keywords if p.default is p.empty and p.name not in {*given, *from_the_harness}]
    assert not missing, f"{function.__module__} needs {', '.join(missing)}: give examples in {table}"
    return dict(given)


OBJECTIVES: dict[str, tuple[dict[str, float], Callable[[], nn.Module]]] = {
    "standard": ({"label_smoothing": 0.1}, model),
    "adversarial": ({}, model),
    "trades": ({"beta": 6.0}, model),
    "margin": ({"margin": 0.5, "temperature": 4.0}, model),
    "projected": ({"norm": 1.0}, model),
    "gloro": ({"radius": 0.1}, convolutional),
    "bcp": ({"radius": 0.1}, convolutional),
    "local_lip": ({"radius": 0.1}, lambda: convolutional(clipped=True)),
    "local_margin": ({"radius": 0.1, "margin": 0.2, "temperature": 10.0}, grid_network),
}
ATTACKED = ("adversarial", "trades")  # the others train against none
ATTACKS = {
    "fgsm": AttackSpec(attack="fgsm", norm="Linf", eps=0.1, parameters={"step": 1.25, "random_start": True}),
    "fgsm_l2": AttackSpec(attack="fgsm", norm="L2", eps=0.5, parameters={"random_start": True}),
    "pgd": AttackSpec(attack="pgd", norm="Linf", eps=0.1, parameters={"steps": 3, "step_size": 0.05}),
    "pgd_l2": AttackSpec(attack="pgd", norm="L2", eps=0.5, parameters={"steps": 3, "step_size": 0.2}),
}
ATTACKS["margin"] = ATTACKS["pgd"].model_copy(update={"parameters": {"steps": 2, "step_size": 0.05, "climb": "margin"}})
EVERY = [
    (objective, attack)
    for objective in OBJECTIVES
    for attack in (ATTACKS if objective in ATTACKED else [""])
    if (objective, attack) != ("trades", "margin")  # which climbs a loss of its own
]


def recipe(objective: str, attack: str, **changes: object) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "objective": objective, "parameters": OBJECTIVES[objective][0], "attack": ATTACKS.get(attack), "epochs": 2,
            "batch_size": 16, "learning_rate": 0.01, **changes,
        }
    )  # fmt: skip


def built(spec: TrainingSpec) -> tuple[nn.Module, Objective]:
    torch.manual_seed(0)
    attack = training_attack(spec.attack) if spec.attack else None
    owner = components.owner("training", spec.objective)
    return OBJECTIVES[spec.objective][1](), training_objective(spec, attack, owner)
