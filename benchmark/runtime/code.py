"""Which project files a module really imports: a static walk of its import statements.

The same closure makes the file on which DVC lets a stage depend, the key of its partial work and the sha256 of code in
the Record, so the three cannot disagree. A test compares it with what a running stage has in `sys.modules`.

A file counts by its syntax tree: comments, docstrings and layout change no result, so they make nothing stale. A file
that is no Python counts by its bytes. A submission's files are followed within its own folder; another's are refused.

What a file's tree says is kept in `KEPT`, by the sha256 of the file's bytes, so that only an edited file is parsed again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.paths import WORK

PACKAGES = ("benchmark", "leaderboard", "autoattack")
KEPT = WORK / "parsed.json"
SEAL = 64  # characters of a sha256
MOST_KEPT = 5_000  # files; a table with more begins anew


class Parsed(NamedTuple):
    """What is kept of a Python file: the sha256 of its syntax tree, whether importing it does nothing, and its import
    statements.
    """

    digest: str
    inert: bool
    imports: list[tuple[int, int | None, str, list[str]]]  # line, dots (None for `import`), module, names


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
            if path.suffix == ".py":
                todo += _imports(path, files.version(path))
    return sorted(path for path in seen if path in entries or not inert(path))


def digests(*entries: Path) -> dict[str, str]:
    """sha256 of each file of the closure of `entries`, by path: of its syntax tree without docstrings, or of its bytes."""
    return {path.as_posix(): _digest(path, files.version(path)) for path in closure(*entries)}


def combined(digests: Mapping[str, str]) -> str:
    """One sha256 of many files' digests."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def to_keep() -> bytes:
    """What `KEPT` should hold: what was parsed, in this process and before, under its own sha256."""
    table = json.dumps(_kept() if len(_kept()) <= MOST_KEPT else {}).encode()
    return _seal(table) + table


@cache
def _kept() -> dict[str, Parsed]:
    """What was parsed, by the sha256 of a file's bytes; empty where `KEPT` is missing, damaged or another version's."""
    try:
        content = KEPT.read_bytes()
    except OSError:  # none yet, or a sandbox that may not read it
        return {}
    table = content[SEAL:]
    return (
        {sha256: Parsed(*one) for sha256, one in json.loads(table).items()} if content == _seal(table) + table else {}
    )


def _seal(table: bytes) -> bytes:
    """The sha256 of a table and of the code that makes it, Python's parser included."""
    return hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode() + table).hexdigest().encode()


@cache
def _digest(path: Path, version: tuple[int, ...]) -> str:
    return _parsed(path, version).digest if path.suffix == ".py" else files.sha256_file(path)


@cache
def _parsed(path: Path, _version: tuple[int, ...]) -> Parsed:
    content, kept = path.read_bytes(), _kept()
    sha256 = files.sha256_bytes(content)
    if sha256 not in kept:
        kept[sha256] = _parse(path, content)
    return kept[sha256]


def _parse(path: Path, content: bytes) -> Parsed:
    try:
        tree = ast.parse(content, str(path))  # bytes: a file may name its encoding
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise BenchmarkError(f"{path}{line}: {getattr(error, 'msg', error)}") from None
    imports = [
        (
            node.lineno,
            getattr(node, "level", None),
            getattr(node, "module", None) or "",
            [one.name for one in node.names],
        )
        for node in _statements(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    inert = all(_is_text(node) or _does_nothing(node) for node in tree.body)
    return Parsed(files.sha256_bytes(_canonical(tree).encode()), inert, imports)


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
def _imports(path: Path, version: tuple[int, ...]) -> list[Path]:
    home = _submission(path)
    found: list[Path] = []
    for line, dots, origin, names in _parsed(path, version).imports:
        for module in _named(dots, origin, names, path):
            if module.parts[0] in PACKAGES:
                found += _files(module)
            elif home and (inside := _within_submissions(module, path, home)):
                if inside.parts[0] != home.name:
                    raise BenchmarkError(
                        f"{path}, line {line}: imports {inside.parts[0]}, which is another submission; import "
                        "benchmark and files of its own folder alone, and copy what it needs of others"
                    )
                found += [file for file in _files(home.parent / inside) if home in file.parents]
    return found


def _named(dots: int | None, origin: str, names: list[str], path: Path) -> list[Path]:
    """What an import statement of the file `path` may name, as paths: benchmark.data is benchmark/data, and .layers of a
    file stands beside it.
    """
    if dots is None:
        return [Path(*name.split(".")) for name in names]
    base = Path(*path.parts[:-dots]) if dots else Path()
    module = base.joinpath(*origin.split("."))
    return [one for one in (module, *(module / name for name in names)) if one.parts]


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
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _statements(child)


def _files(module: Path) -> list[Path]:
    """The file of a module and the `__init__.py` files above it, as far as they exist."""
    files = [folder / "__init__.py" for folder in [*module.parents][::-1] if folder.parts]
    files += [module.with_name(f"{module.name}.py"), module / "__init__.py"]
    return [path for path in files if path.exists()]


def inert(path: Path) -> bool:
    """Whether the file is an `__init__.py` that does nothing when it is imported.

    It may hold a docstring, imports for type checkers, and `__getattr__`, by which users get names that no module of the
    project imports from there: a test holds that.
    """
    return path.name == "__init__.py" and _parsed(path, files.version(path)).inert


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module in ("__future__", "typing")
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
