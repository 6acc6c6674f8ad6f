"""The components of a kind, found by listing their folders, and the parameters that the tests give them."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tiny_project import ROOT

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods
from benchmark.specs.components import typed_parameters

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


def parameters(
    function: Callable, given: Mapping[str, Any], from_the_harness: Collection[str], table: str
) -> dict[str, Any]:
    """`given`, when every other parameter of `function` has a default or is `from_the_harness`.

    Raises:
        AssertionError: a parameter that neither has; `table` is where an example belongs.
    """
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    missing = [p.name for p in keywords if p.default is p.empty and p.name not in {*given, *from_the_harness}]
    assert not missing, f"{function.__module__} needs {', '.join(missing)}: give examples in {table}"
    return dict(given)
