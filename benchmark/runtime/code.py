"""Which project files a module really imports: a static walk of its import statements.

The same closure makes a stage's DVC dependencies, the scratch key of its partial work and the sha256 of code in the
Record, so the three cannot disagree. A test compares it with what a running stage has in `sys.modules`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError

PACKAGES = ("benchmark", "leaderboard", "autoattack")


def closure(*entries: Path) -> list[Path]:
    """All files that `entries` import, directly or not, themselves included, in sorted order.

    A package's `__init__.py` counts only when it does something; a docstring alone cannot change a result.
    """
    seen: set[Path] = set()
    todo = list(entries)
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += _imports(path, path.stat().st_mtime_ns)
    return sorted(path for path in seen if path in entries or not _inert(path))


@cache
def _imports(path: Path, _modified: int) -> list[Path]:
    found: list[Path] = []
    try:
        tree = ast.parse(path.read_text(), str(path))
    except SyntaxError as error:
        raise BenchmarkError(f"{path}, line {error.lineno}: {error.msg}") from None
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += _resolve(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += _resolve(node.module)
            for alias in node.names:
                found += _resolve(f"{node.module}.{alias.name}")
    return found


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which never run."""
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _statements(child)


def _resolve(module: str) -> list[Path]:
    """The file of a dotted module and the `__init__.py` files above it; empty when it is not this project's."""
    parts = module.split(".")
    if parts[0] not in PACKAGES:
        return []
    files = [Path(*parts[:depth], "__init__.py") for depth in range(1, len(parts))]
    files += [Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")]
    return [path for path in files if path.exists()]


def _inert(path: Path) -> bool:
    """Whether the file is an `__init__.py` that holds nothing but a docstring."""
    if path.name != "__init__.py":
        return False
    return all(isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) for n in ast.parse(path.read_text()).body)
