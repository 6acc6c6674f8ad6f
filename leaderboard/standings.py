"""The range of ranks of each row by one number, and the rows that it is tied with. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from benchmark.records.comparison import ERROR, better

IMAGES = "images"  # McNemar's exact test over the images does not order the two
SEEDS = "seeds"  # it does, the difference over trainings and images (Welch) does not
UNKNOWN = "unknown"  # the number is not known image by image


@dataclass(frozen=True)
class Tie:
    """Rows, in the order of the board, that one test does not tell from a row: IMAGES, SEEDS or UNKNOWN."""

    test: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Standing:
    """`best`: 1 + the significantly better rows; `worst`: all rows minus the significantly worse; `ties`: the rest."""

    best: int
    worst: int
    ties: tuple[Tie, ...] = ()

    @property
    def rank(self) -> str:
        return f"{self.best}" if self.best == self.worst else f"{self.best}–{self.worst}"


def standings(
    rows: Sequence[str], images: Mapping[str, str], trained: Mapping[str, Sequence[str]], named: bool = True
) -> dict[str, Standing]:
    """Return the standing of each row. Pairs are ordered as `better` of benchmark/records/comparison.py orders them.

    Args:
        rows: their names, in the order of the board.
        images: a digit an image, by row; a row without is not ordered.
        trained: by row the digits of each of its trainings, where more than one is known.
        named: whether standings name the tied rows.

    Raises:
        ValueError: two rows are judged on other numbers of images.
    """
    comparisons = len(rows) * (len(rows) - 1) // 2
    judged = np.array([row in images for row in rows], dtype=bool)
    signs = np.zeros((len(rows), len(rows)), dtype=np.int8)
    places = [int(place) for place in np.flatnonzero(judged)]
    signs[np.ix_(places, places)] = _over_images([images[rows[place]] for place in places], comparisons)
    seeds = np.zeros_like(signs, dtype=bool)
    with_seeds = [place for place in places if rows[place] in trained]
    for i in with_seeds:
        for j in with_seeds:
            if i < j and signs[i, j]:
                pair = rows[i], rows[j]
                both = trained[pair[0]], trained[pair[1]]
                if not better((images[pair[0]], images[pair[1]]), both, comparisons):
                    signs[i, j] = signs[j, i] = 0
                    seeds[i, j] = seeds[j, i] = True
    compared = judged[:, None] & judged[None, :]
    np.fill_diagonal(compared, True)
    tied = {IMAGES: (signs == 0) & compared & ~seeds, SEEDS: seeds, UNKNOWN: ~compared}
    np.fill_diagonal(tied[IMAGES], False)
    names = np.array([*rows], dtype=object)
    first = 1 + (signs == -1).sum(axis=1)
    last = len(rows) - (signs == 1).sum(axis=1)
    ties: list[tuple[Tie, ...]] = [()] * len(rows)
    if named:
        ties = [
            tuple(Tie(test, tuple(names[matrix[place]])) for test, matrix in tied.items() if matrix[place].any())
            for place in range(len(rows))
        ]
    return {row: Standing(*values) for row, *values in zip(rows, first.tolist(), last.tolist(), ties, strict=True)}


def _over_images(verdicts: Sequence[str], comparisons: int) -> np.ndarray:
    """Return (rows, rows): 1 if the first is significantly better by McNemar's test, -1 if the other is, else 0."""
    if len({len(row) for row in verdicts}) > 1:
        raise ValueError("rows are judged on other numbers of images")
    if len(verdicts) < 2:
        return np.zeros((len(verdicts),) * 2, dtype=np.int8)
    right = np.array([np.frombuffer(row.encode(), np.uint8) == ord("1") for row in verdicts], dtype=np.float32)
    both = np.rint(right @ right.T).astype(int)  # exact below 2^24 images
    wins = np.diag(both)[:, None] - both
    apart = wins + wins.T
    counted = np.unique(apart)
    fewest = np.zeros(apart.max() + 1, dtype=int)
    fewest[counted] = _most(counted, ERROR / comparisons)
    shown = np.minimum(wins, wins.T) <= fewest[apart]
    return (np.sign(wins - wins.T) * shown).astype(np.int8)


def _most(apart: np.ndarray, error: float) -> np.ndarray:
    """Return how many of the differing images the worse row may win at most for p <= `error`; -1: none."""
    most = binom.ppf(error / 2, apart, 0.5)
    most -= 2 * binom.cdf(most, apart, 0.5) > error
    return most.astype(int)
