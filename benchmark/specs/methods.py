"""Submitted code: modules imported within their own folder, checked against their interface, with errors in one line."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError, in_submission, said
from benchmark.specs import components, submissions
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.threat import ThreatModel
from benchmark.specs.track import Track

if TYPE_CHECKING:
    import torch
    from torch import nn


ROUNDING = 1e-4  # relative, by which logits of the same weights may differ by rounding
# submitted code may raise anything, and `sys.exit(0)` would end a stage silently
ANY = (Exception, SystemExit)


def method(name: str) -> ModuleType:
    """Return the submission's method.py as a module. Raise BenchmarkError if it does not import or lacks `build`."""
    module = load(path := _path(name))
    if not callable(getattr(module, "build", None)):
        raise BenchmarkError(f"{path} must define build(data, **model) returning a torch module")
    return module


def _path(name: str) -> Path:
    return submissions.FOLDER / name / "method.py"


def imported(name: str) -> ModuleType:
    """Return method.py as it was last imported, so that its classes are those of a model that it built; else import it."""
    module = sys.modules.get(f"submissions.{name}.method")
    return module if module and module.__file__ == str(_path(name).absolute()) else method(name)


def module(name: str, file: str) -> ModuleType:
    """Return another file of the submission, such as `measures`, as a module. Raise BenchmarkError if it does not import."""
    return load(submissions.FOLDER / name / f"{file}.py")


def attack_file(attack: str, submission: str = "") -> Path:
    """Return the file of an attack: the named submission's own if it has one, else the benchmark's."""
    own = submissions.FOLDER / submission / f"{attack}.py"
    return own if own_attack(attack, submission) else components.attack_file(attack)


def own_attack(attack: str, submission: str) -> bool:
    """Return whether a file of the named submission defines the attack."""
    return bool(submission) and components.defines(submissions.FOLDER / submission / f"{attack}.py", "attacks")


def component(kind: str, name: str, given: Mapping[str, Any], submission: str) -> tuple[ModuleType, dict[str, Any]]:
    """Return the module of a training component, and its parameters in the types that its function declares.

    The component is the submission's own or the benchmark's.

    Raises:
        BenchmarkError: a file that does not import or lacks its function, an unknown or missing parameter, or a value
            of a wrong type.
    """
    entry, words = components.ENTRIES[kind]
    file = components.component_file(kind, name, submissions.FOLDER / submission if submission else None)
    if not components.defines(file, kind):
        raise BenchmarkError(f"no {words} named {name!r}")
    if file.is_relative_to(components.PACKAGE):
        module = importlib.import_module(".".join(file.with_suffix("").parts))
    else:
        module = load(file)
        if not callable(getattr(module, entry, None)):
            raise BenchmarkError(f"{file} must define {entry}")
    with asked(file, f"the parameters of {entry} cannot be read"):
        return module, components.typed_parameters(getattr(module, entry), given, f"{words} {name}")


def attack(name: str, submission: str) -> ModuleType:
    """Return an attack contributed against a submission, by its own file, as a module.

    The attack gets a copy of the model, so a change to the model cannot pass for a broken image. torch's seed is set
    before it runs. Its exceptions become a BenchmarkError with their place and text.
    """
    import torch

    path = submissions.FOLDER / submission / f"{name}.py"
    module = load(path)
    own = module.attack

    @functools.wraps(own)
    def guarded(
        model: nn.Module, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel, *, seed: int, **options: object
    ) -> torch.Tensor:
        with asked(path, "the model cannot be copied for the attack"):
            model = copy.deepcopy(model)
        torch.manual_seed(seed)
        with asked(path, "the attack failed"):
            adversarial = own(model, images.clone(), labels.clone(), threat, seed=seed, **options)
        if not isinstance(adversarial, torch.Tensor):
            kind = type(adversarial).__name__
            raise BenchmarkError(f"{path}: the attack returned {kind}, not a tensor of images")
        return adversarial

    module.__dict__["attack"] = guarded
    return module


def build(submission: Submission, variant: str, track: Track) -> nn.Module:
    """Return a new, untrained model: images (n, c, h, w) in [0, 1] to logits (n, classes).

    Raise BenchmarkError if build refuses its options, or the model's logits have a wrong shape or are not finite.
    """
    return build_model(submission, submissions.settings(submission, variant, track.name), track)


def pretrained(submission: Submission, variant: str, track: Track, path: Path | None) -> nn.Module:
    """Return the model with weights that were trained elsewhere, by the method's `pretrained(data, path, **model)`.

    The weights come from the checkpoint file `path`, or from wherever the method finds them. Raise as `build` does.
    """
    if not callable(getattr(method(submission.name), "pretrained", None)):
        words = "must define pretrained(data, path, **model), since a variant has `weights`"
        raise BenchmarkError(f"{_path(submission.name)} {words}")
    entry = submissions.settings(submission, variant, track.name)
    return build_model(submission, entry, track, "pretrained", path)


