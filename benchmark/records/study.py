"""What came of a study. Units: radii in pixels of [0, 1]; accuracies as fractions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from benchmark.records.finding import Finding
from benchmark.records.points import Points
from benchmark.records.training import TrainingResult
from benchmark.specs.base import Frozen
from benchmark.specs.study import GridCell, MeasureSpec, Study, Value, Verdicts, run_command
from benchmark.specs.submission import Claim, Paper


class CellResult(GridCell):
    """A cell as it was run, with all the settings that it came to."""

    settings: dict[str, JsonValue]


class Run(Frozen):
    """One network: a cell trained with a seed. `values` by measure's label; a measure of several has `<label>: <key>`.

    `verdicts` are what those that count images were counted from; `points` are of measures that give such.
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
    """What came of a study: its runs, cell by cell, seed by seed; no time, date or host name.

    `n` images; `x` holds the places of each curve; `left_out` says by label why a measure was not taken.
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
        """How to run it again."""
        return run_command(self.id, self.track)


class PublishedStudy(Frozen):
    """`leaderboard/results/<track>/studies/<submission>-<study>.json`: what was asked, and what came of it."""

    study: Study
    result: StudyResult
    findings: tuple[Finding, ...] = Field(default=())
    findings_code: str = ""  # sha256 of what computed them


class DeclaredPaper(Frozen):
    """A submission with a row or a study on the track. `studies` by name, those over a row's seeds among them."""

    summary: str
    paper: Paper
    claims: tuple[Claim, ...] = ()
    studies: dict[str, Study] = Field(default={})


def measure_of(label: str) -> str:
    """The measure that gave what has this label."""
    return label.partition(": ")[0]


def is_named(label: str, measures: tuple[str, ...]) -> bool:
    """Whether a figure that names `measures` means what has this label: by all of it, or by what is before a colon in it."""
    return any(label == one or label.startswith(f"{one}: ") for one in measures)
