"""Load studies from submissions/*/studies: expand each to the settings of its cells, check every name in it.

A row that is trained here has a study without a file, `<variant>-seeds` (benchmark/specs/seeds.py).
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
    """Return how a cell is trained. Loading a study has refused cells that are not."""
    assert settings.training is not None
    return settings.training


def _check_starts(file: Path, cells: Mapping[str, VariantOnTrack]) -> None:
    """Raise a BenchmarkError for a cell that starts from a cell that is unknown or comes later."""
    before: list[str] = []
    for name, settings in cells.items():
        init = recipe(settings).init_from
        if init and init.cell and init.cell not in before:
            where = "comes after it" if init.cell in cells else f"is none{near_miss(init.cell, before)}"
            raise BenchmarkError(f"{file}: cell {name!r} starts from the cell {init.cell!r}, which {where}")
        before.append(name)


def _cell_settings(base: VariantOnTrack, cell: Cell, owner: Submission, track: Track, place: str) -> VariantOnTrack:
    """Return the base with a cell's settings in place of its own."""
    content = base.model_dump(mode="json")
    for key, value in cell.set.items():
        _put(content, key, value, owner, place)
    try:
        settings = VariantOnTrack.model_validate(content)
    except ValidationError as error:
        raise explain(error, VariantOnTrack, place) from None
    submissions.check_settings(settings, owner.name, place)
    if settings.training is None:
        raise BenchmarkError(f"{place}: has weights that were trained elsewhere; a study trains its networks")
    if wrong := recipe_problem(settings.training, track.data.shape):
        raise BenchmarkError(f"{place}: {wrong}")
    return settings


def _put(content: dict[str, Any], key: str, value: Any, owner: Submission, place: str) -> None:
    """Set a dotted key in a variant's settings. Raise a BenchmarkError for a part or an option of `build` that is unknown."""
    *above, last = key.split(".")
    inside = content
    if above[:1] == ["training"] and above[1:2] and above[1] in LISTS:
        inside, above = _item(content, key, place), ["parameters"]
    elif key == "adaptive":
        raise BenchmarkError(f"{place}: {key!r} names no setting of a study")
    elif above == ["model"] and (options := checks.options(owner.name)) is not None and last not in options:
        raise BenchmarkError(f"{place}: build of {owner.name} has no option {last!r}{near_miss(last, options)}")
    for part in above:
        if not isinstance(inside.setdefault(part, {}), dict):
            raise BenchmarkError(f"{place}: {key!r} changes a part of {part!r}, which the variant does not have")
        inside = inside[part]
    inside[last] = value


def _item(content: dict[str, Any], key: str, place: str) -> dict[str, Any]:
    """Return the penalty or preparation that `training.<list>.<name>.<parameter>` names."""
    _, group, *rest = key.split(".")
    if len(rest) != 2:
        raise BenchmarkError(f"{place}: {key!r} names no setting; write training.{group}.<name>.<parameter>")
    items = {item["name"]: item for item in (content["training"] or {}).get(group, ())}
    if rest[0] not in items:
        raise BenchmarkError(f"{place}: {key!r}: the variant has no {LISTS[group]} {rest[0]!r}{near_miss(rest[0], items)}")
    return items[rest[0]]


@dataclass(frozen=True)
class Grid:
    """A study that is ready to run: `cells` are the full settings by name, in order."""

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
        """The file that declares it: its own, or the submission's."""
        return path(self.submission.name, self.name)

    @property
    def command(self) -> str:
        return run_command(self.id, self.track.name)

    @property
    def images(self) -> int:
        return self.study.images or self.track.evaluation.images

    @property
    def folder(self) -> Path:
        """The folder of its results."""
        return WORK / self.track.name / "studies" / self.id

    @property
    def inputs(self) -> Path:
        """The folder of its networks' inputs files."""
        return self.folder.parent / "inputs" / self.id

    @property
    def jobs(self) -> int:
        """The number of networks that are trained and measured at a time: one a core, or one alone on a GPU."""
        settings = run_settings()
        return max(1, (os.cpu_count() or 1) // settings.train.processes) if settings.devices == "cpu" else 1

    def networks(self) -> list[Row]:
        """Return a network for every cell and seed, in order. A network comes after the one from which it starts."""
        networks: dict[tuple[str, int], Row] = {}
        rules = self.track.evaluation
        if self.study.images:  # it may ask for more than the track has, and attacks as many as it asks for
            rules = rules.model_copy(update={"images": max(rules.images, self.images), "attacked": None})
        track = self.track.model_copy(update={"evaluation": rules})
        for cell, settings in self.cells.items():
            init = recipe(settings).init_from
            measures = tuple(measure for measure in self.study.measures if measure.of(cell))
            for seed in self.study.seeds:
                start = networks[init.cell, seed] if init and init.cell else None
                network = Network(self.id, cell, seed, self.images, measures, start)
                networks[cell, seed] = Row(track, self.submission, self.study.variant, settings, network)
        return [*networks.values()]

    def sources(self) -> list[Row]:
        """Return the rows from whose weights its networks start.

        Raise a BenchmarkError for one that does not exist, or that starts from itself in the end.
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
    """Return every study, or those on one track: those with a file, then each row's over its seeds, track by track.

    Studies that do not load are named on stderr.
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
    """Return the rows of a track that are trained here; only these have seeds to vary."""
    return [f"{s.name}-{v}" for s, v in submissions.rows(track) if s.variants[v].tracks[track].training]


def split_id(study: str) -> tuple[str, str]:
    """Return submission and name of `<submission>-<study>` or `<submission>-<variant>-seeds`."""
    submission, _, name = study.partition("-")
    return submission, name


def exists(submission: str, study: str, track: str) -> bool:
    """Whether a study on `track` that was run before is still declared. One with a file names its track itself."""
    if variant := seeds.variant_of(study):
        return track in tracks.names() and f"{submission}-{variant}" in trained_rows(track)
    return path(submission, study).exists()


def seeds_grid(row: Row) -> Grid:
    """Return the study of a row's training with other seeds.

    Raise a BenchmarkError where its weights were trained elsewhere, or its objective, an attack or a certificate is unknown.
    """
    if row.settings.training is None:
        raise BenchmarkError(
            f"{row.name} has weights that were trained elsewhere: there is no seed to vary, so it has no study over seeds"
        )
    study = seeds.seeds_study(row.track, row.variant, row.settings, run_settings().train.seed)
    (cell,) = study.grid()
    return Grid(seeds.study_name(row.variant), study, row.track, row.submission, {cell.name: row.settings})


def load(submission: str, study: str, track: str = "digits") -> Grid:
    """Return the study of this name. Only a row's study over seeds needs `track`; others name theirs.

    Raise a BenchmarkError for an unknown submission, study, variant, track, key, setting, measure or cell, with the near
    miss, or for a value that does not fit.
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
    base = submissions.settings(owner, spec.variant, spec.track, "`track: {}`")
    cells = {cell.name: _cell_settings(base, cell, owner, rules, f"{file}: cell {cell.name!r}") for cell in spec.grid()}
    grid = Grid(study, spec, rules, owner, cells)
    _check_starts(grid.file, cells)
    checks.check(grid)
    return grid
