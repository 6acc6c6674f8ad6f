"""The project files that a module really imports: a static walk of its import statements.

The same closure gives the dependencies of a DVC stage, the key of partial work, and the Record's sha256 of code, so the
three cannot disagree. A test compares it with the modules of a running stage.

A file is hashed by its syntax tree: comments, docstrings and layout change no result. Other files are hashed by their
bytes. A submission's imports are followed within its own folder; another submission's files are refused. Parsed trees are
cached in `KEPT` by the sha256 of the parser and of the file's path and bytes, so only an edited file is parsed again.
"""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.paths import WORK

LONGEST = 10_000  # bits of a number that Python writes in decimal
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGES = ("benchmark", "leaderboard", "autoattack")
KEPT = WORK / "parsed.json"
# of a file: the sha256 of its syntax tree, whether importing it does nothing, and its imports (line, path)
Parsed = tuple[str, bool, list[tuple[int, str]]]


def closure(*entries: Path) -> list[Path]:
    """Return all files that `entries` import, directly or not, and `entries` themselves, sorted.

    A package's `__init__.py` counts only if it does something; a docstring alone cannot change a result.
    """
    seen: set[Path] = set()
    todo = list(entries)
    while todo:
        path = todo.pop()
        if path not in seen:
            if not path.is_file():
                others = [other.stem for other in path.parent.glob("*.py")]
                raise BenchmarkError(f"there is no {path}, which a track or a submission names{near_miss(path.stem, others)}")
            seen.add(path)
            todo += _imports(path, files.version(path))
    return sorted(path for path in seen if path in entries or not inert(path))


def digests(*entries: Path) -> dict[str, str]:
    """Return the sha256 of each file of the closure, by path: of its syntax tree without docstrings, or of its bytes."""
    return {path.as_posix(): _parsed(path, files.version(path))[0] for path in closure(*entries)}


def combined(digests: Mapping[str, str]) -> str:
    """Return one sha256 of many files' digests."""
    return files.sha256_bytes(json.dumps(digests, sort_keys=True).encode())


def to_keep() -> bytes:
    """Return the content of `KEPT`: a sha256, then everything parsed so far; nothing after the sha256 if that grew
    too long.
    """
    table = json.dumps(_kept() if len(_kept()) < 5_000 else {}).encode()
    return files.sha256_bytes(table).encode() + b"\n" + table


@cache
def _kept() -> dict[str, Parsed]:
    """Return the cached trees by sha256; nothing if `KEPT` is missing, damaged or not readable in a sandbox."""
    with contextlib.suppress(OSError):
        seal, _, table = KEPT.read_bytes().partition(b"\n")
        return json.loads(table) if seal == files.sha256_bytes(table).encode() else {}
    return {}


@cache
def _parser() -> bytes:
    """Return the identity of the parser: this code, and Python's version."""
    return Path(__file__).read_bytes() + sys.version.encode()


def check(path: Path) -> None:
    """Raise BenchmarkError if a file is no Python, or nested too deeply for Python itself."""
    _parsed(path, files.version(path))


@cache
def _parsed(path: Path, _version: tuple[int, ...]) -> Parsed:
    content = path.read_bytes()
    if path.suffix != ".py":
        return files.sha256_bytes(content), False, []
    sha256 = files.sha256_bytes(_parser() + path.as_posix().encode() + content)
    if sha256 not in _kept():
        _kept()[sha256] = _parse(path, content)
    return _kept()[sha256]


def tree_of(path: Path, content: bytes) -> ast.Module:
    """Return the syntax tree of a file. Raise BenchmarkError if it is no Python, or nested too deeply for Python itself."""
    try:
        return ast.parse(content, str(path))  # bytes: a file may name its encoding
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise BenchmarkError(f"{path}{line}: {getattr(error, 'msg', error)}") from None


def _parse(path: Path, content: bytes) -> Parsed:
    tree = tree_of(path, content)
    inert = all(_is_text(node) or _does_nothing(node) for node in tree.body)
    imports = [(node.lineno, module.as_posix()) for node in _statements(tree) for module in _named(node, path)]
    return files.sha256_bytes(_canonical(tree).encode()), inert, imports


def _canonical(tree: ast.AST) -> str:
    """Return a syntax tree as text that does not depend on Python's version: no places, docstrings or empty fields.

    Not recursive, since the tree may be nested deeper than Python's call stack. Each word says how many parts follow.
    """
    words: list[str] = []
    todo: list[object] = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, ast.AST):
            fields = dict(ast.iter_fields(value))
            if isinstance(value, DOCUMENTED) and value.body and _is_text(value.body[0]):
                fields["body"] = value.body[1:]
            fields = {name: part for name, part in fields.items() if part not in (None, [])}
            words.append(f"{type(value).__name__}({', '.join(fields)})")
            todo += reversed(fields.values())
        elif isinstance(value, list):
            words.append(f"{len(value)} parts")
            todo += reversed(value)
        else:
            words.append(hex(value) if isinstance(value, int) and value.bit_length() > LONGEST else repr(value))
    return "\n".join(words)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _imports(path: Path, version: tuple[int, ...]) -> list[Path]:
    home = next((folder for folder in path.parents if (folder / "submission.yaml").exists()), None)
    imported: list[Path] = []
    for line, name in _parsed(path, version)[2]:
        module = Path(name)
        if module.parts[0] in PACKAGES:
            imported += _files(module)
        elif home and (inside := _within_submissions(module, path, home)):
            if inside.parts[0] != home.name:
                raise BenchmarkError(
                    f"{path}, line {line}: imports {inside.parts[0]}, which is another submission; import "
                    "benchmark and files of its own folder alone, and copy what it needs of others"
                )
            imported += [file for file in _files(home.parent / inside) if home in file.parents]
    return imported


def _named(node: ast.Import | ast.ImportFrom, path: Path) -> list[Path]:
    """Return the paths that an import statement of `path` may name: benchmark/data for benchmark.data, a neighbour
    for .layers.
    """
    if isinstance(node, ast.Import):
        return [Path(*alias.name.split(".")) for alias in node.names]
    base = Path(*path.parts[: -node.level]) if node.level else Path()
    module = base.joinpath(*(node.module or "").split("."))
    return [path for path in (module, *(module / alias.name for alias in node.names)) if path.parts]


def _within_submissions(module: Path, path: Path, home: Path) -> Path | None:
    """Return <Name>/<file> of a module that a file of the submission `home` imports; None for other packages."""
    if module.is_relative_to(home.parent):  # by dots
        inside = module.relative_to(home.parent)
    elif module.parts[0] == "submissions":
        inside = module.relative_to("submissions")
    elif _files(path.parent / module):  # by its bare name, found if the folder is on sys.path
        inside = (path.parent / module).relative_to(home.parent)
    else:
        return None
    return inside if inside.parts else None


def _statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield every import statement except those under `if TYPE_CHECKING:`, which never run."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            todo += reversed([*ast.iter_child_nodes(node)])


def _files(module: Path) -> list[Path]:
    """Return the file of a module and the `__init__.py` files above it, if they exist."""
    files = [folder / "__init__.py" for folder in [*module.parents][::-1] if folder.parts]
    files += [module.with_name(f"{module.name}.py"), module / "__init__.py"]
    return [path for path in files if path.is_file()]


def inert(path: Path) -> bool:
    """Return whether the file is an `__init__.py` that does nothing when it is imported.

    It may hold a docstring, imports for type checkers, and `__getattr__`, through which users get names. No module of
    the project imports names from there; a test checks this.
    """
    return path.name == "__init__.py" and _parsed(path, files.version(path))[1]


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module in ("__future__", "typing")
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
