"""Measure `unsound_formula`: what a published formula that is no bound calls certified. It certifies nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmark.certificates.unsound_paper_formula import unsound_radius


def measure(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    formula: str,
    radii: Sequence[float],
) -> dict[str, float | list[float] | torch.Tensor]:
    """Return the formula's values. They are no certificates.

    Args:
        formula: a name of `FORMULAS` in benchmark/certificates/unsound_paper_formula.py.
        radii: l2, in pixels.

    Returns:
        `reached`, the share of images whose value is at least each radius, over `x`; `value`, each image's.
    """
    values = unsound_radius(formula, model, images, labels).value
    reached = [float((values >= radius).double().mean()) for radius in radii]
    return {"x": [float(radius) for radius in radii], "reached": reached, "value": values}
