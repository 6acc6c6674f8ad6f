"""Parameters of objectives, penalties, preparations and attacks that are outside their range, refused in one line."""

from __future__ import annotations

import importlib

import pytest

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.components import typed_parameters

NAN, INF = float("nan"), float("inf")
RADII = [("gloro", {}), ("bcp", {}), ("local_lip", {}), ("local_margin", {"margin": 0.1, "temperature": 1.0})]
PROJECTION, DISTILLATION = "prepare.proximal_projection", "prepare.l2_distillation"
REFUSED = [
    *((name, {**more, "radius": radius}) for name, more in RADII for radius in ("big", 0.0, -1, INF, NAN, True)),
    *((name, {"radius": 0.1, "power_steps": steps}) for name, _ in RADII[:3] for steps in (1.5, 0)),
    *(("bcp", {"radius": 0.1, "kappa": kappa}) for kappa in (1.0, -0.1, NAN)),
    ("local_lip", {"radius": 0.1, "local_steps": 0}),
    *(("projected", {"norm": norm}) for norm in (-1.0, NAN, INF, "1", True)),
    *(("trades", {"beta": beta}) for beta in (0.0, -1.0, NAN, INF)),
    *((name, {"label_smoothing": share}) for name in ("standard", "adversarial") for share in (1.5, -0.1, NAN)),
    *(("penalties.msvp", {"lambda_q": factor}) for factor in (-1e-3, NAN, INF, "much", True)),
    ("penalties.msvp", {"heads": "row"}),
    ("penalties.spectral_norm", {"factor": -1.0}),
    (PROJECTION, {"measure": "spectrall"}),
    *((PROJECTION, {name: value}) for name in ("gamma", "eta") for value in (0, -0.1, "much", NAN, INF)),
    *((PROJECTION, {"relaxation": value}) for value in (0.0, 2.0, -1.0, NAN, True)),
    *((PROJECTION, {name: n}) for name in ("outer", "inner", "batch_size", "samples") for n in (0, 1.5, True)),
    *((DISTILLATION, {name: -1}) for name in ("layer_epochs", "epochs", "batch_size", "samples")),
    *((DISTILLATION, {"learning_rate": rate}) for rate in (0.0, NAN)),
    (DISTILLATION, {"epochs": 0.5}),
    (DISTILLATION, {"batch_size": 0}),
]


def component(name: str):
    module = importlib.import_module(f"benchmark.training.{name}")
    return next(getattr(module, entry) for entry in ("penalty", "prepare", "objective") if hasattr(module, entry))


@pytest.mark.parametrize(("name", "parameters"), REFUSED, ids=str)
def test_a_value_outside_its_range_is_refused_by_name(name, parameters) -> None:
    wrong, value = [*parameters.items()][-1]
    with pytest.raises(BenchmarkError, match=rf"^the recipe: {wrong} {value} should [^\n]+$"):
        typed_parameters(component(name), parameters, "the recipe")


def test_whole_numbers_of_a_recipe_come_as_floats_and_radii_as_whole_numbers() -> None:
    typed = typed_parameters(component("local_lip"), {"radius": 1, "local_steps": 3.0}, "the recipe")
    assert typed == {"radius": 1.0, "local_steps": 3}
    assert isinstance(typed["local_steps"], int)
