"""A submission's modules, imported: within its own folder, by names that can be followed, and with errors in one line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError, in_submission, said

# a stranger's code may raise anything, and `sys.exit(0)` would end a stage without a word
ANY = (Exception, SystemExit)


def load(path: Path) -> ModuleType:
    """A submission's file as the module submissions.<name>.<file>, which imports others of its folder by `from .file`.

    Raises:
        BenchmarkError: it does not import (its line is named), or imports another submission, or files of its folder that
            a stage's inputs would lack.
    """
    spec = importlib.util.spec_from_file_location(f"{_package(path.parent)}.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with followed(path):
        try:
            spec.loader.exec_module(module)
        except ANY as error:
            raise BenchmarkError(f"{place(path, error)} does not import: {said(error)}{_hint(path, error)}") from error
    return module


@contextmanager
def followed(path: Path) -> Iterator[None]:
    """Holds what is imported inside the block to what the import statements of `path` name: on these its stages depend.

    Raises:
        BenchmarkError: a file of the submission, or of another, that was imported by other means.
    """
    known, before = {file.absolute() for file in code.closure(path)}, {*sys.modules}
    yield
    submissions = path.absolute().parent.parent
    for name in sorted({*sys.modules} - before):
        file = Path(getattr(sys.modules[name], "__file__", None) or "/")
        if file.is_relative_to(submissions) and file not in known and not code.inert(file):
            raise BenchmarkError(
                f"{path}: imports {file.relative_to(submissions.parent)} by other means than an import statement, so its "
                f"edits would go unseen; write `from .{file.stem} import ...` for a file of its own folder"
            )


@contextmanager
def asked(path: Path, failed: str) -> Iterator[None]:
    """Whatever a stranger's code raises inside the block is a BenchmarkError with its place and its words."""
    try:
        yield
    except BenchmarkError:
        raise
    except ANY as error:
        raise BenchmarkError(f"{place(path, error)}: {failed}: {said(error)}") from error


def place(path: Path, error: BaseException) -> str:
    """The last line of the submission's own files that the error passed through, else `path`."""
    return in_submission(error, path.parent) or str(path)


def _package(folder: Path) -> str:
    """The package submissions.<name> of a folder, by name; another folder's modules of this name are forgotten."""
    name, here = f"submissions.{folder.name}", str(folder.absolute())
    for package, at in (("submissions", str(folder.absolute().parent)), (name, here)):
        known = sys.modules.setdefault(package, ModuleType(package))
        if [*getattr(known, "__path__", [])] != [at]:
            known.__path__ = [at]
    for other in [module for module in sys.modules if module.startswith(f"{name}.")]:
        file = getattr(sys.modules[other], "__file__", None)
        if file and not Path(file).is_relative_to(here):
            del sys.modules[other]
    return name


def _hint(path: Path, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    beside = missing and (path.parent / f"{missing}.py").exists()
    return f"; write `from .{missing} import ...`, since it stands beside" if beside else ""
