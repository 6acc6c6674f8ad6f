"""The components that recipes name: the file of each, found by its name, and its function's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.training import TrainingSpec

PACKAGE = Path("benchmark")
PROBE = "pgd"  # probes for catastrophic overfitting in adversarial training
ATTENTION = PACKAGE / "layers" / "submitted_attention.py"  # finds the attention weights for penalties and measures
# by folder of benchmark/: the function that its files define, and its name in messages
ENTRIES = {
    "training": ("objective", "objective"),
    "training/penalties": ("penalty", "penalty"),
    "training/prepare": ("prepare", "preparation"),  # a folder that benchmark/ lacks: preparations are submissions' own
    "attacks": ("attack", "attack"),
    "certificates": ("certify", "certificate"),
}
OWN = ("training", "training/penalties", "training/prepare")  # kinds that a submission's folder may hold
CLASSES = ("objective", "penalty")  # entry points that may be another name of a class


def recipe_parts(spec: TrainingSpec) -> list[tuple[str, str]]:
    """Return the kind and the name of each component that a recipe names; kinds are the keys of `ENTRIES`."""
    parts = [("training", spec.objective), *(("training/penalties", penalty.name) for penalty in spec.penalties)]
    parts += [("training/prepare", step.name) for step in spec.prepare]
    parts += [("attacks", attack.attack) for attack in spec.attacks]
    return parts + ([("certificates", spec.selection.certificate)] if spec.selection.certificate else [])


def recipe_files(spec: TrainingSpec, submission: Path) -> list[Path]:
    """Return the files of the components that a recipe uses; `submission` is the folder that may hold its own."""
    probes = [attack_file(PROBE)] if spec.attack else []
    finders = [ATTENTION] if spec.penalties else []
    named = [component_file(kind, name, submission) for kind, name in recipe_parts(spec)]
    return [*dict.fromkeys([*named, *probes, *finders])]


def component_file(kind: str, name: str, submission: Path | None = None) -> Path:
    """Return the file of a component, which may be missing: the benchmark's if that defines it, else the one that the
    folder `submission` would have, for a kind of `OWN`.

    No file of a submission has the name of an objective or penalty of the benchmark (`taken`).
    """
    shared = PACKAGE / kind / f"{name}.py"
    return submission / f"{name}.py" if submission and kind in OWN and not defines(shared, kind) else shared


def attack_file(name: str) -> Path:
    return component_file("attacks", name)


def certificate_file(name: str) -> Path:
    return component_file("certificates", name)


def names(kind: str, folder: Path | None = None) -> set[str]:
    """Return the names of the benchmark's components of a kind, or of those in another folder."""
    return {path.stem for path in (folder or PACKAGE / kind).glob("*.py") if defines(path, kind)}


def taken(name: str) -> str:
    """Return the kind in words of the benchmark's objective or penalty of this name, which no file of a submission may
    have; "" if there is none.
    """
    return next((ENTRIES[kind][1] for kind in OWN if defines(PACKAGE / kind / f"{name}.py", kind)), "")


def defines(file: Path, kind: str) -> bool:
    """Return whether the file exists and defines the function of a component of this kind. It is read, not imported."""
    return file.is_file() and _defines(file, starts(kind), files.version(file))


def starts(kind: str) -> tuple[str, ...]:
    """Return how a line may begin that defines a component of this kind."""
    entry = ENTRIES[kind][0]
    return (f"def {entry}(", *([f"{entry} = "] if entry in CLASSES else []))


@cache
def _defines(file: Path, starts: tuple[str, ...], _version: tuple[int, ...]) -> bool:
    text = b"\n" + file.read_bytes()
    return any(f"\n{start}".encode() in text for start in starts)


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
    """Return the values of keyword-only parameters, in the types that `function` declares.

    Raise BenchmarkError as `check_parameters`, and for a value of a wrong type or a parameter without a type.
    """
    check_parameters(function, given, where)
    signature = inspect.signature(function, eval_str=True).parameters
    for name in given:
        if signature[name].annotation is inspect.Parameter.empty:
            raise BenchmarkError(f"{where}: the parameter {name!r} has no type annotation")
    return {name: _in_type(signature[name].annotation, value, f"{where}: {name}") for name, value in given.items()}


def _in_type(annotation: Any, value: Any, where: str) -> Any:
    whole = isinstance(value, float) and value.is_integer()  # a recipe's numbers come as floats
    try:
        return TypeAdapter(annotation).validate_python(int(value) if whole else value, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]["msg"].replace("Input should", "should", 1)
        raise BenchmarkError(f"{where} {value} {wrong}") from None
