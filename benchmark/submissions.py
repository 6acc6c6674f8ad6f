"""The only reader of submissions/: load, validate, list. A submission is a folder; there is no registry."""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from benchmark.errors import BenchmarkError, explain, near_miss
from benchmark.records import Submission, Track, VariantOnTrack
from benchmark.threats import passes_for_autoattack
from benchmark.tracks import names as track_names
from benchmark.tracks import read_yaml

FOLDER = Path("submissions")


def names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("*/submission.yaml"))


def load(name: str) -> Submission:
    """The submission of this name.

    Raises:
        BenchmarkError: unknown submission, no method.py, an unknown key (the near miss is suggested), or a bad value.
    """
    folder = FOLDER / name
    if not (folder / "submission.yaml").exists():
        raise BenchmarkError(f"unknown submission {name!r}{near_miss(name, names())}")
    try:
        submission = Submission.model_validate(read_yaml(folder / "submission.yaml"))
    except ValidationError as error:
        raise explain(error, Submission, str(folder / "submission.yaml")) from None
    if submission.name != name:
        raise BenchmarkError(f"{folder}/submission.yaml names itself {submission.name!r}; it must match its folder")
    if not (folder / "method.py").exists():
        raise BenchmarkError(f"{folder} has no method.py; it must define build(data, **model)")
    _check_parts(submission)
    return submission


def load_all() -> list[Submission]:
    return [load(name) for name in names()]


def _check_parts(submission: Submission) -> None:
    """Every track, objective, attack and certificate that the variants name must be a file that exists."""
    for variant_name, variant in submission.variants.items():
        for track, entry in variant.tracks.items():
            place = f"submissions/{submission.name}/submission.yaml: variant {variant_name} on {track}"
            check_part("tracks", track, place)
            check_settings(entry, place)
            own = _defining("attack", FOLDER / submission.name) if entry.adaptive else set()
            for spec in entry.adaptive:
                if spec.attack not in own | _parts("attacks"):
                    near = near_miss(spec.attack, own | _parts("attacks"))
                    raise BenchmarkError(f"{place}: adaptive: no attack file named {spec.attack!r}{near}")
                if spec.attack in own and passes_for_autoattack(spec.attack):
                    raise BenchmarkError(
                        f"{place}: its own {spec.attack}.py would pass for AutoAttack; rename the file"
                    )


def check_settings(entry: VariantOnTrack, place: str) -> None:
    """A BenchmarkError, which says at what `place`, for an objective, attack or certificate of which there is no file."""
    check_part("training", entry.training.objective, place)
    for spec in entry.training.attacks:
        check_part("attacks", spec.attack, place)
    if entry.certificate:
        check_part("certificates", entry.certificate.name, place)


def check_part(kind: str, part: str, place: str) -> None:
    """The same of one: `kind` is tracks, training, attacks or certificates."""
    known = _parts(kind)
    if part not in known:
        raise BenchmarkError(f"{place}: no {kind} file named {part!r}{near_miss(part, known)}")


def _parts(kind: str) -> set[str]:
    """The names that a submission may use: tracks, or the files that define the entry point of their kind."""
    if kind == "tracks":
        return set(track_names())
    entry = {"training": "objective", "attacks": "attack", "certificates": "certify"}[kind]
    return _defining(entry, Path("benchmark") / kind)


def _defining(entry: str, folder: Path) -> set[str]:
    """The files of a folder, by name, that define `entry`."""
    return {path.stem for path in folder.glob("*.py") if f"\ndef {entry}(" in "\n" + path.read_text()}


def settings(submission: Submission, variant: str, track: str) -> VariantOnTrack:
    """What `variant` needs on `track`; a BenchmarkError for an unknown variant or one that does not enter the track."""
    if variant not in submission.variants:
        raise BenchmarkError(f"{submission.name} has no variant {variant!r}{near_miss(variant, submission.variants)}")
    entry = submission.variants[variant].tracks.get(track)
    if entry is None:
        known = submission.variants[variant].tracks
        raise BenchmarkError(f"{submission.name} {variant} does not enter track {track!r}{near_miss(track, known)}")
    return entry


def rows(track: str) -> list[tuple[Submission, str]]:
    """(submission, variant) of every row of a track's board, in order: the submissions say so, not files on disk."""
    return [(s, v) for s in load_all() for v, variant in sorted(s.variants.items()) if track in variant.tracks]


def method(name: str) -> ModuleType:
    """The submission's method.py as a module; a BenchmarkError when it does not import or lacks `build`."""
    path = FOLDER / name / "method.py"
    module = _module(path)
    if not callable(getattr(module, "build", None)):
        raise BenchmarkError(f"{path} must define build(data, **model) returning a torch module")
    return module


def module(name: str, file: str) -> ModuleType:
    """Another file of the submission, such as `measures`, as a module; a BenchmarkError when it does not import."""
    return _module(FOLDER / name / f"{file}.py")


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
    own = FOLDER / submission / f"{attack}.py"
    return own if submission and own.exists() else Path("benchmark/attacks") / f"{attack}.py"


def attack(name: str, submission: str) -> ModuleType:
    """An attack brought against a submission, as a module: its own file, guarded, or one of benchmark/attacks.

    A file of its own is a stranger's: it gets a copy of the model, so that nothing that it changes there can pass for a
    broken image; torch's seed is set before it runs; what it raises becomes a BenchmarkError with its place and words.
    """
    path = attack_file(name, submission)
    if path.parent != FOLDER / submission:
        return importlib.import_module(f"benchmark.attacks.{name}")
    module = _module(path)
    module.__dict__["attack"] = _guarded(module.attack, path)
    return module


def _guarded(attack: Callable, path: Path) -> Callable:
    @functools.wraps(attack)
    def guarded(model, images, labels, threat, *, seed: int, **options):
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


def build(submission: Submission, variant: str, track: Track):
    """A fresh, untrained model (torch.nn.Module): images (n, c, h, w) in [0, 1] to logits (n, classes).

    Raises:
        BenchmarkError: build refuses its options, or the model returns a wrong shape or something that is not finite.
    """
    return build_model(submission, settings(submission, variant, track.name), track)


def build_model(submission: Submission, entry: VariantOnTrack, track: Track):
    """The same by settings, which may be those of no variant."""
    options = entry.model
    try:
        model = method(submission.name).build(track.data, **options)
    except Exception as error:  # a stranger's code: whatever it raises, the user needs its place and its words
        place = _place(FOLDER / submission.name / "method.py", error)
        raise BenchmarkError(f"{place}: build failed: {_words(error)}") from error
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


def check_output(model, name: str, track: Track) -> None:
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
        place = _place(FOLDER / name / "method.py", error)
        raise BenchmarkError(f"{place}: the model fails on two images: {_words(error)}") from error
    wanted = (2, track.data.classes)
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != wanted:
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise BenchmarkError(f"submissions/{name}: two images give {shape}; logits of shape {wanted} are needed")
    if not torch.isfinite(logits).all():
        raise BenchmarkError(f"submissions/{name}: the model's logits are not finite (NaN or infinity)")
