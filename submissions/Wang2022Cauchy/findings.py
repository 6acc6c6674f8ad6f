"""The paper's three findings as statements, tested on a study of ViTs and CoViTs.

Intervals are at 95%, each for itself. A statement that compares models speaks of the models of the study, a few of one kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from scipy.stats import kendalltau

from benchmark.results.finding import Finding
from benchmark.results.study import StudyResult
from benchmark.results.study_table import contrast

QUANTITIES = {"sigma_max": "sigma_max", "log_norm": "the logarithmic norm", "residual_gain": "the residual gain"}
DRAWS = 2000  # of the bootstrap
ROBUST = "AutoAttack L2"
WEAK, STRONG = "FGSM", ("PGD-20 L2", "CW: accuracy within")
Interval = tuple[float, float, float]


def three_findings(result: StudyResult, verdicts: pa.Table) -> list[Finding]:
    """(a) where sigma_max is largest, (b) what it says of robustness, (c) what attention does; (a) and (b) for the
    logarithmic norm and the residual gain too.
    """
    found = []
    for quantity, words in QUANTITIES.items():
        found += _ends(result, verdicts, quantity, words)
    for quantity, words in QUANTITIES.items():
        found += _ranks(result, quantity, words)
    return found + _attention(result)


def _ends(result: StudyResult, verdicts: pa.Table, quantity: str, words: str) -> list[Finding]:
    """The smaller of the first and the last block less the largest between them, of each model with three blocks or more,
    of which two images or more have all values known.
    """
    found = []
    for cell in dict.fromkeys(run.cell for run in result.runs):
        values = _by_block(verdicts, cell, quantity)
        if values.shape[0] < 3 or values.shape[1] < 2:
            continue
        ends, between = np.minimum(values[0], values[-1]), values[1:-1].max(axis=0)
        found.append(
            Finding.of(
                f"In {cell}, {words} is largest in the first and the last encoder block",
                f"smaller of first and last less the largest between, mean of {words}",
                f"{values.shape[1]} images, paired; one network of each seed",
                _mean(ends - between),
            )
        )
    return found


def _by_block(verdicts: pa.Table, cell: str, quantity: str) -> np.ndarray:
    """(blocks, images): each image's value, the mean over seeds; images that any block or seed lacks are left out."""
    names = [name for name in verdicts.column_names if name.startswith(f"Jacobian: {quantity} of block")]
    rows = verdicts.filter(np.array(verdicts["cell"].to_pylist()) == cell)
    seeds = sorted(set(rows["seed"].to_pylist()))
    parts = []
    for seed in seeds:
        part = rows.filter(np.array(rows["seed"].to_pylist()) == seed)
        own = [part[name] for name in names if part[name].null_count < len(part)]  # others are of deeper cells
        parts.append(np.stack([column.to_numpy().astype(float) for column in own]))
    mean = np.mean(parts, axis=0)
    return mean[:, ~np.isnan(mean).any(axis=0)]


def _ranks(result: StudyResult, quantity: str, words: str) -> list[Finding]:
    """Kendall's tau, negated: positive where a smaller mean goes with higher robust accuracy; over models, each the mean of
    its seeds.
    """
    cells = list(dict.fromkeys(run.cell for run in result.runs))
    points = {cell: (_cell_mean(result, cell, f"Jacobian: {quantity}: mean"), _robust(result, cell)) for cell in cells}
    kinds: dict[str, Callable[[str], bool]] = {
        "all models": lambda _: True,
        "ViTs": lambda cell: cell.startswith("ViT"),
        "CoViTs": lambda cell: cell.startswith("CoViT"),
    }
    found = []
    for kind, chosen in kinds.items():
        pairs = np.array([points[cell] for cell in cells if chosen(cell)])
        found.append(
            Finding.of(
                f"Among {kind}, a lower mean of {words} goes with a higher robust accuracy",
                f"Kendall's tau of robust accuracy ({ROBUST}) and the negative mean",
                f"{len(pairs)} models, bootstrap",
                _bootstrap(pairs, _tau),
            )
        )
    return found


def _attention(result: StudyResult) -> list[Finding]:
    """ViT less CoViT at equal depth, and the other way round under strong attacks."""
    cells = list(dict.fromkeys(run.cell for run in result.runs))
    depths = sorted({cell.rpartition("depth ")[2].partition(",")[0] for cell in cells})
    found = []
    for depth, label in itertools.product(depths, (WEAK, *STRONG)):
        of_depth = [run for run in result.runs if f"depth {depth}," in run.cell]
        sides = [
            [
                [_value(run.values[label]) for run in of_depth if run.cell == cell]
                for cell in cells
                if cell.startswith(kind)
            ]
            for kind in ("ViT", "CoViT")
        ]
        vits, covits = ([values for values in side if values] for side in sides)
        sign = 1 if label == WEAK else -1
        shares = [sign / len(vits)] * len(vits) + [-sign / len(covits)] * len(covits)
        difference = contrast(shares, [*vits, *covits], 0.05, 1 / result.n)
        if difference is None:
            continue
        verb = "helps" if label == WEAK else "hurts"
        found.append(
            Finding.of(
                f"At depth {depth}, attention {verb} under {label.partition(':')[0]}",
                f"difference of accuracies, {'ViTs less CoViTs' if sign == 1 else 'CoViTs less ViTs'}",
                f"{len(vits[0])} seeds of each of {len(vits)} ViTs and {len(covits)} CoViTs",
                (difference.estimate, difference.low, difference.high),
            )
        )
    return found


def _value(value: object) -> float:
    """Of a curve over radii, the last: CW at any distance that the study looks at."""
    return float(value[-1] if isinstance(value, list | tuple) else value)  # type: ignore[arg-type]


def _cell_mean(result: StudyResult, cell: str, label: str) -> float:
    return float(np.mean([_value(run.values[label]) for run in result.runs if run.cell == cell]))


def _robust(result: StudyResult, cell: str) -> float:
    return _cell_mean(result, cell, ROBUST)


def _tau(pairs: np.ndarray) -> float:
    return float(kendalltau(-pairs[:, 0], pairs[:, 1]).statistic)


def _mean(differences: np.ndarray) -> Interval:
    """Of the mean over images, by the normal approximation."""
    estimate, error = float(differences.mean()), float(differences.std(ddof=1) / len(differences) ** 0.5)
    return estimate, estimate - 1.96 * error, estimate + 1.96 * error


def _bootstrap(pairs: np.ndarray, statistic: Callable[[np.ndarray], float]) -> Interval:
    """Percentile interval over resampled models; resamples in which the statistic is not defined count as 0."""
    draws = np.random.default_rng(0).integers(0, len(pairs), (DRAWS, len(pairs)))
    values = np.nan_to_num([statistic(pairs[draw]) for draw in draws])
    low, high = np.quantile(values, [0.025, 0.975])
    return statistic(pairs), float(low), float(high)
