"""The paper's three findings as statements, tested on a study of ViTs and CoViTs.

Intervals are at 95%, each for itself. A statement that compares models speaks of the models of the study, a few of one kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from scipy.special import stdtrit
from scipy.stats import kendalltau

from benchmark.records.finding import Finding
from benchmark.records.study import StudyResult
from benchmark.records.study_table import contrast

QUANTITIES = {"sigma_max": "sigma_max", "log_norm": "the logarithmic norm", "residual_gain": "the residual gain"}
DRAWS = 2000  # of the bootstrap
FEWEST = 10  # images of which a mean is told
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
    """The smaller of the first and the last block less the largest between them, image by image, of each model with three
    blocks or more. The interval is the union of those of its trainings, so that a verdict holds in each of them.
    """
    found = []
    for cell in dict.fromkeys(run.cell for run in result.runs):
        trainings = [values for values in _by_block(verdicts, cell, quantity) if values.shape[0] > 2]
        intervals = [_mean(np.minimum(x[0], x[-1]) - x[1:-1].max(axis=0)) for x in trainings if x.shape[1] >= FEWEST]
        if not intervals or len(intervals) < len(trainings):
            continue
        estimates, lows, highs = zip(*intervals, strict=True)
        images = min(values.shape[1] for values in trainings)
        found.append(
            Finding.of(
                f"In {cell}, {words} is largest in the first and the last encoder block",
                f"smaller of first and last less the largest between, mean of {words}",
                f"{images} images or more, paired, in each of {len(trainings)} networks by itself; their intervals together",
                (float(np.mean(estimates)), min(lows), max(highs)),
            )
        )
    return found


def _by_block(verdicts: pa.Table, cell: str, quantity: str) -> list[np.ndarray]:
    """Of each training (blocks, images): each image's value; images that any block lacks are left out."""
    names = [name for name in verdicts.column_names if f": {quantity} of block" in name]
    rows = verdicts.filter(np.array(verdicts["cell"].to_pylist()) == cell)
    found = []
    for seed in sorted(set(rows["seed"].to_pylist())):
        part = rows.filter(np.array(rows["seed"].to_pylist()) == seed)
        own = [part[name] for name in names if part[name].null_count < len(part)]  # others are of deeper cells
        values = np.stack([column.to_numpy().astype(float) for column in own])
        found.append(values[:, ~np.isnan(values).any(axis=0)])
    return found


def _ranks(result: StudyResult, quantity: str, words: str) -> list[Finding]:
    """Kendall's tau, negated: positive where a smaller mean goes with higher robust accuracy; over models, each the mean of
    its seeds.
    """
    cells = list(dict.fromkeys(run.cell for run in result.runs))
    label = next(label for label in result.runs[0].values if label.endswith(f": {quantity}: mean"))
    points = {cell: (_cell_mean(result, cell, label), _robust(result, cell)) for cell in cells}
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
                f"{len(pairs)} models: bootstrap, and up to 0 unless permutations show an order",
                _order(pairs),
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
            [[_value(run.values[label]) for run in of_depth if run.cell == cell] for cell in cells if cell.startswith(kind)]
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


def _order(pairs: np.ndarray) -> Interval:
    """Kendall's tau of (models, 2): the bootstrap's percentile interval, in which a resample without an order counts as 0.

    Few models in perfect order stay so in every resample; so the interval goes on to 0 where a random order is as far from
    0 in 5% of permutations or more, as it always is of four models.
    """
    estimate = _tau(pairs)
    if np.isnan(estimate):
        return 0.0, -1.0, 1.0
    draws = np.random.default_rng(0).integers(0, len(pairs), (DRAWS, len(pairs)))
    low, high = np.quantile(np.nan_to_num([_tau(pairs[draw]) for draw in draws]), [0.025, 0.975])
    if _by_chance(pairs) > 0.05:
        low, high = min(low, 0.0), max(high, 0.0)
    return estimate, float(low), float(high)


def _tau(pairs: np.ndarray) -> float:
    return float(kendalltau(-pairs[:, 0], pairs[:, 1]).statistic)


def _by_chance(pairs: np.ndarray) -> float:
    """The share of orders of the models whose tau is as far from 0 as theirs: of all orders up to eight models, of 20,000
    drawn ones of more.
    """
    n = len(pairs)
    if n <= 8:
        orders = np.array(list(itertools.permutations(range(n))))
    else:
        orders = np.random.default_rng(0).permuted(np.tile(np.arange(n), (20_000, 1)), axis=1)
    x, y = (np.sign(column[:, None] - column[None]) for column in pairs.T)
    concordant = np.einsum("ij,pij->p", x, y[orders[:, :, None], orders[:, None, :]])
    own = abs(float((x * y).sum()))
    return float((np.abs(concordant) >= own - 1e-9).mean())


def _mean(differences: np.ndarray) -> Interval:
    """Of the mean over images, by Student's t."""
    n = len(differences)
    estimate, error = float(differences.mean()), float(differences.std(ddof=1) / n**0.5)
    reach = float(stdtrit(n - 1, 0.975)) * error
    return estimate, estimate - reach, estimate + reach
