"""The code of submissions: modules imported within their own folder, by names that can be followed, held to their interface,
with errors in one line.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError, in_submission, said
from benchmark.specs import components, submissions
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.threat import ThreatModel
from benchmark.specs.track import Track

if TYPE_CHECKING:
    import torch
    from torch import nn


# submitted code may raise anything, and `sys.exit(0)` would end a stage without a word
ANY = (Exception, SystemExit)
Part = TypeVar("Part")


def method(name: str) -> ModuleType:
    """The submission's method.py as a module; a BenchmarkError when it does not import or lacks `build`."""
    module = load(path := _path(name))
    if not callable(getattr(module, "build", None)):
        raise BenchmarkError(f"{path} must define build(data, **model) returning a torch module")
    return module


def _path(name: str) -> Path:
    return submissions.FOLDER / name / "method.py"


def imported(name: str) -> ModuleType:
    """method.py as it was imported last, whose classes are those of a model that it built; imported now if it was not."""
    module = sys.modules.get(f"submissions.{name}.method")
    return module if module and module.__file__ == str(_path(name).absolute()) else method(name)


def module(name: str, file: str) -> ModuleType:
    """Another file of the submission, such as `measures`, as a module; a BenchmarkError when it does not import."""
    return load(submissions.FOLDER / name / f"{file}.py")


def attack_file(attack: str, submission: str = "") -> Path:
    """The file of an attack: the submission's own where one is named and has it, else the benchmark's."""
    own = submissions.FOLDER / submission / f"{attack}.py"
    return own if own_attack(attack, submission) else components.attack_file(attack)


def own_attack(attack: str, submission: str) -> bool:
    """Whether the submission named has a file of its own for the attack."""
    return bool(submission) and (submissions.FOLDER / submission / f"{attack}.py").exists()


def attack(name: str, submission: str) -> ModuleType:
    """An attack that is contributed against a submission, by its own file, as a module.

    It gets a copy of the model, so that nothing that it changes there can pass for a broken image; torch's seed is set before
    it runs; what it raises becomes a BenchmarkError with its place and words.
    """
    import torch

    path = submissions.FOLDER / submission / f"{name}.py"
    module = load(path)
    own = module.attack

    @functools.wraps(own)
    def guarded(
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        threat: ThreatModel,
        *,
        seed: int,
        **options: object,
    ) -> torch.Tensor:
        with asked(path, "the model cannot be copied for the attack"):
            model = copy.deepcopy(model)
        torch.manual_seed(seed)
        with asked(path, "the attack failed"):
            found = own(model, images.clone(), labels.clone(), threat, seed=seed, **options)
        if not isinstance(found, torch.Tensor):
            raise BenchmarkError(f"{path}: the attack returned {type(found).__name__}, not a tensor of images")
        return found

    module.__dict__["attack"] = guarded
    return module


def build(submission: Submission, variant: str, track: Track) -> nn.Module:
    """A fresh, untrained model (torch.nn.Module): images (n, c, h, w) in [0, 1] to logits (n, classes).

    Raises:
        BenchmarkError: build refuses its options, or the model returns a wrong shape or something that is not finite.
    """
    return build_model(submission, submissions.settings(submission, variant, track.name), track)


def pretrained(submission: Submission, variant: str, track: Track, path: Path | None) -> nn.Module:
    """The model with weights that were trained elsewhere, by the method's `pretrained(data, path, **model)`: from the
    checkpoint file at `path`, or from wherever the method finds it. Raises as `build` does.
    """
    if not callable(getattr(method(submission.name), "pretrained", None)):
        words = "must define pretrained(data, path, **model), since a variant has `weights`"
        raise BenchmarkError(f"{_path(submission.name)} {words}")
    entry = submissions.settings(submission, variant, track.name)
    return build_model(submission, entry, track, "pretrained", path)


