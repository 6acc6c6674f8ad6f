"""Which published studies are not today's, and why."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from benchmark.results.study import PublishedStudy
from benchmark.results.study_age import StudyToday, reasons
from benchmark.runtime import code, files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.studies import checks, grids
from benchmark.studies.grids import Grid


def ages(track: str) -> dict[str, list[str]]:
    """Each published study of `track` by `<submission>-<study>`, with why it is not today's: nothing where it is.

    Data that are not prepared here are not compared.

    Raises:
        BenchmarkError: a published study that is damaged, or the file of one that does not load.
    """
    return {study.result.id: _age(study, track) for study in map(read_published, published_files(track))}


def ages_file(track: str) -> Path:
    """Where the board finds them."""
    return WORK / track / "inputs" / "study_ages.json"


def published_files(track: str) -> list[Path]:
    return sorted((PUBLISHED / track / "studies").glob("*.json"))


def read_published(path: Path) -> PublishedStudy:
    """A published study; a BenchmarkError when the file is damaged."""
    again = "bring it back with git, or publish the study again"
    content = files.read_json(path, again)
    try:
        return PublishedStudy.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BenchmarkError(f"{path} is no published study ({place}: {first['msg']}); {again}") from None


def today(grid: Grid) -> StudyToday:
    """What the study would be made with now."""
    data = WORK / grid.track.name / "data" / "data.json"
    return StudyToday(
        track_version=grid.track.version,
        images=grid.images,
        seeds=grid.study.seeds,
        measures=grid.study.measures,
        cells=grid.cells,
        code=code.combined(code.digests(*grid.entries)),
        data=files.read_json(data)["sha256"] if data.exists() else None,
    )


def _age(study: PublishedStudy, track: str) -> list[str]:
    result = study.result
    if not grids.exists(result.submission, result.name, track):
        file = grids.path(result.submission, result.name)
        return [f"{file} {'has no such row' if file.exists() else 'is gone'}"]
    grid = grids.load(result.submission, result.name, track)
    if grid.track.name != track:
        return [f"on track {grid.track.name} now"]
    found = reasons(result, today(grid))
    if grid.study.findings and study.findings_code != checks.findings_code(result.submission):
        found.append("findings by other code")
    return found
