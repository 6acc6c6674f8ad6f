"""Measure `jacobian`: how much each encoder block amplifies at the clean images (benchmark/layers/encoder_jacobian.py)."""

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
EVERY = 30.0  # seconds between two words of progress

Found = dict[str, float | list[float] | torch.Tensor]


def measure(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    blocks: Blocks,
    quantities: Sequence[str] = QUANTITIES,
    levels: Sequence[float] = (),
) -> Found:
    """Diagnostics of each block's Jacobian at each image, never certificates.

    Args:
        quantities: of sigma_max, residual_gain, log_norm and norm_bound, and "encoder", which is not among the default ones:
            the norm of the whole encoder's Jacobian beside its bounds by blocks, the paper's (15).
        levels: of the quantiles, 21 or more, ascending from 0 to 1; 0, 0.05, ..., 1 unless given.

    Returns:
        `<quantity>: <block>`, quantiles over images, curves over the levels; `<quantity>: mean` and `<quantity>: sd` over all
        images and blocks; `<quantity>: not known`, how many values are not, where that could be; of the encoder medians
        over images; and as tensors each image's values, `<quantity> of <block>`. What Lanczos gave is called
        `<quantity> (lower bound)`.

    Raises:
        BenchmarkError: unknown quantities, levels that do not fit, a quantity of which no value is known, blocks that do not
            fit, or nothing but the encoder asked for where its norm is not given.
    """
    places = _levels(levels)
    chosen = _chosen(quantities)
    found = amplification(
        model, blocks, images, quantities=chosen or ("sigma_max",), encoder=ENCODER in quantities, seed=seed,
        progress=_speaking(),
    )  # fmt: skip
    measured: Found = {"x": places}
    for quantity in chosen:
        measured |= _of(quantity, found, places)
    if ENCODER in quantities:
        measured |= _of_encoder(found, alone=not chosen)
    return measured if chosen else {key: value for key, value in measured.items() if key != "x"}


def _levels(given: Sequence[float]) -> list[float]:
    levels = [float(level) for level in given] or [i / (FEWEST - 1) for i in range(FEWEST)]
    ascending = all(a < b for a, b in pairwise(levels))
    if len(levels) < FEWEST or not ascending or levels[0] != 0 or levels[-1] != 1:
        raise BenchmarkError(f"measure jacobian: levels should be {FEWEST} or more, ascending from 0 to 1")
    return levels


def _chosen(quantities: Sequence[str]) -> list[str]:
    known = (*QUANTITIES, ENCODER)
    if isinstance(quantities, str) or not quantities:
        raise BenchmarkError(f"measure jacobian: quantities should be a list of {', '.join(known)}")
    for one in quantities:
        if one not in known:
            raise BenchmarkError(f"measure jacobian: unknown quantity {one!r}{near_miss(one, known)}")
    return [one for one in QUANTITIES if one in quantities]


def _of(quantity: str, found: Amplification, places: list[float]) -> Found:
    measured: Found = {}
    every = torch.cat([block.values[quantity] for block in found.blocks])
    known = every[~every.isnan()]
    if not len(known):
        raise BenchmarkError(f"measure jacobian: {quantity} is not known for any block and image; leave it out")
    at = torch.tensor(places, dtype=torch.float64)
    for block in found.blocks:
        called, values = _called(quantity, block.exact), block.values[quantity]
        measured[f"{called} of {block.name}"] = values
        if not values.isnan().all():
            measured[f"{called}: {block.name}"] = torch.nanquantile(values, at).tolist()
    formed = all(block.exact for block in found.blocks)
    called = _called(quantity, formed)
    measured[f"{called}: mean"] = float(known.mean())
    measured[f"{called}: sd"] = float(known.std()) if len(known) > 1 else 0.0
    if not formed or len(known) < len(every):
        measured[f"{called}: not known"] = float(len(every) - len(known))
    return measured


def _called(quantity: str, exact: bool) -> str:
    """What Lanczos gives is called what it is, so that it is never drawn or compared among exact values."""
    return quantity if exact or quantity == "norm_bound" else f"{quantity} (lower bound)"


def _of_encoder(found: Amplification, alone: bool) -> Found:
    whole = found.encoder
    if whole is None:
        words = f"measure jacobian: the encoder's norm is not given: {found.why_not}"
        if alone:
            raise BenchmarkError(words)
        print(words, flush=True)
        return {}
    measured: Found = {}
    for name, values in whole.items():
        measured[f"encoder's {name}"] = values
        median = float(values.nanmedian())
        if math.isfinite(median):
            measured[f"encoder: {name}"] = median
    return measured


def _speaking() -> Callable[[int, int], None]:
    """A word of progress now and then."""
    said = time.monotonic()

    def speak(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > EVERY:
            said = time.monotonic()
            print(f"jacobian: {done:,} of {total:,} Jacobians", flush=True)

    return speak
