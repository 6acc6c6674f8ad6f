"""Submissions: loaded, validated, listed. A submission is a folder; there is no registry."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from benchmark.runtime import code, files
from benchmark.runtime.errors import BenchmarkError, near_miss, unless_broken
from benchmark.runtime.yaml_file import read_model
from benchmark.specs import components, tracks
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.threat import passes_for_autoattack

FOLDER = Path("submissions")


def names() -> list[str]:
    return sorted({path.parent.name for path in FOLDER.glob("*/submission.y*ml")})


def load(name: str) -> Submission:
    """Return the submission of this name.

    Raises:
        BenchmarkError: an unknown submission (the near miss is suggested), no method.py, a file that is no Python or
            has an odd name, an unknown key, a bad value, a link that leads out of the folder, or a file with the name of
            an objective or penalty of the benchmark, for which it could pass.
    """
    folder = FOLDER / name
    path = folder / "submission.yaml"
    if path.with_suffix(".yml").exists():
        _check_file(path, ", but submission.yml is there; rename it")
    if not path.exists():
        if folder.name == name and folder.is_dir():
            _check_file(path, "")
        raise BenchmarkError(f"unknown submission {name!r}{near_miss(name, names())}")
    _check_links(folder)
    _check_file(path, "")
    submission = read_model(path, Submission, files.version(path))
    if submission.name != name:
        raise BenchmarkError(f"{folder}/submission.yaml names itself {submission.name!r}; it must match its folder")
    _check_file(folder / "method.py", "; it must define build(data, **model)")
    for path in sorted(folder.glob("*.py")):
        if not re.fullmatch("[A-Za-z0-9_]+", path.stem):
            raise BenchmarkError(f"{folder}: name the file {path.name!a} by letters a to z, digits and '_' only")
        _check_file(path, "")
        code.check(path)
        if kind := components.taken(path.stem):
            raise BenchmarkError(f"{path} has the name of the benchmark's {kind} {path.stem}; rename the file")
    _check_parts(submission)
    return submission


def _check_links(folder: Path) -> None:
    """Raise BenchmarkError for a link out of the folder. Its files are read and hashed: a link could lead to
    anybody's, or to an endless one.
    """
    for path in folder.rglob("*"):
        if path.is_symlink():
            if not path.exists():
                raise BenchmarkError(f"{path} is a link that leads nowhere; put the file itself there")
            if not path.resolve().is_relative_to(folder.resolve()):
                raise BenchmarkError(f"{path} is a link that leads out of its submission; put the file itself there")


def _check_file(path: Path, hint: str) -> None:
    if not path.is_file():
        what = "is no file" if path.exists() else "is missing"
        raise BenchmarkError(f"{path} {what}{hint}")


def method_files(name: str) -> list[Path]:
    """Return method.py and the data files that it may read.

    Data is every file of the folder except code, text, studies and settings. Code is followed by its imports.
    """
    folder = FOLDER / name
    data = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith((".", "__pycache__")) for part in parts)
        if not hidden and path.suffix not in (".py", ".md") and parts[0] not in ("studies", "submission.yaml"):
            data.append(path)
    return [folder / "method.py", *data]


def load_all() -> list[Submission]:
    """Return every submission that loads; name the others on stderr."""
    loaded = [unless_broken(str(FOLDER / name), partial(load, name)) for name in names()]
    return [submission for submission in loaded if submission is not None]


def _check_parts(submission: Submission) -> None:
    """Raise BenchmarkError unless every track and component that the variants name exists. No code is imported."""
    folder = FOLDER / submission.name
    for variant_name, variant in submission.variants.items():
        for track, entry in variant.tracks.items():
            place = f"{folder}/submission.yaml: variant {variant_name} on {track}"
            if track not in tracks.names():
                raise BenchmarkError(f"{place}: no track named {track!r}{near_miss(track, tracks.names())}")
            check_settings(entry, submission.name, place)
            own = components.names("attacks", folder) if entry.adaptive else set()
            for name in (spec.attack for spec in entry.adaptive):
                _check_name(name, f"{place}: adaptive")
                if name not in (attacks := own | components.names("attacks")):
                    raise BenchmarkError(f"{place}: adaptive: no attack named {name!r}{near_miss(name, attacks)}")
                if name in own and passes_for_autoattack(name):
                    raise BenchmarkError(f"{place}: its own {name}.py would pass for AutoAttack; rename the file")


def check_settings(entry: VariantOnTrack, submission: str, place: str) -> None:
    """Raise BenchmarkError, which names the `place`, for a component, or a certificate, that no file defines."""
    parts = components.recipe_parts(entry.training) if entry.training else []
    for kind, part in [*parts, *([("certificates", entry.certificate.name)] if entry.certificate else [])]:
        check_part(kind, part, place, submission)


def check_part(kind: str, part: str, place: str, submission: str = "") -> None:
    """Raise BenchmarkError for a component that is neither the benchmark's nor, where it may be, the submission's own.

    `kind` is a key of `components.ENTRIES`. No code is imported.
    """
    folder = FOLDER / submission if submission and kind in components.OWN else None
    _check_name(part, place)
    if not components.defines(file := components.component_file(kind, part, folder), kind):
        if folder and file.is_file():
            lines = " or ".join(f"`{start}`" for start in components.starts(kind))
            raise BenchmarkError(f"{place}: {file} has no line {lines}, so it is no {components.ENTRIES[kind][1]}")
        present = components.names(kind) | (components.names(kind, folder) if folder else set())
        raise BenchmarkError(f"{place}: no {components.ENTRIES[kind][1]} named {part!r}{near_miss(part, present)}")


def _check_name(part: str, place: str) -> None:
    """Raise BenchmarkError for a component with the name of a test, whose code `rvb check` does not look at."""
    if part.startswith("test_"):
        raise BenchmarkError(f"{place}: {part!r} is the name of a test, not of a component; rename its file")


def settings(submission: Submission, variant: str, track: str, option: str = "--track {}") -> VariantOnTrack:
    """Return a variant's settings on a track; raise a BenchmarkError where it has none, with the `option` for another."""
    if variant not in submission.variants:
        raise BenchmarkError(f"{submission.name} has no variant {variant!r}{near_miss(variant, submission.variants)}")
    entry = submission.variants[variant].tracks.get(track)
    if entry is None:
        entered = sorted(submission.variants[variant].tracks)
        where = f"{' and '.join(entered)}: give {' or '.join(map(option.format, entered))}" if entered else "none"
        raise BenchmarkError(f"{submission.name}-{variant} is not on track {track}; it is on {where}")
    return entry


def rows(track: str) -> list[tuple[Submission, str]]:
    """Return (submission, variant) of every row of a track's board, in order of the submissions."""
    return [(s, v) for s in load_all() for v, variant in sorted(s.variants.items()) if track in variant.tracks]
