"""Measure `jacobian`: the amplification of each encoder block at the clean images (benchmark/layers/encoder_jacobian.py)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from benchmark.layers.encoder_blocks import Blocks
from benchmark.layers.encoder_jacobian import QUANTITIES, Amplification, amplification
from benchmark.runtime.errors import BenchmarkError, near_miss

ENCODER = "encoder"
FEWEST = 21  # levels of a curve of quantiles, so that a distribution can be drawn from it
EVERY = 30.0  # seconds between two lines of progress

Results = dict[str, float | list[float] | torch.Tensor]


def measure(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    blocks: Blocks,
    quantities: Sequence[str] = QUANTITIES,
    levels: Sequence[float] = (),
) -> Results:
    """Return diagnostics of each block's Jacobian at each image. They are no certificates.

    Args:
        quantities: any of sigma_max, residual_gain, log_norm and norm_bound (the default), and "encoder": the norm of the
            whole encoder's Jacobian beside its bounds by blocks, the paper's (15).
        levels: of the quantiles, 21 or more, ascending from 0 to 1; by default 0, 0.05, ..., 1.

    Returns:
        `<quantity>: <block>`: quantiles over images, as curves over the levels. `<quantity>: mean` and `<quantity>: sd` over
        all images and blocks. `<quantity>: not known`: the number of unknown values, where there can be any. Medians over
        images for the encoder. `<quantity> of <block>`: each image's values, as tensors. Values from Lanczos are called
        `<quantity> (lower bound)`.

    Raises:
        BenchmarkError: unknown quantities, levels or blocks that do not fit, a quantity of which no value is known, or the
            encoder alone where its norm is not given.
    """
    places = _levels(levels)
    chosen = _chosen(quantities)
    amplified = amplification(
        model, blocks, images, quantities=chosen or ("sigma_max",), encoder=ENCODER in quantities, seed=seed,
        progress=_reporter(),
    )  # fmt: skip
    measured: Results = {"x": places}
    for quantity in chosen:
        measured |= _of(quantity, amplified, places)
    if ENCODER in quantities:
        measured |= _of_encoder(amplified, alone=not chosen)
    return measured if chosen else {key: value for key, value in measured.items() if key != "x"}


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
    measured: Results = {}
    every = torch.cat([block.values[quantity] for block in amplified.blocks])
    known = every[~every.isnan()]
    if not len(known):
        raise BenchmarkError(f"measure jacobian: {quantity} is not known for any block and image; leave it out")
    at = torch.tensor(places, dtype=torch.float64)
    for block in amplified.blocks:
        called, values = _called(quantity, block.exact), block.values[quantity]
        measured[f"{called} of {block.name}"] = values
        if not values.isnan().all():
            measured[f"{called}: {block.name}"] = torch.nanquantile(values, at).tolist()
    formed = all(block.exact for block in amplified.blocks)
    called = _called(quantity, formed)
    measured[f"{called}: mean"] = float(known.mean())
    measured[f"{called}: sd"] = float(known.std()) if len(known) > 1 else 0.0
    if not formed or len(known) < len(every):
        measured[f"{called}: not known"] = float(len(every) - len(known))
    return measured


def _called(quantity: str, exact: bool) -> str:
    """Return the quantity's name. Lower bounds from Lanczos say so, and are never drawn or compared among exact values."""
    return quantity if exact or quantity == "norm_bound" else f"{quantity} (lower bound)"


def _of_encoder(amplified: Amplification, alone: bool) -> Results:
    whole = amplified.encoder
    if whole is None:
        words = f"measure jacobian: the encoder's norm is not given: {amplified.why_not}"
        if alone:
            raise BenchmarkError(words)
        print(words, flush=True)
        return {}
    measured: Results = {}
    for name, values in whole.items():
        measured[f"encoder's {name}"] = values
        median = float(values.nanmedian())
        if math.isfinite(median):
            measured[f"encoder: {name}"] = median
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
