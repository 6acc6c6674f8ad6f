"""Ranks of Records, and the rows of a table. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from scipy.stats import norm

from benchmark.records.accuracy import Proportion
from benchmark.records.contributed import Contribution, Scores, credits
from benchmark.records.record import Record, headline, headline_names, order
from benchmark.records.study import PublishedStudy
from benchmark.records.study_table import Spread
from benchmark.specs.track import SmoothingSpec, Track
from leaderboard.seeds import Trainings, trainings
from leaderboard.standings import Standing, standings

TITLES = {"smoothed": "smoothed version, certified", "corrupted": "corrupted (ImageNet-C strengths)"}
ROUNDED_UP = 5e-5  # pixels


@dataclass(frozen=True)
class Row:
    """One line of a board: `cells` in the order of the columns, None where a model has no such number.

    `best` and `worst` are the ranks left to it by the first robust number: one more than the rows shown to be better, and all
    rows but those shown to be worse. Where the ranks of two rows do not meet, one is shown to be better, by itself or by rows
    between them. `standings` are the ranks by each number, among the rows that have it. `trainings` is None where the row is
    one training; `contributions` are contributed adversarial images, which the numbers count.
    """

    best: int
    worst: int
    record: Record
    cells: tuple[Proportion | None, ...]
    spreads: tuple[Spread | None, ...]  # over seeds, in the order of the columns
    trainings: Trainings | None
    contributions: tuple[Contribution, ...] = ()
    standings: Mapping[str, Standing] = field(default_factory=dict)

    @property
    def credits(self) -> dict[str, str]:
        """Return by column who lowered the number, and by how many images."""
        return credits(self.contributions)

    @property
    def rank(self) -> str:
        return f"{self.best}" if self.best == self.worst else f"{self.best}–{self.worst}"


def columns(track: Track) -> list[str]:
    return headline_names(track)


def label(name: str) -> str:
    """Return a number's name in words, such as "smoothed version, certified L2 0.5"."""
    kind, _, within = name.partition(" ")
    return f"{TITLES.get(kind, kind)} {ball(within)}".strip()


def ball(name: str) -> str:
    """Write radii that are a whole number of 255ths, rounded up to three digits, as papers do: "8/255" for "0.0314"."""
    words, _, radius = name.rpartition(" ")
    if not re.fullmatch(r"0\.0*[1-9]\d{2,}", radius):
        return name
    levels = round(float(radius) * 255)
    return f"{words} {levels}/255".strip() if abs(float(radius) - levels / 255) < ROUNDED_UP else name


def rank(
    records: list[Record],
    track: Track,
    images: Mapping[str, Scores] = MappingProxyType({}),
    studies: Sequence[PublishedStudy] = (),
    contributions: Mapping[str, tuple[Contribution, ...]] = MappingProxyType({}),
) -> list[Row]:
    """Return the rows by their ranks, best and worst; equal ones as all tables sort numbers (`records.record.order`).

    Two rows are ordered where images and, if both have one, studies over seeds say so (benchmark/records/comparison.py).

    Args:
        images: by row and name of a number, a digit an image: 1 where it counts. Rows without are not ordered.
        contributions: by row what others broke, which `records` and `images` count already.
    """
    names = columns(track)
    key = ranking_name(track)
    values = {record.row: headline(record) for record in records}

    trained = trainings(records, track, studies)
    ordered = sorted(records, key=lambda record: order(values[record.row], names, record.row))
    by_name = {
        name: _standings(name, [record for record in ordered if name in values[record.row]], images, trained, name == key)
        for name in dict.fromkeys([key, *_robust(names), *names])
        if not name.startswith("corrupted") and name not in out_of_reach(track)
    }
    rows = []
    for record in ordered:
        seeds, numbers, row = trained.get(record.row), values[record.row], record.row
        own = {name: standings_of[row] for name, standings_of in by_name.items() if row in standings_of}
        rows.append(
            Row(
                own[key].best, own[key].worst, record,
                tuple(numbers.get(name) for name in names),
                tuple(seeds.spreads.get(name) if seeds else None for name in names), seeds,
                tuple(contributions.get(row, ())), own,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row.best, row.worst))


@cache
def smoothing_reach(noise: SmoothingSpec | None) -> float:
    """Return the largest l2 radius that a track's noise can certify, which all samples of one class give; 0 without noise.

    The lower bound of Clopper and Pearson at level a is then a^(1 / n) (benchmark/certificates/smoothing.py).
    """
    return noise.sigma * float(norm.ppf((noise.alpha / noise.looks) ** (1 / noise.n))) if noise else 0.0


def out_of_reach(track: Track) -> list[str]:
    """Return the smoothed numbers that are 0 for every model, since the noise cannot certify their radius."""
    smoothed = [name for name in columns(track) if name.startswith("smoothed L2")]
    return [name for name in smoothed if float(name.rpartition(" ")[2]) > smoothing_reach(track.smoothing)]


def ranking_name(track: Track) -> str:
    """Return the number that ranks: the first robust accuracy, or clean accuracy if a track has no attack."""
    return next(iter(_robust(columns(track))), "clean")


def headline_columns(track: Track) -> list[str]:
    """Return the numbers shown first: clean, the robust one that ranks, and a certified one.

    It is of the l2 ball at which rows are attacked too; where there is none, of the (upper) middle radius.
    """
    radii = sorted(track.certified_radii)
    shown = [f"certified {common_radius(track) or f'L2 {radii[len(radii) // 2]:g}'}"] if radii else []
    return list(dict.fromkeys(["clean", ranking_name(track), *shown]))


def common_radius(track: Track) -> str:
    """Return the l2 ball at which rows are attacked and certified, such as "L2 0.5"; of several the middle; "" for none."""
    names = columns(track)
    balls = [name.partition(" ")[2] for name in names if name.startswith("certified")]
    both = [words for words in balls if f"robust {words}" in names]
    return both[(len(both) - 1) // 2] if both else ""


def _robust(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith("robust")]


def _standings(
    name: str, records: Sequence[Record], images: Mapping[str, Scores], trainings_of: Mapping[str, Trainings], named: bool
) -> dict[str, Standing]:
    """Return the standings by row, by one number."""
    scores = {row: numbers[name] for row, numbers in images.items() if name in numbers}
    verdicts = {row: seeds.verdicts[name] for row, seeds in trainings_of.items() if name in seeds.verdicts}
    return standings([record.row for record in records], scores, verdicts, named)
