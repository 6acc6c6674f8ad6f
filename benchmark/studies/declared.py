"""Papers and studies that submissions declare on a track, for the board, which cannot read submissions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.records.study import DeclaredPaper
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.specs import submissions
from benchmark.studies.grids import Grid


def declared_papers(track: str, grids: Sequence[Grid]) -> dict[str, Any]:
    """Return what each submission with a row or a study on `track` declares there, as JSON; `grids` are its studies."""
    owners = {owner.name: owner for owner, _ in submissions.rows(track)}
    owners |= {grid.submission.name: grid.submission for grid in grids}
    papers = {}
    for name, owner in sorted(owners.items()):
        studies = {grid.name: grid.study for grid in grids if grid.submission.name == name}
        paper = DeclaredPaper(summary=owner.summary, paper=owner.paper, claims=owner.claims, studies=studies)
        papers[name] = paper.model_dump(mode="json")
    return papers


def papers_file(track: str) -> Path:
    """Return the file in which the board finds what submissions declare."""
    return WORK / track / "inputs" / "papers.json"


def published_files(track: str) -> list[Path]:
    """Return the published studies of a track, `<submission>-<study>.json`."""
    return sorted((PUBLISHED / track / "studies").glob("*.json"))
