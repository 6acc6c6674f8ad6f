"""What `rvb publish` copies of a study: its results with what its file says of them now. No DVC stage."""

from __future__ import annotations

from pydantic import ValidationError

from benchmark.results.study import PublishedStudy, StudyResult
from benchmark.results.study_age import changed_settings
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.studies.ages import today
from benchmark.studies.grids import Grid


def collect_study(grid: Grid) -> PublishedStudy:
    """The results in work/ under the study's present title, claims and figure.

    Raises:
        BenchmarkError: no results yet, or of other cells, seeds, measures, images or settings than the study asks for now.
    """
    path, again = grid.folder / "study.json", f"run `{grid.command}`"
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; {again}")
    try:
        result = StudyResult.model_validate(files.read_json(path))
    except ValidationError as error:
        raise BenchmarkError(f"{path} is no study's result ({error.errors()[0]['msg']}); {again}") from None
    if changed_settings(result, today(grid)):
        raise BenchmarkError(f"{path} is of other settings than {grid.file} has now; {again}")
    return PublishedStudy(study=grid.study, result=result)
