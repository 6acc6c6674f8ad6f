"""Records to the rows of a table: pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from benchmark.results.headline import headline, headline_names
from benchmark.results.proportion import Proportion
from benchmark.results.record import Record
from benchmark.specs.track import Track

TITLES = {
    "robust": "AutoAttack",  # which decides, others only lower it
    "smoothed": "smoothed version, certified",
    "corrupted": "corrupted (ImageNet-C strengths)",
}


@dataclass(frozen=True)
class Head:
    """The heading that neighbouring columns share, and what tells each of them apart; "" for one that stands alone."""

    title: str
    columns: list[str]


@dataclass(frozen=True)
class Row:
    """One line of a board: `cells` in the order of the columns, None where a model has no such number."""

    rank: int
    record: Record
    cells: tuple[Proportion | None, ...]


def columns(track: Track) -> list[str]:
    return headline_names(track)


def heads(names: list[str]) -> list[Head]:
    """The columns' names in groups by their first word."""
    groups = itertools.groupby((name.partition(" ") for name in names), key=lambda parts: parts[0])
    return [Head(TITLES.get(word, word), [rest for _, _, rest in parts]) for word, parts in groups]


def rank(records: list[Record], track: Track) -> list[Row]:
    """Best first by the first robust accuracy, then by the other robust and certified ones, clean, and name.

    Numbers of the smoothed versions do not count: those are other classifiers. Nor does the mean on corrupted images.
    Models whose first robust accuracy is equal share a rank: an order that the number does not show is not claimed.
    """
    names = columns(track)
    key = next((name for name in names if name.startswith("robust")), "clean")
    ranking = [name for name in names[1:] if not name.startswith(("smoothed", "corrupted"))]
    values = {record.row: headline(record) for record in records}

    def order(record: Record) -> tuple[float | str, ...]:
        numbers = values[record.row]
        rest = [-numbers[name].value if name in numbers else 1.0 for name in (*ranking, "clean")]
        return (-numbers[key].value, *rest, record.row)

    rows: list[Row] = []
    for place, record in enumerate(sorted(records, key=order), start=1):
        numbers = values[record.row]
        tied = rows and headline(rows[-1].record)[key].value == numbers[key].value
        rows.append(Row(rows[-1].rank if tied else place, record, tuple(numbers.get(name) for name in names)))
    return rows
