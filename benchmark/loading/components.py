"""Which files of the benchmark a setting names, since components are found by where they stand, and what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
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


def check_parameters(
    function: Callable[..., object], given: Mapping[str, object], where: str, filled: Collection[str] = ("seed", "loss")
) -> None:
    """Raise a BenchmarkError for a keyword-only parameter that `function` does not know, or that is missing; the caller gives
    those in `filled`.
    """
    known = {n: p for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    known = {name: p for name, p in known.items() if name not in filled}
    for name in given:
        if name not in known:
            raise BenchmarkError(f"{where}: unknown parameter {name!r}{near_miss(name, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise BenchmarkError(f"{where}: the parameter {name!r} is missing")


def typed_parameters(function: Callable[..., object], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of keyword-only parameters in the types of this project's `function`.

    Raises:
        BenchmarkError: as `check_parameters`, and for a value that its type does not allow.
    """
    check_parameters(function, given, where)
    known = inspect.signature(function, eval_str=True).parameters
    return {name: _in_type(known[name].annotation, value, f"{where}: {name}") for name, value in given.items()}


def _in_type(annotation: Any, value: Any, where: str) -> Any:
    whole = isinstance(value, float) and value.is_integer()  # a recipe's numbers come as floats
    try:
        return TypeAdapter(annotation).validate_python(int(value) if whole else value, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]["msg"].replace("Input should", "should", 1)
        raise BenchmarkError(f"{where} {value} {wrong}") from None
