"""Tables of published studies: means, spread over seeds, and which differences exceed it.

A difference is shown where its 95% Welch interval over seeds excludes 0. Each cell has a variance of its own. The 5% are
divided by the number of cells compared (Bonferroni), and no standard deviation is taken below one image. All cells share
the images, so the interval says nothing of other images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy.special import stdtrit

from benchmark.records.study import PublishedStudy, Run, in_order
from benchmark.specs.study import Value, is_named, last_word, measure_named, measure_of

ERROR = 0.05
MOST = 4  # differences that a sentence names
LEAST = 21  # levels from which the shape of a distribution can be drawn
SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)  # the levels of quantiles that tables show


@dataclass(frozen=True)
class Spread:
    """Values in the order of the seeds. Mean, low and high are NaN where there is none, as for a missing block."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def low(self) -> float:
        return min(self.values, default=math.nan)

    @property
    def high(self) -> float:
        return max(self.values, default=math.nan)


@dataclass(frozen=True)
class Column:
    """One number of each run: a measure, or one place of a curve. A `share` of images is shown in percent."""

    label: str
    share: bool
    index: int | None = None  # of the place in the curve
    x: float | None = None

    @property
    def title(self) -> str:
        return self.label if self.x is None else f"{self.label} at {self.x:g}"

    def of(self, value: Value) -> float | None:
        return value if isinstance(value, float | int) else value[self.index or 0]

    @property
    def unit(self) -> str:
        return ", %" if self.share else ""

    def text(self, value: float, sign: bool = False) -> str:
        if math.isnan(value):
            return "–"
        return f"{100 * value:{'+' * sign}.1f}" if self.share else f"{value:{'+' * sign}.3g}"

    def printed(self, claimed: float) -> str:
        """Return a claim with all digits that the paper prints."""
        return max(self.text(claimed), f"{100 * claimed if self.share else claimed:.6g}", key=len)


@dataclass(frozen=True)
class Difference:
    """An estimate with its interval; `shown` where the interval excludes 0."""

    estimate: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Entry(Spread):
    """One number of one cell over its seeds, the paper's claim, and the difference from another cell (None with one seed)."""

    claimed: float | None
    difference: Difference | None


@dataclass(frozen=True)
class Line:
    """One cell: `against` names the cell it is compared with; `overfitted` counts seeds that overfitted catastrophically."""

    cell: str
    against: str | None
    entries: tuple[Entry, ...]
    overfitted: int
    parameters: int


@dataclass(frozen=True)
class Effect:
    """The effect of an axis with two levels, averaged over all other axes."""

    axis: str
    low: str
    high: str
    differences: tuple[Difference | None, ...]  # None for a number that not every run has


