"""Published studies to tables: means, the spread of seeds, and which differences exceed it. Pure.

A difference counts as shown when its 95% interval over seeds (Welch's, which lets each cell have a spread of its own)
leaves out 0; the 5% are shared out over the cells that are compared (Bonferroni), and no spread is taken below one image.
The images are the same for all cells: other images would add to the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from scipy.special import stdtrit

from benchmark.records.study import PublishedStudy, Run, is_named, measure_of
from benchmark.specs.study import BUILTIN, Value, last_word


@dataclass(frozen=True)
class Spread:
    """`values` in the order of the seeds; of none, such as a block that this network lacks, all three numbers are NaN."""

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


ERROR = 0.05
MOST = 4  # differences that a sentence names
LEAST = 21  # levels from which the shape of a distribution can be drawn
SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)  # of those, by tables


@dataclass(frozen=True)
class Column:
    """One number of each run: a measure, or a place of a curve. `share` of images, shown in percent."""

    label: str
    share: bool
    index: int | None = None  # of the curve
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


@dataclass(frozen=True)
class Difference:
    """An estimate with its interval; `shown` when the interval leaves out 0."""

    estimate: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Entry(Spread):
    """One number of one cell: over its seeds; as the paper claims it; and against another cell, None with one seed."""

    claimed: float | None
    difference: Difference | None


@dataclass(frozen=True)
class Line:
    """One cell: `against` is the one it is compared with; `overfitted` counts seeds that overfitted catastrophically."""

    cell: str
    against: str | None
    entries: tuple[Entry, ...]
    overfitted: int
    parameters: int


@dataclass(frozen=True)
class Effect:
    """What an axis of two levels does, in the mean over all the others."""

    axis: str
    low: str
    high: str
    differences: tuple[Difference | None, ...]  # None of a number that not every run has


@dataclass(frozen=True)
class Table:
    """A study's numbers. `told` are the columns of which differences are told: all but quantiles, which are drawn."""

    study: PublishedStudy
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    effects: tuple[Effect, ...]
    told: tuple[int, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """What the differences show: a sentence a number or curve; a single one where there is nothing to compare."""
        return _sentences(self.told, self.columns, self.lines)

    @property
    def claims(self) -> tuple[bool, ...]:
        """By column, whether any cell has a claim."""
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


def read(folder: Path, names: str = "*.json") -> list[PublishedStudy]:
    """The published studies of a track, by name."""
    return [PublishedStudy.model_validate_json(path.read_text()) for path in sorted(folder.glob(names))]


def quantile_curves(study: PublishedStudy) -> tuple[str, ...]:
    """Labels of the curves that the study draws as violins: over LEAST levels or more, rising from 0 to 1."""
    figure = study.study.figure
    if figure is None or figure.draw != "violins":
        return ()
    chosen = [label for label in study.result.x if not figure.measures or is_named(label, figure.measures)]
    return tuple(
        label
        for label, x in [(label, study.result.x[label]) for label in chosen]
        if len(x) >= LEAST and x[0] == 0 and x[-1] == 1 and all(a < b for a, b in pairwise(x))
    )


def _like_quantiles(study: PublishedStudy) -> set[str]:
    """Those, and what else the same measures give over the same levels, drawn or not."""
    x = study.result.x
    alike = {(measure_of(label), x[label]) for label in quantile_curves(study)}
    return {label for label in x if (measure_of(label), x[label]) in alike}


def table(study: PublishedStudy) -> Table:
    found, n, quantiles = columns(study), study.result.n, _like_quantiles(study)
    by_cell = {cell.name: [run for run in study.result.runs if run.cell == cell.name] for cell in study.result.cells}
    against = _against(study)
    compared = sum(other is not None for other in against.values())
    lines = []
    for name, runs in by_cell.items():
        claims, others = study.study.claims.get(name, {}), by_cell.get(against[name] or "")
        entries = tuple(_entry(column, runs, others, compared, claims, n) for column in found)
        fooled = sum(bool(run.training.overfitting and run.training.overfitting.found) for run in runs)
        lines.append(Line(name, against[name], entries, fooled, runs[0].parameters))
    told = tuple(i for i, column in enumerate(found) if column.label not in quantiles)
    return Table(study, found, tuple(lines), _effects(study, found, by_cell), told)


def sheets(table: Table) -> tuple[Sheet, ...]:
    """Each measure's curves, places side by side; of quantiles some levels alone."""
    quantiles = _like_quantiles(table.study)
    measures: dict[str, dict[str, list[int]]] = {}
    for i, column in enumerate(table.columns):
        if column.x is not None and (column.label not in quantiles or column.x in SHOWN):
            measures.setdefault(measure_of(column.label), {}).setdefault(column.label, []).append(i)
    found = []
    for measure, curves in measures.items():
        first = [table.columns[i] for i in next(iter(curves.values()))]
        rows = tuple(
            Row(
                _of_curve(line.cell, label, len(table.lines)),
                tuple((table.columns[i], line.entries[i]) for i in places),
            )
            for line in table.lines
            for label, places in curves.items()
            if not all(math.isnan(line.entries[i].mean) for i in places)  # as of a block that a setting has not
        )
        found.append(Sheet(measure + first[0].unit, tuple(f"{column.x:g}" for column in first), rows))
    return tuple(found)


def _of_curve(cell: str, label: str, cells: int) -> str:
    curve = label.partition(": ")[2]
    return ": ".join(part for part in (cell if cells > 1 or not curve else "", curve) if part)


def columns(study: PublishedStudy) -> tuple[Column, ...]:
    shares = {measure.label for measure in study.study.measures if measure.measure in BUILTIN}
    found: list[Column] = []
    for label in dict.fromkeys(label for run in study.result.runs for label in run.values):
        places = study.result.x.get(label)
        if places is None:
            found.append(Column(label, label in shares))
        else:
            found += [Column(label, label in shares, i, x) for i, x in enumerate(places)]
    order, figure = [measure.label for measure in study.study.measures], study.study.figure
    drawn = figure.measures if figure else ()  # the order of a measure's curves, where the figure names them

    def place(column: Column) -> tuple[int, int]:
        return (
            order.index(measure_of(column.label)),
            drawn.index(column.label) if column.label in drawn else len(drawn),
        )

    return tuple(sorted(found, key=place))


def contrast(
    shares: Sequence[float], samples: Sequence[Sequence[float]], error: float, floor: float
) -> Difference | None:
    """Welch's interval of sum_i shares_i mean_i, at confidence 1 - `error`; None when a sample has one value alone.

    Each standard deviation is taken as `floor` at least. Degrees of freedom by Satterthwaite.
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


def _floor(column: Column, n: int) -> float:
    return 1 / n if column.share else 0.0


def _against(study: PublishedStudy) -> dict[str, str | None]:
    """By cell the one that it is compared with: the first with the same named cell, where axes vary it, or the previous."""
    found: dict[str, str | None] = {}
    first: dict[str, str] = {}
    previous = None
    for cell in study.result.cells:
        group = cell.levels.get("cell", "") if len(cell.levels) > 1 else ""
        found[cell.name] = first.get(group) if study.study.against == "first" else previous
        first.setdefault(group, cell.name)
        previous = cell.name
    return found


def _entry(
    column: Column, runs: list[Run], others: list[Run] | None, compared: int, claims: dict[str, Value], n: int
) -> Entry:
    values, claimed = _sample(column, runs), claims.get(column.label)
    difference = None
    if others is not None:
        difference = contrast((1, -1), (values, _sample(column, others)), ERROR / compared, _floor(column, n))
    return Entry(values, None if claimed is None else column.of(claimed), difference)


def _effects(study: PublishedStudy, found: tuple[Column, ...], by_cell: dict[str, list[Run]]) -> tuple[Effect, ...]:
    """Of each axis with two levels, where there are two axes or more."""
    cells = study.result.cells
    levels = {axis: list(dict.fromkeys(cell.levels[axis] for cell in cells)) for axis in cells[0].levels}
    pairs = {axis: names for axis, names in levels.items() if len(names) == 2}
    if not found or len(levels) < 2 or any(len(runs) < 2 for runs in by_cell.values()):
        return ()
    effects = []
    for axis, (low, high) in pairs.items():
        shares = [(1 if cell.levels[axis] == high else -1) * 2 / len(cells) for cell in cells]
        differences: list[Difference | None] = []
        for column in found:
            samples = [_sample(column, by_cell[cell.name]) for cell in cells]
            differences.append(contrast(shares, samples, ERROR / len(pairs), _floor(column, study.result.n)))
        effects.append(Effect(axis if axis == "cell" else last_word(axis), low, high, tuple(differences)))
    return tuple(effects)


def _sentences(told: Sequence[int], found: Sequence[Column], lines: Sequence[Line]) -> tuple[str, ...]:
    if len(lines) == 1:
        return ("One setting, nothing to compare.",)
    by_label: dict[str, list[tuple[int, Column]]] = {}
    for index in told:
        by_label.setdefault(found[index].label, []).append((index, found[index]))
    said = []
    for label, parts in by_label.items():
        index, column = parts[0]
        there = {line.cell for line in lines if line.entries[index].values}
        having = [line for line in lines if line.cell in there and (line.against is None or line.against in there)]
        compared = [line for line in having if line.against]
        if column.x is None or not compared or any(line.entries[index].difference is None for line in compared):
            said.append(_words(column, index, having))
            continue
        shown = [f"{line.cell} at {', '.join(_beyond(line, parts))}" for line in compared if _beyond(line, parts)]
        rest = "the spread of the seeds covers " + ("all other differences" if shown else "all differences")
        said.append(
            f"{label}: beyond the spread of the seeds: {'; '.join(shown)}; {rest}."
            if shown
            else f"{label}: no effect is shown, {rest}."
        )
    return tuple(said)


def _beyond(line: Line, parts: list[tuple[int, Column]]) -> list[str]:
    """The places of a curve where a cell differs beyond the seeds' spread, with the difference."""
    found = [(column, line.entries[index].difference) for index, column in parts]
    return [f"{c.x:g} ({c.text(d.estimate, sign=True)})" for c, d in found if d is not None and d.shown]


def _words(column: Column, index: int, lines: list[Line]) -> str:
    """What the differences of one number show, in a sentence."""
    compared = [line for line in lines if line.against is not None]
    if not compared:
        return f"{column.title}: one setting, nothing to compare."
    if any(line.entries[index].difference is None for line in compared):
        return f"{column.title}: one seed, so no difference can be told from noise."
    differences = {line.cell: line.entries[index].difference for line in compared}
    shown = {cell: d.estimate for cell, d in differences.items() if d is not None and d.shown}
    rest = len(compared) - len(shown)
    largest = sorted(shown, key=lambda cell: -abs(shown[cell]))[:MOST]
    said = "; ".join(f"{cell} ({column.text(shown[cell], sign=True)})" for cell in largest)
    said += f"; and {len(shown) - MOST} more" if len(shown) > MOST else ""
    which = ("all" if not shown else "the other") + (f" {rest} differences" if rest > 1 else " difference")
    covered = f"the spread of the seeds covers {which if len(compared) > 1 else 'the difference'}"
    if not shown:
        return f"{column.title}: no effect is shown, {covered}."
    return f"{column.title}: beyond the spread of the seeds: {said}" + (f"; {covered}." if rest else ".")
