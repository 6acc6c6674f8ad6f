"""The code of submissions: a stranger's modules, imported and held to their interface."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from benchmark.loading import components, own_code, submissions
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
    module = own_code.load(path)
    if not callable(getattr(module, "build", None)):
        raise BenchmarkError(f"{path} must define build(data, **model) returning a torch module")
    return module


def imported(name: str) -> ModuleType:
    """method.py as it was imported last, whose classes are those of a model that it built; imported now if it was not."""
    path = submissions.FOLDER / name / "method.py"
    module = sys.modules.get(f"submissions.{name}.method")
    return module if module and module.__file__ == str(path.absolute()) else method(name)


def module(name: str, file: str) -> ModuleType:
    """Another file of the submission, such as `measures`, as a module; a BenchmarkError when it does not import."""
    return own_code.load(submissions.FOLDER / name / f"{file}.py")


def attack_file(attack: str, submission: str = "") -> Path:
    """The file of an attack: the submission's own where one is named and has it, else the benchmark's."""
    own = submissions.FOLDER / submission / f"{attack}.py"
    return own if own_attack(attack, submission) else components.attack_file(attack)


def own_attack(attack: str, submission: str | None) -> bool:
    """Whether the submission named has a file of its own for the attack."""
    return bool(submission) and (submissions.FOLDER / str(submission) / f"{attack}.py").exists()


def attack(name: str, submission: str) -> ModuleType:
    """An attack brought against a submission, as a module: its own file, guarded, or one of benchmark/attacks.

    A file of its own is a stranger's: it gets a copy of the model, so that nothing that it changes there can pass for a
    broken image; torch's seed is set before it runs; what it raises becomes a BenchmarkError with its place and words.
    """
    path = attack_file(name, submission)
    if path.parent != submissions.FOLDER / submission:
        return importlib.import_module(f"benchmark.attacks.{name}")
    module = own_code.load(path)
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

        with own_code.asked(path, "the model cannot be copied for the attack"):
            model = copy.deepcopy(model)
        torch.manual_seed(seed)
        with own_code.asked(path, "the attack failed"):
            found = attack(model, images.clone(), labels.clone(), threat, seed=seed, **options)
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


def pretrained(submission: Submission, variant: str, track: Track, path: Path | None) -> nn.Module:
    """The model with weights that were trained elsewhere, by the method's `pretrained(data, path, **model)`: from the
    checkpoint file at `path`, or from wherever the method finds it. Raises as `build` does.
    """
    if not callable(getattr(method(submission.name), "pretrained", None)):
        file = submissions.FOLDER / submission.name / "method.py"
        raise BenchmarkError(f"{file} must define pretrained(data, path, **model), since a variant has `weights`")
    entry = submissions.settings(submission, variant, track.name)
    return build_model(submission, entry, track, "pretrained", path)


def build_model(
    submission: Submission, entry: VariantOnTrack, track: Track, maker: str = "build", *given: object
) -> nn.Module:
    """As `build` by settings, which may be those of no variant; by another `maker` of method.py that is `given` more."""
    path = submissions.FOLDER / submission.name / "method.py"
    make = getattr(method(submission.name), maker)
    with own_code.followed(path), own_code.asked(path, f"{maker} failed"):
        model = make(track.data, *given, **entry.model)
    check_output(model, submission.name, track)
    return model


def check_output(model: object, name: str, track: Track) -> None:
    """Forward passes of two grey images and of one: shape (n, classes), finite, and the images left as they were.

    Raises:
        BenchmarkError: otherwise.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise BenchmarkError(f"submissions/{name}: build returned {type(model).__name__}, not a torch module")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model.eval()
    for count, words in ((2, "two images"), (1, "one image")):
        images = torch.full((count, *track.data.shape), 0.5, device=device)
        path = submissions.FOLDER / name / "method.py"
        with own_code.asked(path, f"the model fails on {words}"), torch.no_grad():
            logits = model(images)
        wanted = (count, track.data.classes)
        if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != wanted:
            shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            gives = "give" if count > 1 else "gives"
            raise BenchmarkError(f"submissions/{name}: {words} {gives} {shape}; logits of shape {wanted} are needed")
        if not torch.isfinite(logits).all():
            raise BenchmarkError(f"submissions/{name}: the model's logits are not finite (NaN or infinity)")
        if not (images == 0.5).all():
            raise BenchmarkError(
                f"submissions/{name}: the model changes its input in place; let it make a new tensor, such as "
                "`x = x - mean` for `x -= mean`, or begin with `x = x.clone()`"
            )
