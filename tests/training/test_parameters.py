"""Parameters of objectives and penalties that are outside their range, refused in one line."""

from __future__ import annotations

import importlib

import pytest
from components import assert_out_of_range

from benchmark.specs.components import typed_parameters

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
