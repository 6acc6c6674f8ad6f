"""The result of a study. Units: radii in pixels of [0, 1]; accuracies as fractions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from benchmark.records.finding import Finding
from benchmark.records.points import Points
from benchmark.records.training import TrainingResult
from benchmark.runtime import files
from benchmark.specs.base import Frozen
from benchmark.specs.study import GridCell, MeasureSpec, Study, Value, Verdicts, measure_of, run_command
from benchmark.specs.submission import Claim, Paper


class CellResult(GridCell):
    """A cell as it was run, with its full settings."""

    settings: dict[str, JsonValue]


class Run(Frozen):
    """One network: a cell trained with a seed. `values` by the measure's label, or `<label>: <key>` where it has several.

    `verdicts` are the images' verdicts behind values that count images; `points` are of measures that return points.
    """

    cell: str
    seed: int
    training: TrainingResult
    parameters: int
    values: dict[str, Value]
    weights: str  # sha256
    verdicts: dict[str, Verdicts] = Field(default={})
    points: dict[str, Points] = Field(default={})


class StudyResult(Frozen):
    """The result of a study: its runs, cell by cell, seed by seed. It holds no time, date or host name.

    `n` is the number of images; `x` the places of each curve; `left_out` says by label why a measure was not taken.
    """

    schema_version: Literal[1] = 1
    submission: str
    name: str
    track: str
    track_version: int
    variant: str
    n: int
    cells: tuple[CellResult, ...]
    measures: tuple[MeasureSpec, ...]
    runs: tuple[Run, ...]
    x: dict[str, tuple[float, ...]]
    left_out: dict[str, str] = Field(default={})
    sha256: dict[str, str]
    environment: dict[str, str]

    @property
    def id(self) -> str:
        return f"{self.submission}-{self.name}"

    @property
    def command(self) -> str:
        """The command that runs it again."""
        return run_command(self.id, self.track)


class PublishedStudy(Frozen):
    """`leaderboard/results/<track>/studies/<submission>-<study>.json`: a study and its result."""

    study: Study
    result: StudyResult
    findings: tuple[Finding, ...] = Field(default=())
    findings_code: str = ""  # sha256 of what computed them


class DeclaredPaper(Frozen):
    """A submission with a row or a study on the track. `studies` by name, including those over a row's seeds."""

    summary: str
    paper: Paper
    claims: tuple[Claim, ...] = ()
    extensions: tuple[str, ...] = ()  # variants that the paper does not have
    studies: dict[str, Study] = Field(default={})


def read_published(folder: Path, names: str = "*.json") -> list[PublishedStudy]:
    """Return the published studies of a track, `<submission>-<study>.json`, by name.

    Raise a BenchmarkError for a damaged file.
    """
    remedy = "bring it back with git, or publish the study again"
    return [files.read_model(path, PublishedStudy, remedy) for path in sorted(folder.glob(names))]


def in_order(study: Study, labels: Iterable[str]) -> list[str]:
    """Return labels in the order of the study's measures; those that its figure names go first, in the figure's order."""
    measures, drawn = [measure.label for measure in study.measures], study.figure.measures if study.figure else ()

    def place(label: str) -> tuple[int, int]:
        return measures.index(measure_of(label)), drawn.index(label) if label in drawn else len(drawn)

    return sorted(labels, key=place)
