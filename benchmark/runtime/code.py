"""Which project files a module really imports: a static walk of its import statements.

The same closure makes the file on which DVC lets a stage depend, the key of its partial work and the sha256 of code in
the Record, so the three cannot disagree. A test compares it with what a running stage has in `sys.modules`.

A file counts by its syntax tree: comments, docstrings and layout change no result, so they make nothing stale. A file
that is no Python counts by its bytes. A submission's files are followed within its own folder; another's are refused.
What a tree says is kept in `KEPT` by the sha256 of the parser and of the file's path and bytes: only an edited file is
parsed again.
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

LONGEST = 10_000  # bits of a number that Python writes in tens
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGES = ("benchmark", "leaderboard", "autoattack")
KEPT = WORK / "parsed.json"
# of a file: the sha256 of its syntax tree, whether importing it does nothing, and its imports (line, path)
Parsed = tuple[str, bool, list[tuple[int, str]]]


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
            todo += _imports(path, files.version(path))
    return sorted(path for path in seen if path in entries or not inert(path))


def digests(*entries: Path) -> dict[str, str]:
    """sha256 of each file of the closure of `entries`, by path: of its syntax tree without docstrings, or of its bytes."""
    return {path.as_posix(): _parsed(path, files.version(path))[0] for path in closure(*entries)}


def combined(digests: Mapping[str, str]) -> str:
    """One sha256 of many files' digests."""
    return files.sha256_bytes(json.dumps(digests, sort_keys=True).encode())


def to_keep() -> bytes:
    """Return what `KEPT` should hold: what was parsed here and before, after its sha256; nothing where that grew too long."""
    table = json.dumps(_kept() if len(_kept()) < 5_000 else {}).encode()
    return files.sha256_bytes(table).encode() + b"\n" + table


@cache
def _kept() -> dict[str, Parsed]:
    """Return what was parsed, by sha256; nothing where `KEPT` is missing, damaged or not for a sandbox to read."""
    with contextlib.suppress(OSError):
        seal, _, table = KEPT.read_bytes().partition(b"\n")
        return json.loads(table) if seal == files.sha256_bytes(table).encode() else {}
    return {}


@cache
def _parser() -> bytes:
    """What parses: this code, and Python."""
    return Path(__file__).read_bytes() + sys.version.encode()


def check(path: Path) -> None:
    """Raise a BenchmarkError where a file is no Python, or nested too deeply for Python itself."""
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
    """The syntax tree of a file. Raise a BenchmarkError where it is no Python, or nested too deeply for Python itself."""
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
    """A syntax tree in words that do not depend on Python's version: no place, no docstring, no empty field.

    No recursion: the tree may be nested deeper than Python's calls may. Each word says how many parts follow.
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
    home = _submission(path)
    found: list[Path] = []
    for line, name in _parsed(path, version)[2]:
        module = Path(name)
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


def _statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import statement but those under `if TYPE_CHECKING:`, which never run."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
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
    return path.name == "__init__.py" and _parsed(path, files.version(path))[1]


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module in ("__future__", "typing")
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
