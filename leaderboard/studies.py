"""Published studies to tables: means, the spread of seeds, and which differences it covers. Pure.

A difference counts as shown when its 95% interval over seeds (Welch's, which lets each cell have a spread of its own)
leaves out 0; the 5% are shared out over the cells that are compared (Bonferroni), and no spread is taken below one image.
The images are the same for all cells: other images would add to the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.special import stdtrit

from benchmark.studied import BUILTIN, PublishedStudy, Run, Value, last_word

ERROR = 0.05


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

    def text(self, value: float, sign: bool = False) -> str:
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
class Entry:
    """One number of one cell: over its seeds; as the paper claims it; and against another cell, None with one seed."""

    values: tuple[float, ...]
    claimed: float | None
    difference: Difference | None

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


@dataclass(frozen=True)
class Line:
    """One cell: `against` is the one it is held against; `overfitted` counts seeds that overfitted catastrophically."""

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
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Table:
    study: PublishedStudy
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    effects: tuple[Effect, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A line of a sheet: the cell it is of, and with curves which curve."""

    name: str
    line: Line
    entries: tuple[tuple[Column, Entry], ...]


@dataclass(frozen=True)
class Sheet:
    """A part of a table with the same heads: the numbers of each cell, or one measure's curves, places side by side."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]


def sheets(table: Table) -> tuple[Sheet, ...]:
    """The table for readers: single numbers in one sheet, the curves of each measure in one of their own."""
    numbered = list(enumerate(table.columns))
    flat = [(i, column) for i, column in numbered if column.x is None]
    found = []
    if flat:
        heads = tuple(column.title + (", %" if column.share else "") for _, column in flat)
        rows = tuple(Row(line.cell, line, tuple((c, line.entries[i]) for i, c in flat)) for line in table.lines)
        found.append(Sheet("", heads, rows))
    for measure in dict.fromkeys(column.label.partition(": ")[0] for _, column in numbered if column.x is not None):
        curves: dict[str, list[tuple[int, Column]]] = {}
        for i, column in numbered:
            if column.x is not None and column.label.partition(": ")[0] == measure:
                curves.setdefault(column.label, []).append((i, column))
        rows = tuple(
            Row(_of_curve(line.cell, label, len(table.lines)), line, tuple((c, line.entries[i]) for i, c in places))
            for line in table.lines
            for label, places in curves.items()
        )
        share = next(iter(curves.values()))[0][1].share
        places = next(iter(curves.values()))
        found.append(Sheet(measure + (", %" if share else ""), tuple(f"{c.x:g}" for _, c in places), rows))
    return tuple(found)


def _of_curve(cell: str, label: str, cells: int) -> str:
    curve = label.partition(": ")[2]
    return ": ".join(part for part in (cell if cells > 1 or not curve else "", curve) if part)


def read(folder: Path) -> list[PublishedStudy]:
    """The published studies of a track, by name."""
    return [PublishedStudy.model_validate_json(path.read_text()) for path in sorted(folder.glob("*.json"))]


def table(study: PublishedStudy) -> Table:
    found = columns(study)
    by_cell = {cell.name: [run for run in study.result.runs if run.cell == cell.name] for cell in study.result.cells}
    names = list(by_cell)
    lines = []
    for place, name in enumerate(names):
        against = names[0 if study.study.against == "first" else place - 1] if place else None
        entries = tuple(
            _entry(column, by_cell, name, against, study.study.claims.get(name, {}), study.result.n) for column in found
        )
        fooled = sum(bool(run.training.overfitting and run.training.overfitting.found) for run in by_cell[name])
        lines.append(Line(name, against, entries, fooled, by_cell[name][0].parameters))
    effects = _effects(study, found, by_cell)
    return Table(study, found, tuple(lines), effects, _sentences(found, lines))


def columns(study: PublishedStudy) -> tuple[Column, ...]:
    shares = {measure.label for measure in study.study.measures if measure.measure in BUILTIN}
    found: list[Column] = []
    for label in study.result.runs[0].values:
        places = study.result.x.get(label)
        if places is None:
            found.append(Column(label, label in shares))
        else:
            found += [Column(label, label in shares, i, x) for i, x in enumerate(places)]
    order, figure = [measure.label for measure in study.study.measures], study.study.figure
    drawn = figure.measures if figure else ()  # the order of a measure's curves, where the figure names them

    def place(column: Column) -> tuple[int, int]:
        return (
            order.index(column.label.partition(": ")[0]),
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
    values = [column.of(run.values[column.label]) for run in runs]
    return tuple(value for value in values if value is not None)


def _floor(column: Column, n: int) -> float:
    return 1 / n if column.share else 0.0


def _entry(
    column: Column, by_cell: dict[str, list[Run]], name: str, against: str | None, claims: dict[str, Value], n: int
) -> Entry:
    values = _sample(column, by_cell[name])
    claimed = claims.get(column.label)
    difference = None
    if against is not None:
        other = _sample(column, by_cell[against])
        difference = contrast((1, -1), (values, other), ERROR / (len(by_cell) - 1), _floor(column, n))
    return Entry(values, None if claimed is None else column.of(claimed), difference)


def _effects(study: PublishedStudy, found: tuple[Column, ...], by_cell: dict[str, list[Run]]) -> tuple[Effect, ...]:
    """Of each axis with two levels, where there are two axes or more."""
    cells = study.result.cells
    levels = {axis: list(dict.fromkeys(cell.levels[axis] for cell in cells)) for axis in cells[0].levels}
    pairs = {axis: names for axis, names in levels.items() if len(names) == 2}
    if len(levels) < 2 or any(len(runs) < 2 for runs in by_cell.values()):
        return ()
    effects = []
    for axis, (low, high) in pairs.items():
        shares = [(1 if cell.levels[axis] == high else -1) * 2 / len(cells) for cell in cells]
        differences = []
        for column in found:
            samples = [_sample(column, by_cell[cell.name]) for cell in cells]
            difference = contrast(shares, samples, ERROR / len(pairs), _floor(column, study.result.n))
            assert difference is not None
            differences.append(difference)
        effects.append(Effect(axis if axis == "cell" else last_word(axis), low, high, tuple(differences)))
    return tuple(effects)


def _sentences(found: tuple[Column, ...], lines: list[Line]) -> tuple[str, ...]:
    """One of each number, one of each curve; a single one where there is nothing to compare."""
    if len(lines) == 1:
        return ("One setting, nothing to compare.",)
    by_label: dict[str, list[tuple[int, Column]]] = {}
    for index, column in enumerate(found):
        by_label.setdefault(column.label, []).append((index, column))
    said = []
    for label, parts in by_label.items():
        if parts[0][1].x is None or any(line.entries[parts[0][0]].difference is None for line in lines[1:]):
            said.append(_words(parts[0][1], parts[0][0], lines))
            continue
        shown = [
            f"{line.cell} at {', '.join(_beyond(line, parts))}"
            for line in lines
            if line.against and _beyond(line, parts)
        ]
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
    shown = [line for line in compared if line.entries[index].difference.shown]  # type: ignore[union-attr]
    rest = len(compared) - len(shown)
    said = "; ".join(
        f"{line.cell} ({column.text(line.entries[index].difference.estimate, sign=True)})"  # type: ignore[union-attr]
        for line in shown
    )
    covered = "the spread of the seeds covers " + (
        "the difference" if len(compared) == 1 else f"{'all' if not shown else 'the other'} {rest} differences"
    )
    if not shown:
        return f"{column.title}: no effect is shown, {covered}."
    return f"{column.title}: beyond the spread of the seeds: {said}" + (f"; {covered}." if rest else ".")
