"""Retrain one network of a published study and compare it with the published one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial

from benchmark import protocol
from benchmark.pipeline import inputs
from benchmark.records.study import StudyResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox import forks
from benchmark.studies import results
from benchmark.studies.grids import Grid
from benchmark.studies.published import changed_settings


def reproduce(grid: Grid, published: StudyResult) -> tuple[str, list[str]]:
    """Retrain and measure the first cell with its first seed. The published results and those in work/ stay as they are.

    Returns:
        The run, such as "cell all, seed 0", and its fields that differ: none where the sha256 of the weights and all numbers
        are the same. Raise a BenchmarkError where the study asks for other settings than were published.
    """
    if changed := changed_settings(published, grid):
        raise BenchmarkError(f"{grid.file} asks for other {', '.join(changed)} than were published; publish it again")
    first = grid.networks()[0]  # it starts from no other network
    assert first.network is not None
    if not (first.data / "data.json").exists():
        inputs.write(grid.track.name)
        forks.run(
            partial(protocol.run, "data", grid.track.name)
        )  # in a fork: the networks' processes see no image of it
    row = replace(first, network=replace(first.network, study=f"{grid.id}-check"))
    inputs.write_row(row)
    for step in protocol.plan(row):
        step.execute(again=True)
    retrained = results.run_of(row)
    for folder in (row.folder, row.inputs, row.times):
        shutil.rmtree(folder.parent)
    (before,) = [run for run in published.runs if (run.cell, run.seed) == (retrained.cell, retrained.seed)]
    differ = [name for name in type(before).model_fields if getattr(before, name) != getattr(retrained, name)]
    return f"cell {retrained.cell}, seed {retrained.seed}", differ
