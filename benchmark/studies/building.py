"""Check that the networks of a study can be built, trained and measured, before any is trained."""

from __future__ import annotations

from functools import partial

from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.submitted import run
from benchmark.specs import methods
from benchmark.specs.components import check_parameters
from benchmark.studies.grids import Grid, recipe
from benchmark.studies.measuring import PARTS, TRAINING, takes
from benchmark.studies.own import SECONDS, finding, function_of, is_function
from benchmark.training.fitting import check_recipe


def check(grid: Grid) -> None:
    """Build each network and recipe once, so that the last of a hundred cells does not fail after hours.

    Raise a BenchmarkError for networks, recipes or measures that do not fit.
    """
    sources = {row.source.submission.name for row in grid.networks() if row.source} - {grid.submission.name}
    run(partial(_check, grid), lambda _: None, grid.submission.name, *sorted(sources), seconds=SECONDS)


def _check(grid: Grid, _: object) -> None:
    functions = {m.measure: function_of(grid.submission.name, m.measure) for m in grid.study.measures if is_function(m)}
    taken = {part for function in functions.values() for part in PARTS if takes(function, part)}
    for cell, settings in grid.cells.items():
        try:
            model = methods.build_model(grid.submission, settings, grid.track)
            check_recipe(recipe(settings), grid.submission.name)
            if "blocks" in taken:
                finding("blocks").check_blocks(grid.submission.name, model, grid.track.data.shape)
            if "attention" in taken:
                finding("attention").attention(grid.submission.name, model)
        except BenchmarkError as error:
            raise BenchmarkError(f"{grid.file}: cell {cell!r}: {error}") from None
    for measure in grid.study.measures:
        if function := functions.get(measure.measure):
            place, filled = f"{grid.file}: measure {measure.label!r}", ("seed", TRAINING, *PARTS)
            check_parameters(function, measure.parameters, place, filled)
