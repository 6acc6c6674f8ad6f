"""The paper's measures: the amplification of encoder blocks (its Theorem 2), and Carlini and Wagner's distance."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from benchmark.attacks import cw
from benchmark.attacks.prediction import predict
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.threat import ThreatModel

from .jacobians import BATCH, DENSE, QUANTITIES, Amplification, amplification
from .method import blocks

ENCODER = "encoder"
FEWEST = 21  # levels of a curve of quantiles, so that a distribution can be drawn from it
EVERY = 30.0  # seconds between two lines of progress
PREDICTED = 256  # images in a pass of the model

Results = dict[str, float | list[float] | torch.Tensor]


def jacobian(
    model: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    quantities: Sequence[str] = QUANTITIES,
    levels: Sequence[float] = (),
) -> Results:
    """Return diagnostics of each block's Jacobian at each image (jacobians.py). They are no certificates.

    Args:
        images: (n, c, h, w) in [0, 1].
        quantities: any of sigma_max, residual_gain, log_norm and norm_bound (the default), and "encoder": the norm of the
            whole encoder's Jacobian beside its bounds by blocks, the paper's (15).
        levels: of the quantiles, 21 or more, ascending from 0 to 1; by default 0, 0.05, ..., 1.

    Returns:
        `<quantity>: <block>`: quantiles over images, as curves over the levels. `<quantity>: mean` and `<quantity>: sd` over
        all images and blocks. `<quantity>: not known`: the number of unknown values, where there can be any. Medians over
        images for the encoder. `<quantity> of <block>`: each image's values, as tensors. Values from Lanczos are called
        `<quantity> (lower bound)`.

    Raises:
        BenchmarkError: unknown quantities or levels that do not fit, blocks that are not consecutive layers of the model, a
            quantity of which no value is known, or the encoder alone where its norm is not given.
    """
    places = _levels(levels)
    chosen = _chosen(quantities)
    named = blocks(model)
    layers, parts = [*model], [part for _, block in named for part in block]
    first = layers.index(parts[0]) if parts and parts[0] in layers else 0
    if not parts or layers[first : first + len(parts)] != parts:
        raise BenchmarkError("measure jacobian: method.py's blocks(model) are not consecutive layers of the model")
    before = model[:first]
    with torch.no_grad():
        tokens = torch.cat([before(chunk) for chunk in images.split(BATCH)])
    amplified = amplification(
        named, tokens, quantities=chosen or ("sigma_max",), encoder=ENCODER in quantities, seed=seed,
        progress=_reporter(),
    )  # fmt: skip
    measured: Results = {"x": places} if chosen else {}
    for quantity in chosen:
        measured |= _of(quantity, amplified, places)
    if ENCODER in quantities and not amplified.encoder:
        words = f"measure jacobian: blocks of more than {DENSE:,} entries, so the encoder's norm is not given"
        if not chosen:
            raise BenchmarkError(words)
        print(words, flush=True)
    for name, values in amplified.encoder.items():
        measured[f"encoder's {name}"] = values
        median = float(values.nanmedian())
        if math.isfinite(median):
            measured[f"encoder: {name}"] = median
    return measured


def _levels(given: Sequence[float]) -> list[float]:
    levels = [float(level) for level in given] or [i / (FEWEST - 1) for i in range(FEWEST)]
    ascending = all(a < b for a, b in pairwise(levels))
    if len(levels) < FEWEST or not ascending or levels[0] != 0 or levels[-1] != 1:
        raise BenchmarkError(f"measure jacobian: levels should be {FEWEST} or more, ascending from 0 to 1")
    return levels


def _chosen(quantities: Sequence[str]) -> list[str]:
    names = (*QUANTITIES, ENCODER)
    if isinstance(quantities, str) or not quantities:
        raise BenchmarkError(f"measure jacobian: quantities should be a list of {', '.join(names)}")
    for name in quantities:
        if name not in names:
            raise BenchmarkError(f"measure jacobian: unknown quantity {name!r}{near_miss(name, names)}")
    return [name for name in QUANTITIES if name in quantities]


def _of(quantity: str, amplified: Amplification, places: list[float]) -> Results:
    values = {name: by_quantity[quantity] for name, by_quantity in amplified.blocks.items()}
    every = torch.cat([*values.values()])
    known = every[~every.isnan()]
    if not len(known):
        raise BenchmarkError(f"measure jacobian: {quantity} is not known for any block and image; leave it out")
    # lower bounds say so, and are never drawn or compared among exact values
    called = quantity if amplified.exact or quantity == "norm_bound" else f"{quantity} (lower bound)"
    at = torch.tensor(places, dtype=torch.float64)
    measured: Results = {}
    for name, of_block in values.items():
        measured[f"{called} of {name}"] = of_block
        if not of_block.isnan().all():
            measured[f"{called}: {name}"] = torch.nanquantile(of_block, at).tolist()
    measured[f"{called}: mean"] = float(known.mean())
    measured[f"{called}: sd"] = float(known.std()) if len(known) > 1 else 0.0
    if not amplified.exact or len(known) < len(every):
        measured[f"{called}: not known"] = float(len(every) - len(known))
    return measured


def _reporter() -> Callable[[int, int], None]:
    """Return a function that prints progress every EVERY seconds."""
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > EVERY:
            last = time.monotonic()
            print(f"jacobian: {done:,} of {total:,} Jacobians", flush=True)

    return report


def cw_distance(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    steps: int,
    step_size: float,
    c: float,
    radii: Sequence[float],
    confidence: float = 0.0,
) -> dict[str, object]:
    """Search the nearest misclassified image, without a radius. The model's answer on each result is computed again.

    The attack moves pixels through a tanh, which is flat at 0 and 1, so black or white pixels hardly move in some hundred
    steps. On images with many of them it is a weak attack. Its distances bound nothing.

    Args:
        images: (n, c, h, w) in [0, 1]; labels: (n,).
        steps, step_size, c, confidence: as of the attack `cw`.
        radii: l2, in pixels of [0, 1], increasing.

    Returns:
        `broken`: the share of the rightly classified images that were broken at any distance. `mean l2`, `median l2`: their
        distance. `accuracy within`: over `radii`, the share of all images that are right when clean and not broken within the
        radius, in float64. `l2`: each image's distance, 0 where it is wrong when clean, NaN where it was not broken.

    Raises:
        BenchmarkError: nothing was broken, so that no distance is known.
    """
    right = predict(model, images, labels, PREDICTED).correct
    everywhere = ThreatModel(norm="L2", eps=math.sqrt(images[0].numel()))
    batches = [
        cw.attack(model, x, y, everywhere, seed=seed, steps=steps, step_size=step_size, c=c, confidence=confidence)
        for x, y in zip(images.split(PREDICTED), labels.split(PREDICTED), strict=True)
    ]
    moved = torch.cat(batches)
    broken = right & ~predict(model, moved, labels, PREDICTED).correct
    if not broken.any():
        raise BenchmarkError("cw_distance: no image was broken, so no distance is known; give more steps or a larger c")
    distances = (moved.double() - images.double()).flatten(1).norm(dim=1)
    of_broken = distances[broken]
    return {
        "x": list(radii),
        "broken": int(broken.sum()) / int(right.sum()),
        "mean l2": float(of_broken.mean()),
        "median l2": float(of_broken.median()),
        "accuracy within": [int((right & ~(broken & (distances <= r))).sum()) / len(labels) for r in radii],
        "l2": torch.where(right, torch.where(broken, distances, torch.nan), 0.0),
    }
