"""Which project files a module really imports: a static walk of its import statements.

The same closure makes the file on which DVC lets a stage depend, the key of its partial work and the sha256 of code in
the Record, so the three cannot disagree. A test compares it with what a running stage has in `sys.modules`.

A file counts by its syntax tree: comments, docstrings and layout change no result, so they make nothing stale. A file
that is no Python counts by its bytes. A submission's files are followed within its own folder; another's are refused.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError, near_miss

LONGEST = 10_000  # bits of a number that Python writes in tens
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
            if not path.is_file():
                known = [other.stem for other in path.parent.glob("*.py")]
                raise BenchmarkError(
                    f"there is no {path}, which a track or a submission names{near_miss(path.stem, known)}"
                )
            seen.add(path)
            if path.suffix == ".py":
                todo += _imports(path, path.stat().st_mtime_ns)
    return sorted(path for path in seen if path in entries or not inert(path))


def digests(*entries: Path) -> dict[str, str]:
    """sha256 of each file of the closure of `entries`, by path: of its syntax tree without docstrings, or of its bytes."""
    return {path.as_posix(): _digest(path, path.stat().st_mtime_ns) for path in closure(*entries)}


def combined(digests: Mapping[str, str]) -> str:
    """One sha256 of many files' digests."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


@cache
def _digest(path: Path, _modified: int) -> str:
    content = _canonical(parsed(path)).encode() if path.suffix == ".py" else path.read_bytes()
    return hashlib.sha256(content).hexdigest()


def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree.

    Raises:
        BenchmarkError: it is no Python, or nested too deeply for Python itself.
    """
    try:
        return ast.parse(path.read_bytes(), str(path))  # bytes: a file may name its encoding
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise BenchmarkError(f"{path}{line}: {getattr(error, 'msg', error)}") from None


class _Word(str):
    """Text that is written as it is, beside values of the tree that are strings."""


def _canonical(tree: ast.AST) -> str:
    """A syntax tree in words that do not depend on Python's version: no place, no docstring, no empty field. It may be
    nested deeper than Python's calls may.
    """
    words: list[str] = []
    todo: list[object] = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, _Word):
            words.append(value)
        elif isinstance(value, ast.AST):
            fields = {name: _without_docstring(value, name, field) for name, field in ast.iter_fields(value)}
            kept = [(_Word(f"{name}="), field) for name, field in fields.items() if field not in (None, [])]
            todo += reversed([_Word(f"{type(value).__name__}("), *_separated(kept), _Word(")")])
        elif isinstance(value, list):
            todo += reversed([_Word("["), *_separated([(one,) for one in value]), _Word("]")])
        else:
            words.append(hex(value) if isinstance(value, int) and value.bit_length() > LONGEST else repr(value))
    return "".join(words)


def _separated(parts: Sequence[tuple[object, ...]]) -> Iterator[object]:
    for place, part in enumerate(parts):
        yield from (_Word(", "), *part) if place else part


def _without_docstring(node: ast.AST, name: str, field: object) -> object:
    has = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and name == "body"
    if has and isinstance(field, list) and field and _is_text(field[0]):
        return field[1:]
    return field


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _imports(path: Path, _modified: int) -> list[Path]:
    home = _submission(path)
    found: list[Path] = []
    statements = [node for node in _statements(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in statements:
        for module in _named(node, path):
            if module.parts[0] in PACKAGES:
                found += _files(module)
            elif home and (inside := _within_submissions(module, path, home)):
                if inside.parts[0] != home.name:
                    raise BenchmarkError(
                        f"{path}, line {node.lineno}: imports {inside.parts[0]}, which is another submission; import "
                        "benchmark and files of its own folder alone, and copy what it needs of others"
                    )
                found += [file for file in _files(home.parent / inside) if home in file.parents]
    return found


def _named(node: ast.Import | ast.ImportFrom, path: Path) -> list[Path]:
    """What an import statement of the file `path` may name, as paths: benchmark.data is benchmark/data, and .layers of a
    file stands beside it.
    """
    if isinstance(node, ast.Import):
        return [Path(*alias.name.split(".")) for alias in node.names]
    base = Path(*path.parts[: -node.level]) if node.level else Path()
    module = base.joinpath(*(node.module or "").split("."))
    return [one for one in (module, *(module / alias.name for alias in node.names)) if one.parts]


def _submission(path: Path) -> Path | None:
    """The folder of the submission that a file belongs to."""
    return next((folder for folder in path.parents if (folder / "submission.yaml").exists()), None)


def _within_submissions(module: Path, path: Path, home: Path) -> Path | None:
    """<Name>/<file> of a module that a file of the submission `home` imports; None for a package from elsewhere."""
    if module.is_relative_to(home.parent):  # by dots
        inside = module.relative_to(home.parent)
    elif module.parts[0] == "submissions":
        inside = module.relative_to("submissions")
    elif _files(path.parent / module):  # by its bare name, which finds it where the folder is on the path
        inside = (path.parent / module).relative_to(home.parent)
    else:
        return None
    return inside if inside.parts else None


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which never run."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            todo += reversed([*ast.iter_child_nodes(node)])


def _files(module: Path) -> list[Path]:
    """The file of a module and the `__init__.py` files above it, as far as they exist."""
    files = [folder / "__init__.py" for folder in [*module.parents][::-1] if folder.parts]
    files += [module.with_name(f"{module.name}.py"), module / "__init__.py"]
    return [path for path in files if path.is_file()]


def inert(path: Path) -> bool:
    """Whether the file is an `__init__.py` that does nothing when it is imported.

    It may hold a docstring, imports for type checkers, and `__getattr__`, by which users get names that no module of the
    project imports from there: a test holds that.
    """
    if path.name != "__init__.py":
        return False
    return all(_is_text(node) or _does_nothing(node) for node in parsed(path).body)


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module in ("__future__", "typing")
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
