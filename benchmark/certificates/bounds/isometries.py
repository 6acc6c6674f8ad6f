"""The `LayerBound`s of layers that keep lengths: shifted tokens and absolute values. Neither rounds anything."""

from __future__ import annotations

import torch

from benchmark.certificates.bounds.dispatch import _needs, layer_bound, whole
from benchmark.certificates.bounds.layer_bound import UP, LayerBound, NonExpansiveBound, PerturbationSet
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.runtime.errors import BenchmarkError


class AbsoluteBound(NonExpansiveBound):
    """|z| of some entries: | |z + D| - |z| | <= |D|. With the slope sign(z) an entry misses 0 <= |z + D| - |z| - sign(z) D,
    which is 2 (|D| - |z|) where the sign changes and 0 elsewhere, so at most 2 (|D| - |z|)+, and |D| for z = 0.
    """

    def __init__(self, layer: Absolute, x: torch.Tensor) -> None:
        self.folded, self.sizes = layer.folded, x[..., : layer.folded].abs()
        self.slopes = torch.cat([x[..., : layer.folded].sign(), torch.ones_like(x[..., layer.folded :])], dim=-1)
        self.jacobian_norm = 1.0

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        rows = torch.linalg.vector_norm(perturbation.columns[..., : self.folded], dim=0)
        radius, rho, delta = (
            part.reshape(-1, *[1] * (rows.ndim - 1))
            for part in (perturbation.radius, perturbation.rho, perturbation.delta)
        )
        most = torch.minimum(radius * rows + rho, delta) * UP
        missed = 2 * torch.linalg.vector_norm((most - self.sizes).clamp(min=0).flatten(1), dim=1)
        return torch.minimum(missed, 2 * perturbation.delta) * UP


@layer_bound.register
def _(layer: Absolute, x: torch.Tensor) -> LayerBound:
    whole(layer, 1, x.shape[-1], folded=layer.folded)
    return AbsoluteBound(layer, x)


@layer_bound.register
def _(layer: ShiftTokens, x: torch.Tensor) -> LayerBound:
    """An isometry: it only reorders."""
    _needs(layer, x, 3)
    whole(layer, 1, x.shape[1], side=layer.side)
    whole(layer, 1, x.shape[2] // 4, moved=layer.moved)
    if x.shape[1] != layer.side**2:
        raise BenchmarkError(f"ShiftTokens needs {layer.side}x{layer.side} tokens; it is given shape {tuple(x.shape)}")
    return LayerBound(layer, 1.0, torch.zeros_like)
