"""The components that a recipe names: the file of each, found by its name, and its function's parameters."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.training import TrainingSpec

PACKAGE = Path("benchmark")
PROBE = "pgd"  # probes for catastrophic overfitting in adversarial training
ATTENTION = PACKAGE / "layers" / "submitted_attention.py"  # finds the attention weights for penalties and measures
# by folder of benchmark/: the function that its files define, and its name in messages
ENTRIES = {
    "training": ("objective", "training objective"),
    "training/penalties": ("penalty", "training penalty"),
    "training/prepare": ("prepare", "preparation"),
    "attacks": ("attack", "training attack"),
    "certificates": ("certify", "certificate"),
}


def recipe_files(spec: TrainingSpec) -> list[Path]:
    """Return the files of the objective, penalties, preparations, attacks and certificate that a recipe uses."""
    attacks = {attack.attack for attack in spec.attacks} | ({PROBE} if spec.attack else set())
    penalties = sorted(component_file("training/penalties", penalty.name) for penalty in spec.penalties)
    needed = [*penalties, ATTENTION] if penalties else []
    needed += [component_file("training/prepare", step.name) for step in spec.prepare]
    needed += [certificate_file(spec.selection.certificate)] if spec.selection.certificate else []
    return [component_file("training", spec.objective), *needed, *map(attack_file, sorted(attacks))]


def component_file(folder: str, name: str) -> Path:
    return PACKAGE / folder / f"{name}.py"


def attack_file(name: str) -> Path:
    return component_file("attacks", name)


def certificate_file(name: str) -> Path:
    return component_file("certificates", name)


def component(folder: str, name: str, parameters: Mapping[str, object]) -> ModuleType:
    """Return the module of a training component. Raise BenchmarkError for unknown or missing parameters."""
    module = importlib.import_module(f"benchmark.{folder.replace('/', '.')}.{name}")
    entry, words = ENTRIES[folder]
    check_parameters(getattr(module, entry), parameters, f"{words} {name}")
    return module


def typed_component(folder: str, name: str, parameters: Mapping[str, Any]) -> tuple[ModuleType, dict[str, Any]]:
    """Return the module, and the parameters in their types. Also raise BenchmarkError for a value of a wrong type."""
    module = component(folder, name, parameters)
    entry, words = ENTRIES[folder]
    return module, typed_parameters(getattr(module, entry), parameters, f"{words} {name}")


def check_parameters(
    function: Callable[..., object], given: Mapping[str, object], where: str, filled: Collection[str] = ("seed", "loss")
) -> None:
    """Raise BenchmarkError for a keyword-only parameter that `function` lacks, or that is missing. The caller gives
    those in `filled`.
    """
    signature = inspect.signature(function).parameters
    expected = {name: p for name, p in signature.items() if p.kind is p.KEYWORD_ONLY and name not in filled}
    for name in given:
        if name not in expected:
            raise BenchmarkError(f"{where}: unknown parameter {name!r}{near_miss(name, expected)}")
    for name, parameter in expected.items():
        if parameter.default is parameter.empty and name not in given:
            raise BenchmarkError(f"{where}: the parameter {name!r} is missing")


def typed_parameters(function: Callable[..., object], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of keyword-only parameters, in the types that this project's `function` declares.

    Raise BenchmarkError as `check_parameters`, and for a value of a wrong type.
    """
    check_parameters(function, given, where)
    signature = inspect.signature(function, eval_str=True).parameters
    return {name: _in_type(signature[name].annotation, value, f"{where}: {name}") for name, value in given.items()}


def _in_type(annotation: Any, value: Any, where: str) -> Any:
    whole = isinstance(value, float) and value.is_integer()  # a recipe's numbers come as floats
    try:
        return TypeAdapter(annotation).validate_python(int(value) if whole else value, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]["msg"].replace("Input should", "should", 1)
        raise BenchmarkError(f"{where} {value} {wrong}") from None
