"""What the pages are made of, read and checked: one line says what is wrong with a file."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from benchmark.results.per_image import PerImage
from benchmark.results.record import Record
from benchmark.results.robustbench import ClaimedBoard
from benchmark.results.study import DeclaredPaper
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError

DECLARED = TypeAdapter(dict[str, DeclaredPaper])


def read_record(path: Path) -> Record:
    """A record; exits with one line when it is missing or not one."""
    return _read(path, Record, "delete it and run `rvb repro`")


def read_images(path: Path, again: str = "delete the row's folder and run `rvb repro`") -> dict[str, str]:
    """By name of a number, a digit an image; exits with one line when the file is missing or damaged."""
    return read_per_image(path, again).scores


def read_per_image(path: Path, again: str) -> PerImage:
    """A row's verdicts and radii by image; exits with one line when the file is missing or damaged."""
    return _read(path, PerImage, again)


def read_claimed(folder: Path) -> list[ClaimedBoard]:
    """What other boards say, by file; exits with one line when a file is not such a board."""
    return [_read(path, ClaimedBoard, "import it again or delete it") for path in sorted(folder.glob("*.json"))]


def _read(path: Path, model: type[files.Model], again: str) -> files.Model:
    try:
        return files.read_model(path, model, again)
    except BenchmarkError as error:
        sys.exit(f"error: {error}")


def read_papers(path: Path) -> dict[str, DeclaredPaper]:
    """By submission what it declares on the track; exits with one line when the file is missing or damaged."""
    try:
        return DECLARED.validate_json(path.read_text())
    except FileNotFoundError:
        sys.exit(f"error: {path} is missing; run `rvb repro` to build it")
    except ValidationError as error:
        sys.exit(f"error: {path} holds no papers ({error.errors()[0]['msg']}); delete it and run `rvb repro`")
