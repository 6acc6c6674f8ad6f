"""The components of a kind, found by listing their folder, and the parameters that the tests give them."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tiny_project import ROOT


def names(kind: str, function: str) -> list[str]:
    """Stems of the files of benchmark/<kind>/ that define `function`: read, not imported, so that none can be missed."""
    return [path.stem for path in sorted((ROOT / "benchmark" / kind).glob("*.py")) if function in _defined(path)]


def _defined(path: Path) -> set[str]:
    body = ast.parse(path.read_text()).body
    assigned = {ast.unparse(target) for node in body if isinstance(node, ast.Assign) for target in node.targets}
    return assigned | {node.name for node in body if isinstance(node, ast.FunctionDef)}


def module(kind: str, name: str) -> ModuleType:
    return importlib.import_module(f"benchmark.{kind}.{name}")


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
