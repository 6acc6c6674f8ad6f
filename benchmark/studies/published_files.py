"""The published studies of a track, as files."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from benchmark.results.study import PublishedStudy
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED


def published_file(track: str, study: str) -> Path:
    """Return the file of a study, named `<submission>-<study>`."""
    return PUBLISHED / track / "studies" / f"{study}.json"


def published_files(track: str) -> list[Path]:
    """Return the files of all published studies of a track, in order."""
    return sorted((PUBLISHED / track / "studies").glob("*.json"))


def read_published(path: Path) -> PublishedStudy:
    """Return a published study.

    Raises:
        BenchmarkError: the file is missing or damaged.
    """
    again = "bring it back with git, or publish the study again"
    content = files.read_json(path, again)
    try:
        return PublishedStudy.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BenchmarkError(f"{path} is no published study ({place}: {first['msg']}); {again}") from None
