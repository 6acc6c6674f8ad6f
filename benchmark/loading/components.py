"""Which files of the benchmark a setting names, since components are found by where they stand, and what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.training import TrainingSpec

PACKAGE = Path("benchmark")
PROBE = "pgd"  # for catastrophic overfitting, wherever training is against an attack


ATTENTION = PACKAGE / "loading" / "attention.py"  # finds the attention layers that penalties read


def recipe_files(spec: TrainingSpec) -> list[Path]:
    """The files of the objective, penalties, preparations and attacks that training by this recipe runs, and of the
    certificate that it selects by.
    """
    attacks = {attack.attack for attack in spec.attacks} | ({PROBE} if spec.attack else set())
    penalties = sorted(PACKAGE / "training" / "penalties" / f"{penalty.name}.py" for penalty in spec.penalties)
    needed = [*penalties, ATTENTION] if penalties else []
    needed += [PACKAGE / "training" / "prepare" / f"{step.name}.py" for step in spec.prepare]
    needed += [certificate_file(spec.selection.certificate)] if spec.selection.certificate else []
    objective = PACKAGE / "training" / f"{spec.objective}.py"
    return [objective, *needed, *(attack_file(attack) for attack in sorted(attacks))]


def attack_file(name: str) -> Path:
    return PACKAGE / "attacks" / f"{name}.py"


def certificate_file(name: str) -> Path:
    return PACKAGE / "certificates" / f"{name}.py"


def check_parameters(function: Callable[..., object], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of keyword-only parameters, in their types.

    Raises:
        BenchmarkError: a parameter that `function` does not know, that is missing, or that its type does not allow.
    """
    signature = inspect.signature(function, eval_str=True)
    known = {name: p for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY}
    known = {name: p for name, p in known.items() if name not in ("seed", "loss")}
    for name in given:
        if name not in known:
            raise BenchmarkError(f"{where}: unknown parameter {name!r}{near_miss(name, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise BenchmarkError(f"{where}: the parameter {name!r} is missing")
    return {name: _in_type(known[name].annotation, value, f"{where}: {name}") for name, value in given.items()}


def _in_type(annotation: Any, value: Any, where: str) -> Any:
    whole = isinstance(value, float) and value.is_integer()  # a recipe's numbers come as floats
    try:
        return TypeAdapter(annotation).validate_python(int(value) if whole else value, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]["msg"].replace("Input should", "should", 1)
        raise BenchmarkError(f"{where} {value} {wrong}") from None
