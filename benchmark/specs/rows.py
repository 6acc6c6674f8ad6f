"""The rows of a track: a submission's variant with its settings there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss, unless_broken
from benchmark.runtime.paths import PUBLISHED, WORK
from benchmark.specs import submissions, tracks
from benchmark.specs.study import MeasureSpec
from benchmark.specs.submission import Submission, VariantOnTrack
from benchmark.specs.threat import AttackSpec
from benchmark.specs.track import ADAPTIVE, Track
from benchmark.specs.training import radius_problem, recipe_problem

NO_ROWS = "no submission enters track {!r} yet; add a variant for it to a submission.yaml"


@dataclass(frozen=True)
class Network:
    """The part of a row that makes it a network of a study: a cell, trained with a seed. No board lists it.

    Attributes:
        study: `<submission>-<study>`.
        cell: the name of the cell.
        images: the first so many of the track's evaluation images are used; more than it has are a larger draw of its seed.
        measures: the measures of this network.
        start: the network of another cell, of the same seed, from whose weights training starts.
    """

    study: str
    cell: str
    seed: int
    images: int
    measures: tuple[MeasureSpec, ...]
    start: Row | None = None

    @cached_property
    def name(self) -> str:
        """Return the name of its folder in the study's; other cells do not change it."""
        words = re.sub("[^A-Za-z0-9]+", "_", self.cell)[:40].strip("_") or "cell"
        return f"{words}-{files.sha256_bytes(self.cell.encode())[:6]}-{self.seed}"


@dataclass(frozen=True)
class Row:
    """One row of one track, or one network of a study on it.

    Attributes:
        given: the file of its weights, if they are not those that were trained here.
    """

    track: Track
    submission: Submission
    variant: str
    settings: VariantOnTrack
    network: Network | None = None
    given: Path | None = None

    @property
    def name(self) -> str:
        if self.network:
            return f"{self.network.study}/{self.network.name}"
        return f"{self.submission.name}-{self.variant}"

    @property
    def default(self) -> bool:
        """Whether it is on the board that `rvb repro` builds by default."""
        default = self.submission.variants[self.variant].default
        return default if isinstance(default, bool) else self.track.name in default

    @property
    def home(self) -> Path:
        """The folder of the track's rows, or of the networks of its studies."""
        return WORK / self.track.name / ("studies" if self.network else "")

    @property
    def folder(self) -> Path:
        return self.home / self.name

    @property
    def inputs(self) -> Path:
        """The folder of its steps' inputs files."""
        return self.home / "inputs" / self.name

    @property
    def times(self) -> Path:
        """The folder of its steps' times, which are no output of a study."""
        return self.home / "times" / self.name if self.network else self.folder / "times"

    @property
    def data(self) -> Path:
        return WORK / self.track.name / "data"

    @property
    def weights(self) -> Path:
        return self.given or self.folder / "train" / "model.safetensors"

    @property
    def method(self) -> Path:
        return submissions.FOLDER / self.submission.name / "method.py"

    @property
    def method_files(self) -> list[Path]:
        """method.py, from which the model's code is followed, and the data files beside it."""
        return submissions.method_files(self.submission.name)

    @property
    def suites(self) -> dict[str, tuple[AttackSpec, ...]]:
        """The suites that count for this row, in order: the track's, then the attacks contributed against it."""
        return {**self.track.suites, **({ADAPTIVE: self.settings.adaptive} if self.settings.adaptive else {})}

    @property
    def described(self) -> bool:
        """Whether its network has to be rebuilt from a description of its layers, as certificates need it."""
        if self.network:
            return any(measure.measure == "certified" for measure in self.network.measures)
        return bool(self.settings.certificate or self.settings.unsound_formulas)

    @property
    def source(self) -> Row | None:
        """The row from whose weights training starts."""
        init = self.settings.training.init_from if self.settings.training else None
        if init is None or init.cell:
            return self.network.start if self.network and init else None
        owner, _, variant = init.row.partition("-")
        track, submission = tracks.load(init.track or self.track.name), submissions.load(owner)
        return Row(track, submission, variant, submissions.settings(submission, variant, track.name))

    @property
    def start(self) -> Path | None:
        """The file of that row's weights."""
        return self.source.weights if self.source else None