@dataclass(frozen=True)
class Table:
    """A study's numbers. `told` are the columns whose differences are put into words: all but the drawn quantiles."""

    study: PublishedStudy
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    effects: tuple[Effect, ...]
    told: tuple[int, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """What the differences show: a sentence for each number or curve, or one where there is nothing to compare."""
        if len(self.lines) == 1 or len(self.study.study.seeds) == 1:
            one = "setting, nothing to compare" if len(self.lines) == 1 else "seed: no difference is told from noise"
            return (f"One {one}.",)
        by_label: dict[str, list[int]] = {}
        for index in self.told:
            by_label.setdefault(self.columns[index].label, []).append(index)
        return tuple(_sentence(self.columns, places, self.lines) for places in by_label.values())

    @property
    def claims(self) -> tuple[bool, ...]:
        """Whether any cell has a claim, by column."""
        return tuple(any(line.entries[i].claimed is not None for line in self.lines) for i in range(len(self.columns)))

    @property
    def flat(self) -> tuple[int, ...]:
        """The columns that are single numbers."""
        return tuple(i for i, column in enumerate(self.columns) if column.x is None)

    @property
    def compared(self) -> bool:
        return any(entry.difference is not None for line in self.lines for entry in line.entries[:1])


@dataclass(frozen=True)
class Row:
    """One curve of one cell."""

    name: str
    entries: tuple[tuple[Column, Entry], ...]


@dataclass(frozen=True)
class Sheet:
    """One measure's curves over the places `heads`."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]


def quantile_curves(study: PublishedStudy) -> tuple[str, ...]:
    """Return the labels of the curves that the study draws as violins: LEAST levels or more, rising from 0 to 1."""
    figure = study.study.figure
    if figure is None or figure.draw != "violins":
        return ()
    return tuple(
        label
        for label, x in study.result.x.items()
        if not figure.measures or is_named(label, figure.measures)
        if len(x) >= LEAST and x[0] == 0 and x[-1] == 1 and all(a < b for a, b in pairwise(x))
    )


def _quantiles(study: PublishedStudy) -> set[str]:
    """Return the labels of the drawn quantiles and of every other curve of the same measures over the same levels."""
    x = study.result.x
    drawn = {(measure_of(label), x[label]) for label in quantile_curves(study)}
    return {label for label in x if (measure_of(label), x[label]) in drawn}


def table(study: PublishedStudy) -> Table:
    """Return a study's table: a line for each cell, compared with the first cell or the one before, as the study asks."""
    names, quantiles = columns(study), _quantiles(study)
    runs = {cell.name: [run for run in study.result.runs if run.cell == cell.name] for cell in study.result.cells}
    against = _against(study)
    error = ERROR / max(1, sum(other is not None for other in against.values()))
    lines = []
    for cell, cell_runs in runs.items():
        claims, other, entries = study.study.claims.get(cell, {}), against[cell], []
        for column in names:
            values, claimed, difference = _sample(column, cell_runs), claims.get(column.label), None
            if other is not None:
                samples = (values, _sample(column, runs[other]))
                difference = contrast((1, -1), samples, error, _floor(column, study))
            entries.append(Entry(values, None if claimed is None else column.of(claimed), difference))
        overfitted = sum(bool(run.training.overfitting and run.training.overfitting.found) for run in cell_runs)
        lines.append(Line(cell, other, tuple(entries), overfitted, cell_runs[0].parameters))
    told = tuple(i for i, column in enumerate(names) if column.label not in quantiles)
    return Table(study, names, tuple(lines), _effects(study, names, runs), told)


def sheets(table: Table) -> tuple[Sheet, ...]:
    """Return a sheet for each measure's curves, places side by side. Quantiles have a few levels alone."""
    quantiles = _quantiles(table.study)
    measures: dict[str, dict[str, list[int]]] = {}
    for i, column in enumerate(table.columns):
        if column.x is not None and (column.label not in quantiles or column.x in SHOWN):
            measures.setdefault(measure_of(column.label), {}).setdefault(column.label, []).append(i)

    def name(cell: str, label: str) -> str:
        curve = label.partition(": ")[2]
        return ": ".join(part for part in (cell if len(table.lines) > 1 or not curve else "", curve) if part)

    by_measure = []
    for measure, curves in measures.items():
        first = [table.columns[i] for i in next(iter(curves.values()))]
        rows = tuple(
            Row(name(line.cell, label), tuple((table.columns[i], line.entries[i]) for i in places))
            for line in table.lines
            for label, places in curves.items()
            if not all(math.isnan(line.entries[i].mean) for i in places)  # as of a block that a network lacks
        )
        by_measure.append(Sheet(measure + first[0].unit, tuple(f"{column.x:g}" for column in first), rows))
    return tuple(by_measure)


def columns(study: PublishedStudy) -> tuple[Column, ...]:
    """Return the columns of a study's numbers, in the study's order; curves that its figure names in the figure's order."""
    labels = dict.fromkeys(label for run in study.result.runs for label in run.values)
    result: list[Column] = []
    for label in in_order(study.study, labels):
        share, places = study.study.is_share(label), study.result.x.get(label)
        result += [Column(label, share)] if places is None else [Column(label, share, i, x) for i, x in enumerate(places)]
    return tuple(result)


def contrast(shares: Sequence[float], samples: Sequence[Sequence[float]], error: float, floor: float) -> Difference | None:
    """Return sum_i shares_i mean_i with Welch's interval at confidence 1 - `error`; None where a sample has one value.

    No standard deviation is taken below `floor`. Degrees of freedom by Satterthwaite.
    """
    if any(len(sample) < 2 for sample in samples):
        return None
    means = [sum(sample) / len(sample) for sample in samples]
    estimate = sum(c * mean for c, mean in zip(shares, means, strict=True))
    variances = []
    for c, sample, mean in zip(shares, samples, means, strict=True):
        spread = max(math.fsum((v - mean) ** 2 for v in sample) / (len(sample) - 1), floor**2)
        variances.append(c * c * spread / len(sample))
    total = math.fsum(variances)
    if total == 0:
        return Difference(estimate, estimate, estimate)
    freedom = total**2 / math.fsum(v * v / (len(s) - 1) for v, s in zip(variances, samples, strict=True))
    reach = float(stdtrit(freedom, 1 - error / 2)) * math.sqrt(total)
    return Difference(estimate, estimate - reach, estimate + reach)


def _sample(column: Column, runs: list[Run]) -> tuple[float, ...]:
    values = [column.of(run.values[column.label]) for run in runs if column.label in run.values]
    return tuple(value for value in values if value is not None)


def images_of(study: PublishedStudy, label: str) -> int:
    """Return how many images a number counts: those with a verdict, else its measure's, else all of the study's."""
    verdicts = next((run.verdicts[label] for run in study.result.runs if label in run.verdicts), None)
    one = verdicts if isinstance(verdicts, str) or not verdicts else verdicts[0]
    measure = measure_named(study.study, label)
    return len(one) if one else (measure and measure.images) or study.result.n


def _floor(column: Column, study: PublishedStudy) -> float:
    return 1 / images_of(study, column.label) if column.share else 0.0


def _against(study: PublishedStudy) -> dict[str, str | None]:
    """Return what each cell is compared with: the one before, or the first with the same named cell."""
    against: dict[str, str | None] = {}
    first: dict[str, str] = {}
    previous = None
    for cell in study.result.cells:
        group = cell.levels.get("cell", "") if len(cell.levels) > 1 else ""
        against[cell.name] = first.get(group) if study.study.against == "first" else previous
        first.setdefault(group, cell.name)
        previous = cell.name
    return against


def _effects(study: PublishedStudy, names: tuple[Column, ...], runs: dict[str, list[Run]]) -> tuple[Effect, ...]:
    """Return the effect of each axis with two levels, where there are two axes or more."""
    cells = study.result.cells
    levels = {axis: list(dict.fromkeys(cell.levels[axis] for cell in cells)) for axis in cells[0].levels}
    pairs = {axis: values for axis, values in levels.items() if len(values) == 2}
    if not names or len(levels) < 2 or any(len(cell_runs) < 2 for cell_runs in runs.values()):
        return ()
    effects = []
    for axis, (low, high) in pairs.items():
        shares = [(1 if cell.levels[axis] == high else -1) * 2 / len(cells) for cell in cells]
        differences = tuple(
            contrast(shares, [_sample(column, runs[cell.name]) for cell in cells], ERROR / len(pairs), _floor(column, study))
            for column in names
        )
        effects.append(Effect(axis if axis == "cell" else last_word(axis), low, high, differences))
    return tuple(effects)


def _sentence(columns: Sequence[Column], places: list[int], lines: Sequence[Line]) -> str:
    """Return what the differences of one number, or of a curve at its `places`, show."""
    first, curve = columns[places[0]], columns[places[0]].x is not None
    having = {line.cell for line in lines if line.entries[places[0]].values}
    compared = [line for line in lines if line.cell in having and line.against in having]
    if not compared:
        lacking = next((line.against for line in lines if line.cell in having and line.against), None)
        words = (
            f"not compared, since {lacking} has none" if lacking and len(having) > 1 else "one setting, nothing to compare"
        )
        return f"{first.title}: {words}."
    if any(line.entries[places[0]].difference is None for line in compared):
        return f"{first.title}: one seed, so no difference can be told from noise."
    shown: dict[str, list[tuple[Column, float]]] = {}
    for line in compared:
        differences = ((columns[i], line.entries[i].difference) for i in places)
        if beyond := [(column, d.estimate) for column, d in differences if d and d.shown]:
            shown[line.cell] = beyond
    covered = "the spread of the seeds covers "
    if curve:
        if not shown:
            return f"{first.label}: no effect is shown, {covered}all differences."
        by_cell = [
            f"{cell} at {', '.join(f'{column.x:g} ({column.text(value, sign=True)})' for column, value in beyond)}"
            for cell, beyond in shown.items()
        ]
        return f"{first.label}: beyond the spread of the seeds: {'; '.join(by_cell)}; {covered}all other differences."
    estimates = {cell: beyond[0][1] for cell, beyond in shown.items()}
    rest = len(compared) - len(estimates)
    which = ("all" if not shown else "the other") + (f" {rest} differences" if rest > 1 else " difference")
    covered += which if len(compared) > 1 else "the difference"
    if not shown:
        return f"{first.title}: no effect is shown, {covered}."
    largest = sorted(estimates, key=lambda cell: -abs(estimates[cell]))[:MOST]
    named = "; ".join(f"{cell} ({first.text(estimates[cell], sign=True)})" for cell in largest)
    named += f"; and {len(estimates) - MOST} more" if len(estimates) > MOST else ""
    return f"{first.title}: beyond the spread of the seeds: {named}" + (f"; {covered}." if rest else ".")
