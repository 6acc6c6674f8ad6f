"""Reading the data of the pages. A BenchmarkError names a file that is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from pydantic import RootModel

from benchmark.records.contributed import FOLDER, Scores, lowered_all
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record, on_other_images
from benchmark.records.robustbench import ClaimedBoard
from benchmark.records.study import DeclaredPaper, PublishedStudy
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import Track
from leaderboard.rank import Row, rank

Papers = RootModel[dict[str, DeclaredPaper]]


def read_track(name: str) -> Track:
    return Track.model_validate({"name": name, **yaml.safe_load(Path(f"benchmark/tracks/{name}.yaml").read_text())})


def published_places(folder: Path) -> dict[str, tuple[Path, Path | None]]:
    """Return by row its published Record and its verdicts by image, None where there are none.

    Args:
        folder: the track's folder in leaderboard/results.
    """
    records = sorted(folder.glob("*-*.json"))  # <submission>-<variant>; no other file there has a hyphen
    images = [folder / "images" / path.name for path in records]
    return {record.stem: (record, path if path.exists() else None) for record, path in zip(records, images, strict=True)}


def read_rows(
    track: Track,
    places: Iterable[tuple[Path, Path | None]],
    published: Path,
    studies: Sequence[PublishedStudy],
    again: str = "delete the row's folder and run `rvb repro`",
) -> tuple[list[Row], dict[str, Scores]]:
    """Return the rows in the order of the board, and their verdicts by row and number, with contributed attacks counted.

    Args:
        places: of each row its Record and its verdicts by image, None where those are unknown.
        published: the track's folder in leaderboard/results.
        again: what to do about a damaged file.
    """
    records, images = [], {}
    for place, by_image in places:
        record = files.read_model(place, Record, again)
        records.append(record)
        if by_image:
            images[record.row] = files.read_model(by_image, PerImage, again).scores
    if words := on_other_images(records):
        raise BenchmarkError(words)
    lowered, scores, contributions = lowered_all(published / FOLDER, records, images)
    return rank(lowered, track, scores, studies, contributions), scores


def read_claimed(folder: Path) -> list[ClaimedBoard]:
    """Return what other boards say of the same data, by file."""
    return [files.read_model(path, ClaimedBoard, "import it again or delete it") for path in sorted(folder.glob("*.json"))]


def read_papers(path: Path) -> dict[str, DeclaredPaper]:
    """Return by submission what it declares on the track."""
    return files.read_model(path, Papers).root
