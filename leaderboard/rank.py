"""Records to the rows of a table: pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from benchmark.results.brought import Brought, Scores, credits
from benchmark.results.headline import headline, headline_names
from benchmark.results.paired import better
from benchmark.results.proportion import Proportion
from benchmark.results.record import Record
from benchmark.results.spread import Spread
from benchmark.results.study import PublishedStudy
from benchmark.specs.track import Track
from leaderboard.seeds import Trainings, trainings

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
    """One line of a board: `cells` in the order of the columns, None where a model has no such number.

    `best` and `worst` are the ranks that are left to it: one more than the rows shown to be better, and all rows but those
    shown to be worse. Where the ranks of two rows do not meet, one is shown to be better, by itself or by rows between
    them: were it not, two of the other rows at least would be both worse than the one and better than the other.
    `trainings` is None where the row is one training. `brought` are adversarial images of others, which the numbers count.
    """

    best: int
    worst: int
    record: Record
    cells: tuple[Proportion | None, ...]
    spreads: tuple[Spread | None, ...]  # over seeds, in the order of the columns
    trainings: Trainings | None
    brought: tuple[Brought, ...] = ()

    @property
    def credits(self) -> dict[str, str]:
        """By column who lowered the number, by how many images."""
        return credits(self.brought)

    @property
    def rank(self) -> str:
        return f"{self.best}" if self.best == self.worst else f"{self.best}–{self.worst}"


def columns(track: Track) -> list[str]:
    return headline_names(track)


def heads(names: list[str]) -> list[Head]:
    """The columns' names in groups by their first word."""
    groups = itertools.groupby((name.partition(" ") for name in names), key=lambda parts: parts[0])
    return [Head(TITLES.get(word, word), [rest for _, _, rest in parts]) for word, parts in groups]


def rank(
    records: list[Record],
    track: Track,
    images: Mapping[str, Scores] = MappingProxyType({}),
    studies: Sequence[PublishedStudy] = (),
    brought: Mapping[str, tuple[Brought, ...]] = MappingProxyType({}),
) -> list[Row]:
    """The rows by the first robust accuracy, then by the other robust and certified ones, clean, and name.

    Numbers of the smoothed versions do not count: those are other classifiers. Nor does the mean on corrupted images.
    That is where a row stands in the table. Its ranks claim no more than is shown: two rows are ordered where images and,
    if both have one, studies over seeds say so (benchmark/results/paired.py), both of the first robust accuracy.

    Args:
        images: by row and name of a number, a digit an image: 1 where it counts, 0 where not. Rows that lack the number
            which ranks are not ordered.
        brought: by row what others broke, which `records` and `images` count already.
    """
    names = columns(track)
    key = ranking_name(track)
    ranking = [name for name in names[1:] if not name.startswith(("smoothed", "corrupted"))]
    values = {record.row: headline(record) for record in records}

    def order(record: Record) -> tuple[float | str, ...]:
        numbers = values[record.row]
        rest = [-numbers[name].value if name in numbers else 1.0 for name in (*ranking, "clean")]
        return (-numbers[key].value, *rest, record.row)

    known = trainings(records, track, studies)
    shown = _orders(records, {row: names[key] for row, names in images.items() if key in names}, key, known)
    rows = []
    for record in sorted(records, key=order):
        verdicts = [sign for pair, sign in shown.items() if pair[0] == record.row]
        seeds, numbers = known.get(record.row), values[record.row]
        rows.append(
            Row(
                1 + verdicts.count(-1), len(records) - verdicts.count(1), record,
                tuple(numbers.get(name) for name in names),
                tuple(seeds.spreads.get(name) if seeds else None for name in names), seeds,
                tuple(brought.get(record.row, ())),
            )
        )  # fmt: skip
    return rows


def ranking_name(track: Track) -> str:
    """The number that ranks: the first robust accuracy, clean accuracy where a track has no attack."""
    return next((name for name in columns(track) if name.startswith("robust")), "clean")


def _orders(
    records: Sequence[Record], verdicts: Mapping[str, str], key: str, known: Mapping[str, Trainings]
) -> dict[tuple[str, str], int]:
    """By pair of rows, in both directions: 1 where the first is shown to be better, -1 where worse, 0 where neither."""
    pairs = list(itertools.combinations([record.row for record in records], 2))
    found = {}
    for one, other in pairs:
        both = [known[row].verdicts[key] for row in (one, other) if row in known]
        seeds = (both[0], both[1]) if len(both) == 2 else None
        judged = one in verdicts and other in verdicts
        sign = better((verdicts[one], verdicts[other]), seeds, len(pairs)) if judged else 0
        found[one, other], found[other, one] = sign, -sign
    return found
