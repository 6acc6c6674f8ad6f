"""Every training objective with a network that it takes, and every attack that recipes train against."""

from __future__ import annotations

from collections.abc import Callable

import components
import torch
from tiny_lipschitz import convolutional, grid_network
from tiny_training import model
from torch import nn

from benchmark.specs.threat import AttackSpec
from benchmark.specs.training import TrainingSpec
from benchmark.training.fitting import training_attack, training_objective
from benchmark.training.objective import Objective

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
