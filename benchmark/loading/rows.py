"""The rows of a track: a submission's variant with its settings there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.loading import methods, submissions, tracks
from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.paths import WORK
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.threat import AttackSpec
from benchmark.specs.track import ADAPTIVE, Track
from benchmark.specs.training import radius_problem, recipe_problem

if TYPE_CHECKING:
    from benchmark.studies.grids import Grid


@dataclass(frozen=True)
class Entry:
    """One row of one track."""

    track: Track
    submission: Submission
    variant: str
    settings: VariantOnTrack

    @property
    def row(self) -> str:
        return f"{self.submission.name}-{self.variant}"

    @property
    def folder(self) -> Path:
        return WORK / self.track.name / self.row

    @property
    def data(self) -> Path:
        return WORK / self.track.name / "data"

    @property
    def method(self) -> Path:
        return submissions.FOLDER / self.submission.name / "method.py"

    @property
    def suites(self) -> dict[str, tuple[AttackSpec, ...]]:
        """The suites that count for this row, in order: the track's, then the attacks brought against it."""
        return {**self.track.suites, **({ADAPTIVE: self.settings.adaptive} if self.settings.adaptive else {})}

    @property
    def source(self) -> Path | None:
        """The folder of the row whose weights training starts from."""
        training = self.settings.training
        start = training.init_from if training else None
        return WORK / (start.track or self.track.name) / start.row if start else None

    def stages(self) -> list[str]:
        """The stages that this row goes through, in order."""
        attacks = [f"attack-{suite}" for suite in self.suites]
        certify = ["certify"] if self.settings.certificate else []
        smooth = ["smooth"] if self.track.smoothing else []
        corrupt = ["corrupt"] if self.track.corruptions else []
        pictures = ["pictures"] if self.track.pictures else []
        reliability = ["reliability"] if any(threat.eps for threat in self.track.threats) else []
        return ["train", *attacks, *reliability, *certify, *smooth, *corrupt, *pictures, "collect"]

    def program(self, stage: str) -> str:
        """The file of benchmark/stages that does `stage`: weights that were trained elsewhere are taken over, not trained."""
        return "pretrained" if stage == "train" and self.settings.weights else stage.split("-")[0]

    def code(self, stage: str) -> list[Path]:
        """The project files that `stage` really imports for this row: those named by its settings and theirs."""
        kind = self.program(stage)
        package = Path("benchmark")
        entries = [package / "stages" / f"{kind}.py"]
        if kind != "collect":
            entries.append(self.method)
        if kind == "train" and self.settings.training:
            entries.append(package / "training" / f"{self.settings.training.objective}.py")
            attacks = {spec.attack for spec in self.settings.training.attacks}
            attacks |= {"pgd"} if self.settings.training.attack else set()  # the probe for catastrophic overfitting
            entries += [package / "attacks" / f"{attack}.py" for attack in sorted(attacks)]
        if kind == "attack":
            suite = stage.removeprefix("attack-")
            specs = {**self.track.development, **self.suites}[suite]
            own = self.submission.name if suite == ADAPTIVE else ""
            entries += sorted({methods.attack_file(spec.attack, own) for spec in specs})
        if kind == "certify" and self.settings.certificate:
            entries.append(package / "certificates" / f"{self.settings.certificate.name}.py")
        return code.closure(*entries)


def study_folder(track: str, study: str) -> Path:
    """Where the results of `<submission>-<study>` stand."""
    return WORK / track / "studies" / study


def starts(grid: Grid) -> list[Path]:
    """The `train` folders of the rows whose weights a study's cells start from."""
    rows = [Entry(grid.track, grid.submission, grid.study.variant, settings) for settings in grid.cells.values()]
    for row in rows:
        initial_row(row.settings, grid.track.name, str(grid.file))
    return sorted({row.source / "train" for row in rows if row.source})


def entry(track: str, submission: str, variant: str) -> Entry:
    """The row of this name; a BenchmarkError with the near miss for an unknown track, submission or variant."""
    loaded = submissions.load(submission)
    rules = tracks.load(track)
    settings = submissions.settings(loaded, variant, track)
    place = f"submissions/{submission}/submission.yaml: variant {variant} on {track}"
    taken = {spec.id: suite for suite, specs in rules.suites.items() for spec in specs}
    for spec in settings.adaptive:
        if spec.id in taken:
            raise BenchmarkError(
                f"{place}: the adaptive attack {spec.id} has the id of one in the track's suite {taken[spec.id]}; "
                "give it a `name`"
            )
    initial_row(settings, track, place)
    wrong = recipe_problem(settings.training, rules.data.shape) if settings.training else None
    wrong = wrong or next((w for attack in settings.adaptive if (w := radius_problem(attack, rules.data.shape))), None)
    if wrong:
        raise BenchmarkError(f"{place}: {wrong}")
    return Entry(rules, loaded, variant, settings)


def initial_row(settings: VariantOnTrack, track: str, place: str) -> VariantOnTrack:
    """The settings of the row at which a chain of fine-tuning starts: `settings` itself where there is none.

    Raises:
        BenchmarkError: a row of the chain does not exist, or the chain comes back to a row.
    """
    seen = []
    while settings.training and (start := settings.training.init_from):
        track = start.track or track
        if (track, start.row) in seen:
            raise BenchmarkError(f"{place}: init_from: {start.row} on {track} starts from itself in the end")
        seen.append((track, start.row))
        submission, _, variant = start.row.partition("-")
        try:
            tracks.load(track)
            settings = submissions.settings(submissions.load(submission), variant, track)
        except BenchmarkError as error:
            raise BenchmarkError(f"{place}: init_from: {error}") from None
    return settings


def entry_of_row(track: str, row: str) -> Entry:
    """The same, of `<submission>-<variant>`."""
    submission, _, variant = row.partition("-")
    if not variant:
        known = [f"{s.name}-{v}" for s, v in submissions.rows(track)]
        raise BenchmarkError(f"{row!r} names no row: use <submission>-<variant>{near_miss(row, known)}")
    return entry(track, submission, variant)
