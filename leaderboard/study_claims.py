"""What a paper prints beside what came out, number by number. Pure.

A claim lies within the seeds where the 95% interval of the rebuilt mean (Student's, no spread taken below one image) holds
it. On a track that no paper uses the two are of other data, and no difference is drawn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmark.results.study_table import ERROR, Column, Difference, Entry, Table, contrast
from benchmark.specs.study import BUILTIN, MeasureSpec, Study, Value

MOST = 4  # numbers side by side, each with three columns

Verdict = Literal["within", "above", "below", "one seed", "other data", "not run"]


@dataclass(frozen=True)
class Compared:
    """One printed number. `rebuilt` is None where not run, `difference` (from `claimed`) with one seed or other data."""

    column: Column
    claimed: float
    rebuilt: Entry | None = None
    difference: Difference | None = None
    other_data: bool = False

    @property
    def verdict(self) -> Verdict:
        """Where the rebuilt number lies: "above" the claim, "below" it, or with it "within" the seeds' interval."""
        if self.rebuilt is None:
            return "not run"
        if self.other_data:
            return "other data"
        if self.difference is None:
            return "one seed"
        if not self.difference.shown:
            return "within"
        return "above" if self.difference.estimate > 0 else "below"

    @property
    def estimate(self) -> float:
        """Rebuilt minus claimed; NaN where not run."""
        return math.nan if self.rebuilt is None else self.rebuilt.mean - self.claimed


@dataclass(frozen=True)
class ClaimSheet:
    """A paper's table as far as it prints numbers that a study asks for: a line a setting, None where nothing is printed."""

    columns: tuple[Column, ...]
    lines: tuple[tuple[str, tuple[Compared | None, ...]], ...]

    @property
    def wide(self) -> bool:
        """Whether it has more numbers a setting than a page is wide: then each has a line of its own."""
        return len(self.columns) > MOST

    @property
    def compared(self) -> list[Compared]:
        return [one for _, line in self.lines for one in line if one is not None]


class Tally(Counter[Verdict]):
    """How many printed numbers there are, by verdict."""

    @classmethod
    def of(cls, sheets: Iterable[ClaimSheet | None]) -> Tally:
        return cls(one.verdict for sheet in sheets if sheet is not None for one in sheet.compared)

    @property
    def claimed(self) -> int:
        return self.total()

    @property
    def tested(self) -> int:
        """Those that several seeds were held against."""
        return self["within"] + self["above"] + self["below"]


def rebuilt_sheet(table: Table, other_data: bool = False) -> ClaimSheet | None:
    """Return the claims of a published study, None without any; `other_data` on a track that no paper uses."""
    claims, n = table.study.study.claims, table.study.result.n
    by_cell = {line.cell: line.entries for line in table.lines}
    cells = [*by_cell, *(cell for cell in claims if cell not in by_cell)]
    known = list(table.columns)
    known += [c for c in declared_columns(table.study.study) if c.label not in {column.label for column in known}]

    def compare(cell: str, place: int) -> Compared | None:
        column = known[place]
        value = _number(claims.get(cell, {}).get(column.label), column)
        if value is None:
            return None
        entry = by_cell[cell][place] if cell in by_cell and place < len(table.columns) else None
        if entry is None or not entry.values:
            return Compared(column, value)
        if other_data:
            return Compared(column, value, entry, other_data=True)
        return Compared(column, value, entry, _difference(entry, value, 1 / n if column.share else 0.0))

    return _sheet(cells, known, [[compare(cell, i) for i in range(len(known))] for cell in cells])


def declared_sheet(study: Study) -> ClaimSheet | None:
    """The claims of a study that was not run; None where it has none."""
    known, cells = declared_columns(study), [*study.claims]
    numbers = [[_number(study.claims[cell].get(column.label), column) for column in known] for cell in cells]
    lines = [
        [None if value is None else Compared(column, value) for column, value in zip(known, line, strict=True)]
        for line in numbers
    ]
    return _sheet(cells, known, lines)


def declared_columns(study: Study) -> list[Column]:
    """The columns in which a study claims numbers, by what is declared alone; a curve's places are its radii, or counted."""
    found: dict[str, Value] = {}
    for claims in study.claims.values():
        found |= {label: value for label, value in claims.items() if label not in found}
    measures = {measure.label: measure for measure in study.measures}
    columns: list[Column] = []
    for label, value in found.items():
        measure = measures.get(label) or measures.get(label.partition(": ")[0])
        share = measure is not None and measure.measure in BUILTIN
        if isinstance(value, float | int):
            columns.append(Column(label, share))
        else:
            columns += [Column(label, share, i, x) for i, x in enumerate(_places(measure, len(value)))]
    return columns


def _places(measure: MeasureSpec | None, count: int) -> Sequence[float]:
    return measure.radii if measure is not None and len(measure.radii) == count else range(1, count + 1)


def _number(value: Value | None, column: Column) -> float | None:
    return None if value is None else column.of(value)


def _difference(entry: Entry, claimed: float, floor: float) -> Difference | None:
    mean = contrast((1,), (entry.values,), ERROR, floor)
    return mean and Difference(mean.estimate - claimed, mean.low - claimed, mean.high - claimed)


def _sheet(
    cells: Sequence[str], columns: Sequence[Column], lines: Sequence[Sequence[Compared | None]]
) -> ClaimSheet | None:
    """Without the columns and lines in which nothing is printed."""
    kept = [i for i in range(len(columns)) if any(line[i] is not None for line in lines)]
    shown = [
        (cell, tuple(line[i] for i in kept))
        for cell, line in zip(cells, lines, strict=True)
        if any(one is not None for one in line)
    ]
    return ClaimSheet(tuple(columns[i] for i in kept), tuple(shown)) if shown else None
