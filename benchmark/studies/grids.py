"""The only reader of submissions/*/studies: load a study, expand it to settings, check every name in it.

Rows that are trained here have a study without a file, `<variant>-seeds` (benchmark/specs/seeds.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmark.loading import submissions, tracks
from benchmark.loading.components import attack_file, certificate_file, recipe_files
from benchmark.loading.rows import Row, initial_settings, load_row
from benchmark.loading.run_settings import run_settings
from benchmark.runtime.errors import BenchmarkError, explain, near_miss, unless_broken
from benchmark.runtime.paths import WORK
from benchmark.runtime.yaml_file import read_yaml
from benchmark.specs import seeds
from benchmark.specs.study import BUILTIN, MeasureSpec, Study, run_command
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.track import Track
from benchmark.studies import checks
from benchmark.studies.cells import cell_settings, check_starts
from benchmark.studies.cells import recipe as recipe

STEPS = Path("benchmark/steps")


WITHOUT: dict[str, Any] = {"wall": True, "train": {"processes"}}  # of params.yaml: no number of a study depends on them


@dataclass(frozen=True)
class Grid:
    """A study ready to run: `cells` are the full settings by name, in order."""

    name: str
    study: Study
    track: Track
    submission: Submission
    cells: dict[str, VariantOnTrack]

    @property
    def id(self) -> str:
        return f"{self.submission.name}-{self.name}"

    @property
    def file(self) -> Path:
        """What asks for it: its own file, or the submission's."""
        return path(self.submission.name, self.name)

    @property
    def command(self) -> str:
        return run_command(self.id, self.track.name)

    @property
    def images(self) -> int:
        return self.study.images or self.track.evaluation.images

    @property
    def data(self) -> Path:
        return WORK / self.track.name / "data"

    @property
    def folder(self) -> Path:
        """Where its results stand."""
        return WORK / self.track.name / "studies" / self.id

    @property
    def starts(self) -> list[Path]:
        """The weights of other rows from which its cells start."""
        rows = [Row(self.track, self.submission, self.study.variant, settings) for settings in self.cells.values()]
        for row in rows:
            initial_settings(row.settings, self.track.name, str(self.file))
        return sorted({row.start for row in rows if row.start})

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that its numbers depend on, as JSON values; its title, claims and figure only show them."""
        return {
            "data": self.track.data.model_dump(mode="json", exclude={"sha256", "path"}),
            "cells": [[name, s.model_dump(mode="json", exclude={"adaptive"})] for name, s in self.cells.items()],
            "measures": [measure.model_dump(mode="json") for measure in self.study.measures],
            "images": self.images,
            "seeds": list(self.study.seeds),
            "evaluation": self.track.evaluation.model_dump(mode="json"),
            "run": run_settings().model_dump(mode="json", exclude=WITHOUT),
        }

    @property
    def entries(self) -> list[Path]:
        """The files from which its code is followed: the stage's, and those that its settings name."""
        files = {STEPS / "study.py", *submissions.method_files(self.submission.name)}
        for settings in self.cells.values():
            files |= {*recipe_files(recipe(settings))}
            source = Row(self.track, self.submission, self.study.variant, settings).source
            files |= {*source.method_files} if source and recipe(settings).prepare else set()
        for measure in self.study.measures:
            if measure.attack:
                files.add(attack_file(measure.attack.attack))
            elif measure.measure == "certified":
                measured = [cell for name, cell in self.cells.items() if measure.of(name)]
                files |= {certificate_file(self.certificate(cell, measure)[0]) for cell in measured}
            elif measure.measure not in BUILTIN:
                files |= checks.measure_files(self.submission.name, measure.measure)
        return sorted(files)

    @staticmethod
    def certificate(settings: VariantOnTrack, measure: MeasureSpec) -> tuple[str, dict[str, Any]]:
        """Name and parameters of the certificate that a measure of radii uses in a cell."""
        declared = settings.certificate
        if measure.certificate or declared is None:
            return measure.certificate or "", dict(measure.parameters)
        return declared.name, {**declared.parameters, **measure.parameters}


