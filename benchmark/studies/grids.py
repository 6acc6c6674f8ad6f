"""The only reader of submissions/*/studies: load a study, expand it to settings, check every name in it.

Rows that are trained here have a study without a file, `<variant>-seeds` (benchmark/specs/seeds.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, explain, near_miss, unless_broken
from benchmark.runtime.paths import WORK
from benchmark.runtime.yaml_file import read_model
from benchmark.specs import seeds, submissions, tracks
from benchmark.specs.rows import Network, Row, initial_settings, load_row
from benchmark.specs.run_settings import run_settings
from benchmark.specs.study import Cell, Study, run_command
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.track import Track
from benchmark.specs.training import TrainingSpec, recipe_problem
from benchmark.studies import checks

LISTS = {"penalties": "penalty", "prepare": "preparation"}  # of `training`: a dotted key reaches an item by its name


def recipe(settings: VariantOnTrack) -> TrainingSpec:
    """How a cell is trained: every cell is, which was checked when it was loaded."""
    assert settings.training is not None
    return settings.training


def check_starts(file: str, cells: Mapping[str, VariantOnTrack]) -> None:
    """A BenchmarkError for a cell that starts from one that is not, or that does not stand before it."""
    before: list[str] = []
    for name, settings in cells.items():
        init = recipe(settings).init_from
        if init and init.cell and init.cell not in before:
            where = "comes after it" if init.cell in cells else f"is none{near_miss(init.cell, before)}"
            raise BenchmarkError(f"{file}: cell {name!r} starts from the cell {init.cell!r}, which {where}")
        before.append(name)


def cell_settings(base: VariantOnTrack, cell: Cell, owner: Submission, track: Track, place: str) -> VariantOnTrack:
    """The base with a cell's settings in place of its own."""
    content = base.model_dump(mode="json")
    for key, value in cell.set.items():
        _put(content, key, value, owner, place)
    try:
        settings = VariantOnTrack.model_validate(content)
    except ValidationError as error:
        raise explain(error, VariantOnTrack, place) from None
    submissions.check_settings(settings, place)
    if settings.training is None:
        raise BenchmarkError(f"{place}: has weights that were trained elsewhere; a study trains its networks")
    if wrong := recipe_problem(settings.training, track.data.shape):
        raise BenchmarkError(f"{place}: {wrong}")
    return settings


def _put(content: dict[str, Any], key: str, value: Any, owner: Submission, place: str) -> None:
    """Set a dotted key in a variant's settings; a BenchmarkError where its part is none, or `build` has no such option."""
    *above, last = key.split(".")
    here = content
    if above[:1] == ["training"] and above[1:2] and above[1] in LISTS:
        here, above = _item(content, key, place), ["parameters"]
    elif key == "adaptive":
        raise BenchmarkError(f"{place}: {key!r} names no setting of a study")
    elif above == ["model"] and (known := checks.options(owner.name)) is not None and last not in known:
        raise BenchmarkError(f"{place}: build of {owner.name} has no option {last!r}{near_miss(last, known)}")
    for part in above:
        if not isinstance(here.setdefault(part, {}), dict):
            raise BenchmarkError(f"{place}: {key!r} changes a part of {part!r}, which the variant does not have")
        here = here[part]
    here[last] = value


def _item(content: dict[str, Any], key: str, place: str) -> dict[str, Any]:
    """The penalty or preparation that `training.<list>.<name>.<parameter>` names."""
    _, group, *rest = key.split(".")
    if len(rest) != 2:
        raise BenchmarkError(f"{place}: {key!r} names no setting; write training.{group}.<name>.<parameter>")
    items = {item["name"]: item for item in (content["training"] or {}).get(group, ())}
    if rest[0] not in items:
        raise BenchmarkError(
            f"{place}: {key!r}: the variant has no {LISTS[group]} {rest[0]!r}{near_miss(rest[0], items)}"
        )
    return items[rest[0]]


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
    def folder(self) -> Path:
        """Where its results stand."""
        return WORK / self.track.name / "studies" / self.id

    @property
    def inputs(self) -> Path:
        """The folder of its networks' inputs files."""
        return self.folder.parent / "inputs" / self.id

    @property
    def jobs(self) -> int:
        """How many networks are trained and measured at a time: one a core, or one alone on a GPU."""
        settings = run_settings()
        return max(1, (os.cpu_count() or 1) // settings.train.processes) if settings.devices == "cpu" else 1

    def networks(self) -> list[Row]:
        """Return a network for every cell and seed, in order. A network comes after the one from which it starts."""
        networks: dict[tuple[str, int], Row] = {}
        for place, (cell, settings) in enumerate(self.cells.items()):
            init = recipe(settings).init_from
            measures = tuple(measure for measure in self.study.measures if measure.of(cell))
            for seed in self.study.seeds:
                start = networks[init.cell, seed] if init and init.cell else None
                network = Network(self.id, cell, place, seed, self.images, measures, start)
                networks[cell, seed] = Row(self.track, self.submission, self.study.variant, settings, network)
        return [*networks.values()]

    def sources(self) -> list[Row]:
        """Return the rows from whose weights its networks start. Raises BenchmarkError: one does not exist, or starts
        from itself in the end.
        """
        networks = self.networks()
        for row in networks:
            initial_settings(row.settings, self.track.name, str(self.file))
        return [row.source for row in networks if row.source and not row.source.network]


def path(submission: str, study: str) -> Path:
    place = "submission.yaml" if seeds.variant_of(study) else f"studies/{study}.yaml"
    return submissions.FOLDER / submission / place


def names(submission: str) -> list[str]:
    return sorted(file.stem for file in (submissions.FOLDER / submission / "studies").glob("*.yaml"))


def load_all(track: str = "") -> list[Grid]:
    """Every study of every submission that loads, or of those on one track, in order: those with a file, then each row's
    over its seeds, track by track. Others are named on stderr.
    """
    loads: dict[str, Callable[[], Grid]] = {}
    for owner in submissions.load_all():
        loads |= {str(path(owner.name, study)): partial(load, owner.name, study) for study in names(owner.name)}
    for name in [track] if track else tracks.names():
        studies = {row: split_id(seeds.study_name(row)) for row in trained_rows(name)}
        loads |= {f"{row} on {name}": partial(load, *study, name) for row, study in studies.items()}
    grids = [grid for place, make in loads.items() if (grid := unless_broken(place, make))]
    return [grid for grid in grids if not track or grid.track.name == track]


def trained_rows(track: str) -> list[str]:
    """The rows of a track that are trained here, which alone have seeds to vary."""
    return [f"{s.name}-{v}" for s, v in submissions.rows(track) if s.variants[v].tracks[track].training]


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
    """The row's training with other seeds. Raises BenchmarkError: its weights were trained elsewhere, or its training's
    file, an attack or certificate is none.
    """
    if row.settings.training is None:
        raise BenchmarkError(
            f"{row.name} has weights that were trained elsewhere: there is no seed to vary, so it has no study over seeds"
        )
    study = seeds.seeds_study(row.track, row.variant, row.settings, run_settings().train.seed)
    (cell,) = study.grid()
    return Grid(seeds.study_name(row.variant), study, row.track, row.submission, {cell.name: row.settings})


def load(submission: str, study: str, track: str = "digits") -> Grid:
    """The study of this name; `track` is for a row's study over seeds alone, others name theirs. Raises BenchmarkError:
    unknown submission, study, variant, track, key, setting, measure or cell (the near miss is suggested), or a value that
    does not fit.
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
    spec = read_model(file, Study, files.version(file))
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
