"""leaderboard/results/<track>: what git keeps of published rows, and what has to hold of it.

Beside each Record, weights/<row>.safetensors has its weights, up to LARGEST bytes, images/<row>.json its numbers image by
image, and broken/<row>.json what others' adversarial images broke since; machine.json says on what each row was computed,
times.json how long its steps took, and track.json by which rules of the track.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.loading import tracks
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED, WORK

if TYPE_CHECKING:
    from benchmark.results.per_image import PerImage
    from benchmark.results.record import Record
    from benchmark.results.regression import Built

CHANGELOG = Path("CHANGELOG.md")
LARGEST = 16 * 2**20  # bytes of weights that git keeps of a row
HEADING = "## Published Records\n"
AGAIN = "bring it back with git, or publish it again"


def published_row(track: str, row: str) -> Built | None:
    """None where it is not published."""
    from benchmark.results.record import Record
    from benchmark.results.regression import Built

    folder = PUBLISHED / track
    if not (folder / f"{row}.json").exists():
        return None
    record = files.read_model(folder / f"{row}.json", Record, AGAIN)
    return Built(record, _images(folder / "images" / f"{row}.json", AGAIN), machines(track).get(row))


def built_row(track: str, row: str) -> Built | None:
    """As it was computed on this machine; None where it was not."""
    from benchmark.results.record import Record
    from benchmark.results.regression import Built
    from benchmark.runtime.machine import machine

    folder = WORK / track / row / "record"
    if not (folder / "record.json").exists():
        return None
    images = _images(folder / "per_image.json", "delete its folder and run `rvb repro`")
    return Built(files.read_model(folder / "record.json", Record), images, machine())


def published_tracks() -> list[str]:
    """Return the tracks on which rows are published, in order."""
    return sorted(folder.name for folder in PUBLISHED.glob("*") if published_rows(folder.name))


def published_rows(track: str) -> list[str]:
    return sorted(path.stem for path in (PUBLISHED / track).glob("*-*.json"))


def counted(track: str, record: Record, images: Path) -> tuple[Record, str]:
    """A Record as the board counts it, less what others' adversarial images broke, and who brought them; `images` are its
    numbers by image.
    """
    from benchmark.results import brought

    found = brought.read(PUBLISHED / track / brought.FOLDER, record)
    if not found:
        return record, ""
    scores = _images(images, AGAIN)
    made, _ = brought.lowered(record, scores.scores if scores else None, found)
    return made, ", ".join(dict.fromkeys(one.credit for one in found))


def write(track: str, rows: dict[str, Built]) -> list[Path]:
    """Publishes rows; the files written."""
    from benchmark.specs.base import to_json

    folder, kept = PUBLISHED / track, machines(track)
    written = []
    for row, built in rows.items():
        assert built.images is not None  # checked by who publishes
        assert built.machine is not None
        _write_weights(track, row, built.record.sha256["weights"])
        files.write(folder / "images" / f"{row}.json", to_json(built.images))
        files.write(folder / f"{row}.json", to_json(built.record))
        kept[row] = dict(built.machine)
        written += [folder / f"{row}.json", folder / "images" / f"{row}.json"]
    files.write_json(folder / "machine.json", kept)
    files.write_json(folder / "track.json", rules(track))
    return written


def _write_weights(track: str, row: str, wanted: str) -> None:
    """Copy a row's weights beside its Record; those of another build go, and larger ones are left out.

    Raises:
        BenchmarkError: the weights in work/ are not the Record's.
    """
    from benchmark.commands.terminal import console

    made, kept = WORK / track / row / "train/model.safetensors", PUBLISHED / track / "weights" / f"{row}.safetensors"
    if made.exists() and files.sha256_file(made) != wanted:
        raise BenchmarkError(f"{made} is not what the Record was made of; run `rvb repro {row} --track {track}`")
    if kept.exists() and files.sha256_file(kept) != wanted:
        kept.unlink()
    if not made.exists() or kept.exists():
        return
    if made.stat().st_size > LARGEST:
        size = made.stat().st_size / 2**20
        console.print(
            f"{row}: its weights have {size:.0f} MiB and are not published; benchmark.load_model wants it built"
        )
        return
    files.write(kept, made.read_bytes())


def machines(track: str) -> dict[str, dict[str, str]]:
    """On what each row was computed; empty where none is published.

    Raises:
        BenchmarkError: the file is damaged.
    """
    path = PUBLISHED / track / "machine.json"
    if not path.exists():
        return {}
    again = "bring it back with git, or delete it and publish the rows again"
    content = files.read_json(path, again)
    if not isinstance(content, dict) or not all(isinstance(one, dict) for one in content.values()):
        raise BenchmarkError(f"{path} holds no machines by row; {again}")
    return content


def rules(track: str) -> dict[str, Any]:
    """All of a track that its numbers depend on."""
    words = {"development", "title", "description", "robustbench"}
    return tracks.load(track).model_dump(mode="json", exclude=words)


def changed_rules(track: str) -> str:
    """What of the track's rules is not as published although its version is; "" where nothing is."""
    path = PUBLISHED / track / "track.json"
    before, now = files.read_json(path, AGAIN) if path.exists() else {}, rules(track)
    if before.get("version") != now["version"]:
        return ""
    names = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if not names:
        return ""
    return (
        f"track {track} has other {', '.join(names)} than version {now['version']} was published with; "
        "raise its version and say in CHANGELOG.md what changed, or take the change back"
    )


def faults(track: str, rows: Iterable[str]) -> list[str]:
    """What is wrong with these published rows of a track, in words: rules that changed without a version, a Record that its
    images do not add up to, a reason that CHANGELOG does not give.
    """
    from benchmark.results.per_image import contradictions

    found = [fault] if (fault := changed_rules(track)) else []
    said = CHANGELOG.read_text() if CHANGELOG.exists() else ""
    for row in rows:
        one = published_row(track, row)
        if one is None:
            continue
        if one.images is None:
            found.append(f"{row} is published without its images; publish it again")
        else:
            found += [f"{row}: {words}; {AGAIN}" for words in contradictions(one.record, one.images)]
        if one.record.reason and one.record.reason not in said:
            found.append(f"{row} was published anew for a reason that {CHANGELOG} does not give: {one.record.reason}")
    return found + _stale_brought(track)


def _stale_brought(track: str) -> list[str]:
    """What was brought against networks or rows that are no longer the published ones."""
    from benchmark.results import brought

    found = []
    for path in sorted((PUBLISHED / track / brought.FOLDER).glob("*.json")):
        one = published_row(track, path.stem)
        if why := brought.stale(brought.load(path), one.record if one else None):
            found.append(f"{path} holds {why}; bring them again, or delete the file")
    return found


def note_reason(track: str, rows: list[str], reason: str) -> None:
    """Writes into CHANGELOG why published rows moved, the newest first."""
    text = CHANGELOG.read_text() if CHANGELOG.exists() else "# Changelog\n"
    line = f"- {track}, {', '.join(rows)}: {reason}\n"
    if HEADING in text:
        head, rest = text.split(HEADING, 1)
        gap = "" if rest.lstrip().startswith("- ") else "\n"
        text = f"{head}{HEADING}\n{line}{gap}{rest.lstrip()}"
    else:
        text = f"{text.rstrip()}\n\n{HEADING}\n{line}"
    files.write(CHANGELOG, text)


def _images(path: Path, again: str) -> PerImage | None:
    """None where there is no such file."""
    from benchmark.results.per_image import PerImage

    return files.read_model(path, PerImage, again) if path.exists() else None
