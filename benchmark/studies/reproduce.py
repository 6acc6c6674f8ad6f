"""Train one run of a published study again and compare it with the published one."""

from __future__ import annotations

import shutil
from dataclasses import replace

from benchmark.results.study import StudyResult
from benchmark.runtime import code, files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.study import Cell
from benchmark.studies.grids import Grid
from benchmark.studies.published import changed_settings


def reproduce(grid: Grid, published: StudyResult) -> tuple[str, list[str]]:
    """Train and measure the first cell with its first seed. The published results and those in work/ stay as they are.

    Returns:
        The run, such as "cell all, seed 0", and its fields that differ: none where the sha256 of the weights and all numbers
        are the same. Raise a BenchmarkError where the study asks for other settings than were published.
    """
    if changed := changed_settings(published, grid):
        raise BenchmarkError(f"{grid.file} asks for other {', '.join(changed)} than were published; publish it again")
    cell, seed = grid.study.grid()[0], grid.study.seeds[0]  # the first cell starts from no other
    alone = {"cells": (Cell(name=cell.name, set=cell.set),), "axes": {}, "seeds": (seed,)}
    study = grid.study.model_copy(update=alone)
    one = replace(grid, name=f"{grid.name}-check", study=study, cells={cell.name: grid.cells[cell.name]})
    if not (grid.data / "data.json").exists():
        raise BenchmarkError(f"{grid.data} is missing; run `rvb step data --track {grid.track.name}`")
    from benchmark.studies.running import run_study  # imports torch

    run_study(one, one.settings, code.combined(code.digests(*grid.entries)))
    (retrained,) = StudyResult.model_validate(files.read_json(one.folder / "study.json")).runs
    shutil.rmtree(one.folder)
    (one.folder.parent / "times" / f"{one.id}.json").unlink()
    (before,) = [run for run in published.runs if (run.cell, run.seed) == (cell.name, seed)]
    differ = [name for name in type(before).model_fields if getattr(before, name) != getattr(retrained, name)]
    return f"cell {cell.name}, seed {seed}", differ
