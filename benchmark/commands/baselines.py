"""Read rows from disk: built here in work/, or published in leaderboard/results/<track>.

Beside each published Record, weights/<row>.safetensors has its weights, images/<row>.json its numbers image by image, and
broken/<row>.json what contributed adversarial images broke. machine.json names each row's machine, times.json has the times
of its steps, and track.json the rules of the track.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from benchmark.records import contributed
from benchmark.records.per_image import PerImage, contradictions
from benchmark.records.record import Record, on_other_images
from benchmark.records.regression import Built
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.specs import tracks

CHANGELOG = Path("CHANGELOG.md")
AGAIN = "bring it back with git, or publish it again"


def published(track: str, rows: Iterable[str] | None = None) -> dict[str, Built]:
    """Return these rows of a track, or all, as far as they are published."""
    names = published_rows(track) if rows is None else rows
    return {row: made for row in names if (made := published_row(track, row))}


def published_row(track: str, row: str) -> Built | None:
    """Return a row as it is published; None where it is not."""
    folder = PUBLISHED / track
    made = _read(row, folder / f"{row}.json", folder / "images" / f"{row}.json", AGAIN)
    return made and replace(made, machine=machines(track).get(row, {}))


def lacks_images(track: str, row: str) -> bool:
    """Return whether a row's Record is published without its numbers by image."""
    folder = PUBLISHED / track
    return (folder / f"{row}.json").exists() and not (folder / "images" / f"{row}.json").exists()


def built(track: str, rows: Iterable[str]) -> dict[str, Built]:
    """Return these rows as far as they are built here."""
    return {row: made for row in rows if (made := built_row(track, row))}


def built_row(track: str, row: str) -> Built | None:
    """Return a row as it was built here, with this machine; None where it was not."""
    if (made := built_numbers(track, row)) is None:
        return None
    from benchmark.runtime.machine import machine  # imports torch

    return replace(made, machine=machine())


def built_numbers(track: str, row: str, *, bare: bool = False) -> Built | None:
    """Return the same without the machine, whose query imports torch; `bare`: also where no image's numbers are there."""
    folder = WORK / track / row / "record"
    return _read(row, folder / "record.json", folder / "per_image.json", "delete it and run `rvb repro`", bare)


def _read(row: str, record: Path, images: Path, again: str, bare: bool = False) -> Built | None:
    """Return what two files hold; None without the first. With `bare` the second may be missing: then no number is by image.

    Raise a BenchmarkError where one is damaged, or of another row.
    """
    if not record.exists():
        return None
    nothing = bare and not images.exists()
    by_image = PerImage(row=row, scores={}) if nothing else files.read_model(images, PerImage, again)
    made = Built(files.read_model(record, Record, again), by_image)
    for path, own in ((record, made.record.row), (images, made.images.row)):
        if own != row:
            raise BenchmarkError(f"{path} is of the row {own!r}, not of {row}; {again}")
    return made


def attempted(read: Callable[[str, str], Built | None], track: str, row: str) -> Built | BenchmarkError | None:
    """Return what `read` returns or raises, so that one damaged row does not stop the others."""
    try:
        return read(track, row)
    except BenchmarkError as error:
        return error


def published_tracks() -> list[str]:
    """Return the tracks on which rows are published, in order."""
    return sorted(folder.name for folder in PUBLISHED.glob("*") if published_rows(folder.name))


def published_rows(track: str) -> list[str]:
    return sorted(path.stem for path in (PUBLISHED / track).glob("*-*.json"))


def counted(track: str, row: Built) -> tuple[Record, str]:
    """Return a Record as the board counts it, without images that contributed attacks broke, and whom to credit for those."""
    broken = contributed.read(PUBLISHED / track / contributed.FOLDER, row.record)
    record, _ = contributed.lowered(row.record, row.images.scores, broken)
    return record, ", ".join(dict.fromkeys(file.credit for file in broken))


def machines(track: str) -> dict[str, dict[str, str]]:
    """Return the machine that computed each published row. Raise a BenchmarkError for a damaged file."""
    path = PUBLISHED / track / "machine.json"
    again = "bring it back with git, or delete it and publish the rows again"
    return files.read_model(path, dict[str, dict[str, str]], again) if path.exists() else {}


class _Rules(BaseModel, extra="allow"):
    """Published rules of a track: a version, and other rules as they were named then."""

    version: int


def changed_rules(track: str) -> list[str]:
    """Return what is wrong where the track's rules differ from the published ones of the same version."""
    path = PUBLISHED / track / "track.json"
    before = files.read_model(path, _Rules, AGAIN).model_dump() if path.exists() else {}
    now = tracks.load(track).rules
    names = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if not names or before.get("version") != now["version"]:
        return []
    return [
        f"track {track} has other {', '.join(names)} than version {now['version']} was published with; "
        "raise its version and say in CHANGELOG.md what changed, or take the change back"
    ]


def check(track: str, rows: Iterable[str]) -> None:
    """Raise a BenchmarkError for the first fault of published rows.

    Faults are: rules that changed without a new version, a damaged or missing file, a Record that its images do not add up
    to, a reason that CHANGELOG does not give, and images contributed against other networks.
    """
    faults, records = changed_rules(track), []
    told = CHANGELOG.read_text() if CHANGELOG.exists() else ""
    for name in rows:
        row = attempted(published_row, track, name)
        if isinstance(row, BenchmarkError):
            faults.append(str(row))
        if not isinstance(row, Built):
            continue
        records.append(row.record)
        faults += [f"{name}: {fault.words}; {AGAIN}" for fault in contradictions(row.record, row.images)]
        if row.record.reason not in told:
            faults.append(f"{name} was published anew for a reason that {CHANGELOG} does not give: {row.record.reason}")
    faults += [words] if (words := on_other_images(records)) else []
    for path in sorted((PUBLISHED / track / contributed.FOLDER).glob("*.json")):
        made = attempted(published_row, track, path.stem)
        if isinstance(made, BenchmarkError):
            faults.append(str(made))
        elif why := contributed.stale(contributed.load(path), made.record if made else None):
            faults.append(f"{path} holds {why}; bring them again, or delete the file")
    faults = list(dict.fromkeys(faults))  # a damaged file is read for several rows
    if faults:
        raise BenchmarkError(faults[0] + (f" (and {len(faults) - 1} faults more)" if faults[1:] else ""))
