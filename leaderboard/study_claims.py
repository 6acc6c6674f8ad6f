"""Printed numbers of a paper beside the rebuilt ones. Pure.

A claim lies within the seeds where the 95% interval of the rebuilt mean (Student's, no spread taken below one image) holds
it. A difference is drawn only where the study says that its claims are comparable, or where a claim of the submission states
the printed number for the same data, radius, method and images (`record_claims.obstacle`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from benchmark.records.accuracy import Proportion
from benchmark.records.study import in_order
from benchmark.records.study_table import ERROR, Column, Difference, Entry, Table, contrast, images_of
from benchmark.specs.study import MeasureSpec, Study, Value, measure_named
from benchmark.specs.submission import Claim
from leaderboard.record_claims import Obstacle, obstacle

MOST = 4  # numbers side by side, each with three columns

Tested = Literal["within", "above", "below"]
Verdict = Tested | Literal["one seed"] | Obstacle | Literal["not run"]
TESTED: tuple[Verdict, ...] = get_args(Tested)
VERDICTS: tuple[Verdict, ...] = (*TESTED, "one seed", *get_args(Obstacle), "not run")


@dataclass(frozen=True)
class Compared:
    """One printed number.

    Attributes:
        claimed: None for a number of the study's figure that the paper does not print.
        rebuilt: None if not run.
        difference: of the rebuilt number from the claimed one; None with one seed, or if there is an obstacle.
        obstacle: why the two are not comparable; None if they are.
        counted: the rebuilt share of one seed, with its interval over images; None for other numbers.
    """

    column: Column
    claimed: float | None
    rebuilt: Entry | None = None
    difference: Difference | None = None
    obstacle: Obstacle | None = None
    counted: Proportion | None = None

    @property
    def verdict(self) -> Verdict:
        """Return where the rebuilt number lies: "above" or "below" the claim, or "within" the interval of the seeds."""
        if self.rebuilt is None:
            return "not run"
        if self.obstacle:
            return self.obstacle
        if self.difference is None:
            return "one seed"
        if not self.difference.shown:
            return "within"
        return "above" if self.difference.estimate > 0 else "below"

    @property
    def estimate(self) -> float:
        """Return rebuilt minus claimed; NaN without either."""
        return math.nan if self.rebuilt is None or self.claimed is None else self.rebuilt.mean - self.claimed


@dataclass(frozen=True)
class ClaimSheet:
    """The numbers of a paper's table that a study reproduces, and those of its figure beside them: a line a setting.

    A number is None if the paper does not print it and the figure does not have it.
    """

    columns: tuple[Column, ...]
    lines: tuple[tuple[str, tuple[Compared | None, ...]], ...]

    @property
    def wide(self) -> bool:
        """Whether it has more numbers a setting than a page is wide: then each has a line of its own."""
        return len(self.columns) > MOST

    @property
    def compared(self) -> list[Compared]:
        """Return the numbers that the paper prints."""
        return [number for _, line in self.lines for number in line if number and number.claimed is not None]


class Tally(Counter[Verdict]):
    """The number of printed numbers by verdict."""

    ORDER = VERDICTS

    @classmethod
    def of(cls, sheets: Iterable[ClaimSheet | None]) -> Tally:
        return cls(number.verdict for sheet in sheets if sheet is not None for number in sheet.compared)

    @property
    def claimed(self) -> int:
        return self.total()

    @property
    def tested(self) -> int:
        """Return how many were compared with several seeds."""
        return sum(self[verdict] for verdict in TESTED)

    @property
    def comparable(self) -> int:
        """Return how many have a rebuilt number of the same data, radius, method and images."""
        return self.tested + self["one seed"]


def claim_sheet(study: Study, table: Table | None = None, stated: Sequence[Claim] = ()) -> ClaimSheet | None:
    """Return the claims of a study, published as `table` or not run; None where it prints nothing.

    Args:
        stated: the submission's claims, which say of which data, radius and images a number is.
    """
    by_cell = {line.cell: line.entries for line in table.lines} if table else {}
    columns = [*table.columns] if table else []
    every_column = [*columns, *(c for c in declared_columns(study) if c.label not in {column.label for column in columns})]

    drawn = study.figure.measures if study.figure else ()

    def compare(cell: str, place: int) -> Compared | None:
        column = every_column[place]
        printed = study.claims.get(cell, {}).get(column.label)
        value = None if printed is None else column.of(printed)
        entry = by_cell[cell][place] if cell in by_cell and place < len(columns) else None
        entry = entry if entry and entry.values else None
        if value is None:
            return Compared(column, None, entry) if entry and column.label in drawn else None
        if table is None or entry is None:
            return Compared(column, value)
        n = images_of(table.study, column.label)
        counted = _counted(column, entry, n) if len(entry.values) == 1 else None
        if other := _obstacle(study, column, value, n, stated):
            return Compared(column, value, entry, obstacle=other, counted=counted)
        difference = _difference(entry, value, 1 / n if column.share else 0.0)
        return Compared(column, value, entry, difference, counted=counted)

    cells = [*by_cell, *(cell.name for cell in study.grid() if cell.name in study.claims)]
    lines = {cell: [compare(cell, i) for i in range(len(every_column))] for cell in cells}
    lines = {cell: line for cell, line in lines.items() if any(n and n.claimed is not None for n in line)}
    kept = [i for i in range(len(every_column)) if any(line[i] for line in lines.values())]
    shown = [(cell, tuple(line[i] for i in kept)) for cell, line in lines.items()]
    return ClaimSheet(tuple(_with_radius(study, every_column[i]) for i in kept), tuple(shown)) if shown else None


def _with_radius(study: Study, column: Column) -> Column:
    """Return a column whose title has the radius of its attack."""
    measure = measure_named(study, column.label)
    if not measure or not (attack := measure.attack) or f"{attack.eps:g}" in column.label.split():
        return column
    ball = f"{attack.eps:g}" if attack.norm in column.label else f"{attack.norm} {attack.eps:g}"
    return replace(column, label=f"{column.label} {ball}")


def _counted(column: Column, entry: Entry, n: int) -> Proportion | None:
    """Return the share of images that one training has; None for a number that counts none."""
    count = round(entry.mean * n)
    return Proportion.of(count, n) if column.share and math.isclose(count, entry.mean * n, abs_tol=1e-6) else None


def _obstacle(study: Study, column: Column, value: float, n: int, stated: Iterable[Claim]) -> Obstacle | None:
    """Return why a printed number is not comparable with the rebuilt one; None if a claim states it for the same thing."""
    measure = measure_named(study, column.label)
    if measure and measure.label in study.claims_comparable:
        return None
    claims = (claim for claim in stated if math.isclose(claim.value, value, abs_tol=1e-9))
    obstacles = [obstacle(claim, study.track, _name(measure, column), n) for claim in claims]
    return min(obstacles, key=lambda o: (o is not None, o == "other data"), default="other data")


def _name(measure: MeasureSpec | None, column: Column) -> str:
    """Return the metric of a column, such as "pgd-50 L2 0.5"; "" for a submission's own measure."""
    if measure is None or measure.is_function:
        return ""
    if attack := measure.attack:
        steps = f"-{attack.parameters['steps']}" if "steps" in attack.parameters else ""
        return f"{attack.attack}{steps} {attack.norm} {attack.eps:g}"
    return "clean" if column.x is None else f"certified L2 {column.x:g}"


def declared_columns(study: Study) -> list[Column]:
    """Return the columns in which a study claims numbers; the places of a curve are its radii, or counted."""
    first_values: dict[str, Value] = {}
    for claims in study.claims.values():
        first_values |= {label: value for label, value in claims.items() if label not in first_values}
    columns: list[Column] = []
    for label in in_order(study, first_values):
        value = first_values[label]
        measure = measure_named(study, label)
        share = study.is_share(label)
        if isinstance(value, float | int):
            columns.append(Column(label, share))
        else:
            columns += [Column(label, share, i, x) for i, x in enumerate(_places(measure, len(value)))]
    return columns


def _places(measure: MeasureSpec | None, count: int) -> Sequence[float]:
    radii = measure and (measure.radii or measure.parameters.get("radii"))
    return radii if isinstance(radii, tuple) and len(radii) == count else range(1, count + 1)  # type: ignore[return-value]


def _difference(entry: Entry, claimed: float, floor: float) -> Difference | None:
    mean = contrast((1,), (entry.values,), ERROR, floor)
    return mean and Difference(mean.estimate - claimed, mean.low - claimed, mean.high - claimed)
