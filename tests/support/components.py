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
from benchmark.specs.components import OWN, typed_parameters


def names(kind: str, function: str) -> list[str]:
    """Return the names of the benchmark's and all submissions' components: files are read, so that none can be missed."""
    own = "submissions/*/*.py" if kind in OWN else ""
    paths = [path for pattern in (f"benchmark/{kind}/*.py", own) if pattern for path in ROOT.glob(pattern)]
    return sorted(path.stem for path in paths if not path.name.startswith("test_") and function in _defined(path))


def _defined(path: Path) -> set[str]:
    body = ast.parse(path.read_text()).body
    assigned = {ast.unparse(target) for node in body if isinstance(node, ast.Assign) for target in node.targets}
    return assigned | {node.name for node in body if isinstance(node, ast.FunctionDef)}


def owner(kind: str, name: str) -> str:
    """Return the submission whose component this is; "" for the benchmark's."""
    if (ROOT / "benchmark" / kind / f"{name}.py").exists():
        return ""
    (own,) = ROOT.glob(f"submissions/*/{name}.py")
    return own.parent.name


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
