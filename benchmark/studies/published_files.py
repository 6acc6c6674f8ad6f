"""The published studies of a track, as files named `<submission>-<study>.json`."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from benchmark.results.study import PublishedStudy
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED


def published_files(track: str) -> list[Path]:
    return sorted((PUBLISHED / track / "studies").glob("*.json"))


def read_published(path: Path) -> PublishedStudy:
    """Return a published study. Raise a BenchmarkError for a damaged file."""
    again = "bring it back with git, or publish the study again"
    try:
        return PublishedStudy.model_validate(files.read_json(path, again))
    except ValidationError as error:
        raise BenchmarkError(f"{path} is no published study ({error.errors()[0]['msg']}); {again}") from None