def build_model(
    submission: Submission, entry: VariantOnTrack, track: Track, maker: str = "build", *given: object, again: bool = True
) -> nn.Module:
    """Build as `build` does from settings of any origin, by another `maker` of method.py that gets `given` too.

    Args:
        again: whether to import method.py again, so that an edit counts. Two imports have distinct classes, of which
            `isinstance` holds for one model alone.
    """
    path = _path(submission.name)
    make = getattr((method if again else imported)(submission.name), maker)
    with followed(path), asked(path, f"{maker} failed"):
        model = make(track.data, *given, **entry.model)
    check_output(model, submission.name, track)
    return model


def check_output(model: object, name: str, track: Track) -> None:
    """Raise BenchmarkError unless two grey images and one give finite logits (n, classes) and are left unchanged."""
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


def check_weights(model: nn.Module, submission: Submission, entry: VariantOnTrack, track: Track) -> None:
    """Raise BenchmarkError unless another build gives the model's logits when it has the model's state_dict: later steps
    have no more of a model than that. Models that do not repeat themselves under one seed of torch are left out.
    """
    import torch

    owner, device = f"submissions/{submission.name}", next((p.device for p in model.parameters()), torch.device("cpu"))
    images = torch.rand((8, *track.data.shape), generator=torch.Generator().manual_seed(0)).to(device)

    def logits(network: nn.Module) -> torch.Tensor:
        torch.manual_seed(0)
        with asked(_path(submission.name), "the model fails on random images"):
            return network.eval()(images)

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        other = build_model(submission, entry, track, again=False).to(device)
        try:
            other.load_state_dict(model.state_dict())
        except RuntimeError as error:
            reason = " ".join(str(error).splitlines()[1:2]).strip()
            words = f"the model's state_dict does not fit what `build` returns ({reason}); give both one architecture"
            raise BenchmarkError(f"{owner}: {words}") from None
        first, again, rebuilt = logits(model), logits(model), logits(other)
    gap, own, most = (float(z.abs().max()) for z in (first - rebuilt, first - again, first))
    if own <= ROUNDING * (1 + most) and not gap <= ROUNDING * (1 + most):
        raise BenchmarkError(
            f"{owner}: a new build with the model's state_dict gives other logits (by {gap:.3g}); keep all that `forward` "
            "uses in parameters or persistent buffers: the state_dict is all that is kept"
        )


def load(path: Path) -> ModuleType:
    """Return a submission's file as the module submissions.<name>.<file>, which imports its neighbours by `from .file`.

    Raise BenchmarkError if it does not import (with the line), or imports a file that its stages' inputs would lack.
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
def followed(path: Path, *others: Path) -> Iterator[None]:
    """Refuse imports of submitted files inside the block unless import statements of `path` or `others` name them:
    stages depend on those.
    """
    allowed, before = {file.absolute() for file in code.closure(path, *others)}, {*sys.modules}
    yield
    root = path.absolute().parent.parent
    for name in sorted({*sys.modules} - before):  # not by their order, which the code may change
        file = Path(getattr(sys.modules[name], "__file__", None) or "/")
        if file.is_relative_to(root) and file not in allowed and not code.inert(file):
            raise BenchmarkError(
                f"{path}: imports {file.relative_to(root.parent)} by other means than an import statement, so its "
                f"edits would go unseen; write `from .{file.stem} import ...` for a file of its own folder"
            )


@contextmanager
def asked(path: Path, failed: str) -> Iterator[None]:
    """Turn whatever submitted code raises inside the block into a BenchmarkError with its place and text."""
    try:
        yield
    except BenchmarkError:
        raise
    except ANY as error:
        raise BenchmarkError(f"{place(path, error)}: {failed}: {said(error)}") from error


def place(path: Path, error: BaseException) -> str:
    """Return the last line of the submission's own files that the error passed through, else `path`."""
    return in_submission(error, path.parent) or str(path)


def _package(folder: Path) -> str:
    """Return the package submissions.<name> of a folder; modules of that name from another folder are forgotten."""
    name, folder = f"submissions.{folder.name}", folder.absolute()
    for package, path in (("submissions", str(folder.parent)), (name, str(folder))):
        made = sys.modules.setdefault(package, ModuleType(package))
        before, made.__path__ = [*getattr(made, "__path__", [path])], [path]
        if before != [path]:
            for other in [module for module in sys.modules if module.startswith(f"{name}.")]:
                del sys.modules[other]
    return name


def _hint(path: Path, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    beside = missing and (path.parent / f"{missing}.py").exists()
    return f"; write `from .{missing} import ...`, since it stands beside" if beside else ""
