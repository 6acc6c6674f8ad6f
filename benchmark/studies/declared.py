"""What the board, which cannot read submissions, is given of a track's papers and studies: declared, and published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.records.study import DeclaredPaper, PublishedStudy
from benchmark.runtime import files
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.specs import submissions
from benchmark.studies.grids import Grid


def declared_papers(track: str, grids: Sequence[Grid]) -> dict[str, Any]:
    """By submission with a row or a study on `track`, as JSON values, what it declares there; `grids` are its studies."""
    owners = {owner.name: owner for owner, _ in submissions.rows(track)}
    owners |= {grid.submission.name: grid.submission for grid in grids}
    found = {}
    for name, owner in sorted(owners.items()):
        studies = {grid.name: grid.study for grid in grids if grid.submission.name == name}
        declared = DeclaredPaper(summary=owner.summary, paper=owner.paper, claims=owner.claims, studies=studies)
        found[name] = declared.model_dump(mode="json")
    return found


def papers_file(track: str) -> Path:
    """Where the board finds them."""
    return WORK / track / "inputs" / "papers.json"


def published_files(track: str) -> list[Path]:
    """The published studies of a track, `<submission>-<study>.json`."""
    return sorted((PUBLISHED / track / "studies").glob("*.json"))


def read_published(path: Path) -> PublishedStudy:
    """Return a published study. Raise a BenchmarkError for a damaged file."""
    return files.read_model(path, PublishedStudy, "bring it back with git, or publish the study again")
