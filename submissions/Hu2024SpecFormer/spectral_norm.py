"""Spectral norm regularisation of linear layers (Yoshida and Miyato 2017): factor / 2 times the sum of squared largest
singular values of all weights of `nn.Linear` outside attention, which `msvp` penalises by head.

Each sigma is u^T W v with kept vectors and one power step an optimiser step, as in msvp.py; a penalty, never a bound.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.layers.attention_weights import is_attention
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.objective import Attention, NotNegative, Penalty, unit


def _outside(module: nn.Module) -> list[nn.Linear]:
    """Return the linear layers outside attention, in order."""
    if is_attention(module):
        return []
    if isinstance(module, nn.Linear):
        return [module]
    return [layer for child in module.children() for layer in _outside(child)]


class SpectralNorm(Penalty):
    def __init__(self, model: nn.Module, attention: Attention, *, factor: NotNegative) -> None:
        super().__init__()
        self._layers, self.factor = tuple(_outside(model)), factor  # a tuple, so that they are no submodules
        if not self._layers:
            raise BenchmarkError(f"{type(model).__name__} has no nn.Linear outside attention that this could penalise")
        generator = torch.Generator().manual_seed(0)
        for index, layer in enumerate(self._layers):
            self.register_buffer(f"u_{index}", unit(torch.randn(layer.out_features, generator=generator)))

    def forward(self) -> Tensor:
        terms = []
        for index, layer in enumerate(self._layers):
            left = layer.weight.float().mT @ self.get_buffer(f"u_{index}")
            terms.append((left @ unit(left.detach())) ** 2)
        return self.factor / 2 * torch.stack(terms).sum()

    @torch.no_grad()
    def advance(self) -> None:
        for index, layer in enumerate(self._layers):
            weight, u = layer.weight.float(), self.get_buffer(f"u_{index}")
            moved = unit(weight @ unit(weight.mT @ u))
            u.copy_(torch.where(moved.any(), moved, u))  # a weight of zeros has no direction


penalty = SpectralNorm