def path(submission: str, study: str) -> Path:
    place = "submission.yaml" if seeds.variant_of(study) else f"studies/{study}.yaml"
    return submissions.FOLDER / submission / place


def names(submission: str) -> list[str]:
    return sorted(file.stem for file in (submissions.FOLDER / submission / "studies").glob("*.yaml"))


def load_all(track: str = "") -> list[Grid]:
    """Every study of every submission that loads, or of those on one track, in order: those with a file, then each row's
    over its seeds, track by track. Others are named on stderr.
    """
    wanted: dict[str, Callable[[], Grid]] = {}
    for owner in submissions.load_all():
        wanted |= {str(path(owner.name, study)): partial(load, owner.name, study) for study in names(owner.name)}
    for one in [track] if track else tracks.names():
        wanted |= {f"{row} on {one}": partial(_seeds_of, one, row) for row in trained_rows(one)}
    found = [grid for place, make in wanted.items() if (grid := unless_broken(place, make))]
    return [grid for grid in found if not track or grid.track.name == track]


def trained_rows(track: str) -> list[str]:
    """The rows of a track that are trained here, which alone have seeds to vary."""
    return [f"{s.name}-{v}" for s, v in submissions.rows(track) if s.variants[v].tracks[track].training]


def _seeds_of(track: str, row: str) -> Grid:
    return seeds_grid(load_row(track, row))


def split_id(study: str) -> tuple[str, str]:
    """Submission and name of `<submission>-<study>` or `<submission>-<variant>-seeds`."""
    submission, _, name = study.partition("-")
    return submission, name


def exists(submission: str, study: str, track: str) -> bool:
    """Whether something asks for a study on `track` that was run once; one with a file names its track itself."""
    if variant := seeds.variant_of(study):
        return track in tracks.names() and f"{submission}-{variant}" in trained_rows(track)
    return path(submission, study).exists()


def seeds_grid(row: Row) -> Grid:
    """The row's training with other seeds.

    Raises:
        BenchmarkError: its weights were trained elsewhere, or its training's file, an attack or certificate is none.
    """
    if row.settings.training is None:
        raise BenchmarkError(
            f"{row.name} has weights that were trained elsewhere: there is no seed to vary, so it has no study over seeds"
        )
    run = run_settings().train
    study = seeds.seeds_study(row.track, row.variant, row.settings, run.seed, run.processes > 1)
    (cell,) = study.grid()
    return Grid(seeds.study_name(row.variant), study, row.track, row.submission, {cell.name: row.settings})


def load(submission: str, study: str, track: str = "digits") -> Grid:
    """The study of this name; `track` is for a row's study over seeds alone, others name theirs.

    Raises:
        BenchmarkError: unknown submission, study, variant, track, key, setting, measure or cell (the near miss is
            suggested), or a value that does not fit.
    """
    if variant := seeds.variant_of(study):
        return seeds_grid(load_row(track, f"{submission}-{variant}"))
    owner, file = submissions.load(submission), path(submission, study)
    if not file.exists():
        rows = f"{submission}-{next(iter(owner.variants))} {study}" if study == seeds.NAME else ""
        near = f": it is each row's, such as `rvb study {rows}`" if rows else near_miss(study, names(submission))
        raise BenchmarkError(f"{submission} has no study {study!r}{near}")
    if not study.replace("_", "").isalnum():
        raise BenchmarkError(f"{file}: a study's name has letters, digits and '_' only; rename the file")
    try:
        spec = Study.model_validate(read_yaml(file))
    except ValidationError as error:
        raise explain(error, Study, str(file)) from None
    rules = tracks.load(spec.track)
    base = submissions.settings(owner, spec.variant, spec.track)
    cells = {cell.name: cell_settings(base, cell, owner, rules, f"{file}: cell {cell.name!r}") for cell in spec.grid()}
    grid = Grid(study, spec, rules, owner, cells)
    check_starts(str(grid.file), cells)
    checks.check_claims(grid)
    checks.check_findings(grid)
    for measure in spec.measures:
        checks.check_measure(grid, measure)
    if grid.images > rules.evaluation.images:
        raise BenchmarkError(
            f"{file}: images {grid.images} are more than the {rules.evaluation.images} of {spec.track}"
        )
    return grid
