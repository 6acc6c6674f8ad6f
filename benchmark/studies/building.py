"""Check that the networks of a study can be built, trained and measured, before any is trained."""

from __future__ import annotations

from functools import partial

from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.submitted import run
from benchmark.specs import methods
from benchmark.specs.components import check_parameters
from benchmark.studies import checks
from benchmark.studies.grids import Grid, recipe
from benchmark.studies.own import SECONDS, attention, function_of
from benchmark.training.fitting import check_recipe


def check(grid: Grid) -> None:
    """Build each network and recipe once, so that the last of a hundred cells does not fail after hours.

    Raise a BenchmarkError for networks, recipes or measures that do not fit.
    """
    sources = {row.source.submission.name for row in grid.networks() if row.source} - {grid.submission.name}
    run(partial(_check, grid), lambda _: None, grid.submission.name, *sorted(sources), seconds=SECONDS)


def _check(grid: Grid, _: object) -> None:
    measures = [measure for measure in grid.study.measures if measure.is_function]
    name = grid.submission.name
    functions = [function_of(name, measure.measure) for measure in measures]
    takes_attention = any("attention" in checks.filled(name, measure.measure) for measure in measures)
    for cell, settings in grid.cells.items():
        try:
            model = methods.build_model(grid.submission, settings, grid.track)
            check_recipe(recipe(settings), grid.submission.name)
            if takes_attention:
                attention(name, model)
        except BenchmarkError as error:
            raise BenchmarkError(f"{grid.file}: cell {cell!r}: {error}") from None
    for measure, function in zip(measures, functions, strict=True):
        place = f"{grid.file}: measure {measure.label!r}"
        check_parameters(function, measure.parameters, place, ("seed", *checks.FILLED))