def build_model(
    submission: Submission, entry: VariantOnTrack, track: Track, maker: str = "build", *given: object
) -> nn.Module:
    """As `build` by settings, which may be those of no variant; by another `maker` of method.py that is `given` more."""
    path = _path(submission.name)
    make = getattr(method(submission.name), maker)
    with followed(path), asked(path, f"{maker} failed"):
        model = make(track.data, *given, **entry.model)
    check_output(model, submission.name, track)
    return model


def check_output(model: object, name: str, track: Track) -> None:
    """A BenchmarkError unless two grey images and one give finite logits (n, classes) and are left as they were."""
    import torch

    owner = f"submissions/{name}"
    if not isinstance(model, torch.nn.Module):
        raise BenchmarkError(f"{owner}: build returned {type(model).__name__}, not a torch module")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model.eval()
    for count, words, gives in ((2, "two images", "give"), (1, "one image", "gives")):
        images = torch.full((count, *track.data.shape), 0.5, device=device)
        with asked(_path(name), f"the model fails on {words}"), torch.no_grad():
            logits = model(images)
        due = (count, track.data.classes)
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        if shape != due:
            raise BenchmarkError(f"{owner}: {words} {gives} {shape}; logits of shape {due} are needed")
        if not torch.isfinite(logits).all():
            raise BenchmarkError(f"{owner}: the model's logits are not finite (NaN or infinity)")
        if not (images == 0.5).all():
            raise BenchmarkError(
                f"{owner}: the model changes its input in place; let it make a new tensor, such as `x = x - mean` for "
                "`x -= mean`, or begin with `x = x.clone()`"
            )


def own_parts(
    submission: str,
    model: nn.Module,
    function: str,
    recognised: Callable[[nn.Module], list[Part]],
    what: str,
    name: Callable[[str, Part], str],
) -> list[Part]:
    """Parts of a model that this submission built: `function`(model) of method.py, or without one `recognised`(model).

    Args:
        what: the kind of entry, in words.
        name: of an entry, given its place in words; names must differ. A ValueError says what is wrong with the entry.

    Raises:
        BenchmarkError: method.py's fails or returns something else than a list of such entries; or it defines none and no
            part is recognised.
    """
    path = _path(submission)
    own = getattr(imported(submission), function, None)
    if not callable(own):
        try:
            return recognised(model)
        except BenchmarkError as error:
            raise BenchmarkError(f"{path}: {error}") from None
    with asked(path, f"{function} failed"):
        found = own(model)
    due = f"{path}: {function}(model) must return a list of {what}"
    if not isinstance(found, list) or not found:
        raise BenchmarkError(f"{due}, not {'an empty one' if found == [] else type(found).__name__}")
    names = list[str]()
    for place, entry in enumerate(found, 1):
        try:
            names.append(name(f"entry {place}", entry))
        except ValueError as error:
            raise BenchmarkError(f"{due}; {error}") from None
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise BenchmarkError(f"{path}: {function}(model) returns the name {twice!r} twice; names must differ")
    return found


def load(path: Path) -> ModuleType:
    """A submission's file as the module submissions.<name>.<file>, which imports others of its folder by `from .file`; a
    BenchmarkError where it does not import (its line is named), or imports what a stage's inputs would lack.
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
    """Refuse what is imported inside the block from a submission unless import statements of `path` name it: on these its
    stages depend.
    """
    known, before = {file.absolute() for file in code.closure(path)}, {*sys.modules}
    yield
    root = path.absolute().parent.parent
    for name in sorted({*sys.modules} - before):
        file = Path(getattr(sys.modules[name], "__file__", None) or "/")
        if file.is_relative_to(root) and file not in known and not code.inert(file):
            raise BenchmarkError(
                f"{path}: imports {file.relative_to(root.parent)} by other means than an import statement, so its "
                f"edits would go unseen; write `from .{file.stem} import ...` for a file of its own folder"
            )


@contextmanager
def asked(path: Path, failed: str) -> Iterator[None]:
    """Whatever submitted code raises inside the block is a BenchmarkError with its place and its words."""
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
