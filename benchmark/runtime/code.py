"""Which project files a module really imports: a static walk of its import statements.

The same closure makes the file on which DVC lets a stage depend, the key of its partial work and the sha256 of code in
the Record, so the three cannot disagree. A test compares it with what a running stage has in `sys.modules`.

A file counts by its syntax tree: comments, docstrings and layout change no result, so they make nothing stale.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError, near_miss

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
            if not path.exists():
                known = [other.stem for other in path.parent.glob("*.py")]
                raise BenchmarkError(
                    f"there is no {path}, which a track or a submission names{near_miss(path.stem, known)}"
                )
            seen.add(path)
            todo += _imports(path, path.stat().st_mtime_ns)
    return sorted(path for path in seen if path in entries or not _inert(path))


def digests(*entries: Path) -> dict[str, str]:
    """sha256 of each file of the closure of `entries`, by path: of its syntax tree without docstrings."""
    return {path.as_posix(): _digest(path, path.stat().st_mtime_ns) for path in closure(*entries)}


def combined(digests: Mapping[str, str]) -> str:
    """One sha256 of many files' digests."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


@cache
def _digest(path: Path, _modified: int) -> str:
    return hashlib.sha256(_canonical(_parsed(path)).encode()).hexdigest()


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(), str(path))
    except SyntaxError as error:
        raise BenchmarkError(f"{path}, line {error.lineno}: {error.msg}") from None


def _canonical(value: object) -> str:
    """A syntax tree in words that do not depend on Python's version: no place, no docstring, no empty field."""
    if isinstance(value, ast.AST):
        fields = {name: _without_docstring(value, name, field) for name, field in ast.iter_fields(value)}
        kept = [f"{name}={_canonical(field)}" for name, field in fields.items() if field not in (None, [])]
        return f"{type(value).__name__}({', '.join(kept)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_canonical, value))}]"
    return repr(value)


def _without_docstring(node: ast.AST, name: str, field: object) -> object:
    has = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and name == "body"
    if has and isinstance(field, list) and field and _is_text(field[0]):
        return field[1:]
    return field


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _imports(path: Path, _modified: int) -> list[Path]:
    found: list[Path] = []
    for node in _statements(_parsed(path)):
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
    """Whether the file is an `__init__.py` that does nothing when it is imported.

    It may hold a docstring, imports for type checkers, and `__getattr__`, by which users get names that no module of the
    project imports from there: a test holds that.
    """
    if path.name != "__init__.py":
        return False
    return all(_is_text(node) or _does_nothing(node) for node in _parsed(path).body)


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module in ("__future__", "typing")
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
