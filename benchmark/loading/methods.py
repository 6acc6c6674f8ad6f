"""The code of submissions: a stranger's modules, imported and held to their interface."""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from benchmark.loading import components, submissions
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.threat import ThreatModel
from benchmark.specs.track import Track

if TYPE_CHECKING:
    import torch
    from torch import nn


def method(name: str) -> ModuleType:
    """The submission's method.py as a module; a BenchmarkError when it does not import or lacks `build`."""
    path = submissions.FOLDER / name / "method.py"
    module = _module(path)
    if not callable(getattr(module, "build", None)):
        raise BenchmarkError(f"{path} must define build(data, **model) returning a torch module")
    return module


def module(name: str, file: str) -> ModuleType:
    """Another file of the submission, such as `measures`, as a module; a BenchmarkError when it does not import."""
    return _module(submissions.FOLDER / name / f"{file}.py")


def _module(path: Path) -> ModuleType:
    """A submission's file as the module submissions.<name>.<file>; a BenchmarkError with its line if it does not import."""
    spec = importlib.util.spec_from_file_location(f"submissions.{path.parent.name}.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BenchmarkError(f"{_place(path, error)} does not import: {_words(error)}") from error
    return module


def attack_file(attack: str, submission: str = "") -> Path:
    """The file of an attack: the submission's own where one is named and has it, else the benchmark's."""
    own = submissions.FOLDER / submission / f"{attack}.py"
    return own if submission and own.exists() else components.attack_file(attack)


def attack(name: str, submission: str) -> ModuleType:
    """An attack brought against a submission, as a module: its own file, guarded, or one of benchmark/attacks.

    A file of its own is a stranger's: it gets a copy of the model, so that nothing that it changes there can pass for a
    broken image; torch's seed is set before it runs; what it raises becomes a BenchmarkError with its place and words.
    """
    path = attack_file(name, submission)
    if path.parent != submissions.FOLDER / submission:
        return importlib.import_module(f"benchmark.attacks.{name}")
    module = _module(path)
    module.__dict__["attack"] = _guarded(module.attack, path)
    return module


def _guarded(attack: Callable[..., object], path: Path) -> Callable[..., torch.Tensor]:
    @functools.wraps(attack)
    def guarded(
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        threat: ThreatModel,
        *,
        seed: int,
        **options: object,
    ) -> torch.Tensor:
        import torch

        try:
            model = copy.deepcopy(model)
        except Exception as error:
            raise BenchmarkError(f"{path}: the model cannot be copied for the attack: {_words(error)}") from error
        torch.manual_seed(seed)
        try:
            found = attack(model, images.clone(), labels.clone(), threat, seed=seed, **options)
        except BenchmarkError:
            raise
        except Exception as error:
            raise BenchmarkError(f"{_place(path, error)}: the attack failed: {_words(error)}") from error
        if not isinstance(found, torch.Tensor):
            raise BenchmarkError(f"{path}: the attack returned {type(found).__name__}, not a tensor of images")
        return found

    return guarded


def build(submission: Submission, variant: str, track: Track) -> nn.Module:
    """A fresh, untrained model (torch.nn.Module): images (n, c, h, w) in [0, 1] to logits (n, classes).

    Raises:
        BenchmarkError: build refuses its options, or the model returns a wrong shape or something that is not finite.
    """
    return build_model(submission, submissions.settings(submission, variant, track.name), track)


def build_model(submission: Submission, entry: VariantOnTrack, track: Track) -> nn.Module:
    """The same by settings, which may be those of no variant."""
    return _build_checked(submission, entry, track, "build", (track.data,))


def pretrained(submission: Submission, variant: str, track: Track, path: Path | None) -> nn.Module:
    """The model with weights that were trained elsewhere, by the method's `pretrained(data, path, **model)`: from the
    checkpoint file at `path`, or from wherever the method finds it. Raises as `build` does.
    """
    if not callable(getattr(method(submission.name), "pretrained", None)):
        file = submissions.FOLDER / submission.name / "method.py"
        raise BenchmarkError(f"{file} must define pretrained(data, path, **model), since a variant has `weights`")
    return _build_checked(
        submission, submissions.settings(submission, variant, track.name), track, "pretrained", (track.data, path)
    )


def _build_checked(
    submission: Submission, entry: VariantOnTrack, track: Track, maker: str, given: tuple[object, ...]
) -> nn.Module:
    try:
        model = getattr(method(submission.name), maker)(*given, **entry.model)
    except BenchmarkError:
        raise
    except Exception as error:  # a stranger's code: whatever it raises, the user needs its place and its words
        place = _place(submissions.FOLDER / submission.name / "method.py", error)
        raise BenchmarkError(f"{place}: {maker} failed: {_words(error)}") from error
    check_output(model, submission.name, track)
    return model


def _place(path: Path, error: Exception) -> str:
    """The last line of the submission's own file that the error passed through."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.absolute()
    ]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def check_output(model: object, name: str, track: Track) -> None:
    """One forward pass of two grey images: shape (2, classes) and finite, else a BenchmarkError."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise BenchmarkError(f"submissions/{name}: build returned {type(model).__name__}, not a torch module")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        with torch.no_grad():
            logits = model(torch.full((2, *track.data.shape), 0.5, device=device))
    except Exception as error:
        place = _place(submissions.FOLDER / name / "method.py", error)
        raise BenchmarkError(f"{place}: the model fails on two images: {_words(error)}") from error
    wanted = (2, track.data.classes)
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != wanted:
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise BenchmarkError(f"submissions/{name}: two images give {shape}; logits of shape {wanted} are needed")
    if not torch.isfinite(logits).all():
        raise BenchmarkError(f"submissions/{name}: the model's logits are not finite (NaN or infinity)")
