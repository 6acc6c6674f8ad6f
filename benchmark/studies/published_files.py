"""The published studies of a track, as files named `<submission>-<study>.json`."""

from __future__ import annotations

from pathlib import Path

from benchmark.results.study import PublishedStudy
from benchmark.runtime import files
from benchmark.runtime.paths import PUBLISHED


def published_files(track: str) -> list[Path]:
    return sorted((PUBLISHED / track / "studies").glob("*.json"))


def read_published(path: Path) -> PublishedStudy:
    """Return a published study. Raise a BenchmarkError for a damaged file."""
    return files.read_model(path, PublishedStudy, "bring it back with git, or publish the study again")