def load_row(track: str, name: str, option: str = "--track {}") -> Row:
    """Return the row `<submission>-<variant>` of a track; `option` is how the caller gives another track.

    Raise BenchmarkError for an unknown track, submission or variant (with the near miss), or settings that do not fit.
    """
    if not isinstance(name, str):
        raise BenchmarkError(f"the row is a {type(name).__name__}; give its name, <submission>-<variant>")
    submission, _, variant = name.partition("-")
    if not variant:
        rows = [f"{s.name}-{v}" for s, v in submissions.rows(track)]
        raise BenchmarkError(f"{name!r} names no row: use <submission>-<variant>{near_miss(name, rows)}")
    loaded = submissions.load(submission)
    rules = tracks.load(track)
    settings = submissions.settings(loaded, variant, track, option)
    place = f"submissions/{submission}/submission.yaml: variant {variant} on {track}"
    taken = {spec.id: suite for suite, specs in rules.suites.items() for spec in specs}
    for spec in settings.adaptive:
        if spec.id in taken:
            raise BenchmarkError(
                f"{place}: the adaptive attack {spec.id} has the id of one in the track's suite {taken[spec.id]}; "
                "give it a `name`"
            )
    initial_settings(settings, track, place)
    if settings.training and settings.training.init_from and settings.training.init_from.cell:
        raise BenchmarkError(f"{place}: init_from: a `cell` is for studies; name a `row`, <submission>-<variant>")
    problems = [recipe_problem(settings.training, rules.data.shape)] if settings.training else []
    problems += [radius_problem(attack, rules.data.shape) for attack in settings.adaptive]
    if problem := next(filter(None, problems), None):
        raise BenchmarkError(f"{place}: {problem}")
    return Row(rules, loaded, variant, settings)


def load_rows(track: str) -> list[Row]:
    """Return every row of a track that loads, in order of the submissions; name the others on stderr."""
    names = [f"{submission.name}-{variant}" for submission, variant in submissions.rows(track)]
    rows = [unless_broken(name, partial(load_row, track, name)) for name in names]
    return [row for row in rows if row is not None]


def initial_settings(settings: VariantOnTrack, track: str, place: str) -> VariantOnTrack:
    """Return the settings of the row at which a chain of fine-tuning starts: `settings` itself without a chain.

    Raise BenchmarkError if a row of the chain does not exist, or the chain returns to a row.
    """
    seen = []
    while settings.training and (start := settings.training.init_from) and start.row:
        track = start.track or track
        if (track, start.row) in seen:
            raise BenchmarkError(f"{place}: init_from: {start.row} on {track} starts from itself in the end")
        seen.append((track, start.row))
        submission, _, variant = start.row.partition("-")
        try:
            tracks.load(track)
            settings = submissions.settings(submissions.load(submission), variant, track, "`track: {}`")
        except BenchmarkError as error:
            raise BenchmarkError(f"{place}: init_from: {error}") from None
    return settings


def at_hand(row: Row, sha256: str = "") -> Row:
    """Return the row with the weights that were trained here, else with the published weights, else unchanged.

    Args:
        sha256: the digest that the weights must have, if it is given.
    """
    if row.weights.exists() and sha256 in ("", files.sha256_file(row.weights)):
        return row
    if sha256 and row.weights.exists() and not _published_weights(row):
        return row  # of another build, which the caller reports
    return replace(row, given=_published_weights(row))


def _published_weights(row: Row) -> Path | None:
    """Return the file of the row's published weights; None if it has none, or no published Record."""
    folder = PUBLISHED / row.track.name
    path = folder / "weights" / f"{row.name}.safetensors"
    return path if path.exists() and (folder / f"{row.name}.json").exists() else None
