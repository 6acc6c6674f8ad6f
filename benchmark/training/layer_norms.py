"""Lipschitz constants of a sequence's layers, differentiable in their weights, for objectives that train for
certificates.

A linear map's is its spectral norm. In training it is |W v| with a unit vector v that is kept from step to step and
moved by power steps, v = W^T W v / |W^T W v| (Leino et al. 2021; the maps as they run, with their strides,
padding and the size of their images). For fixed v its gradient is u v^T, u = W v / |W v|, that of the norm itself
where they are singular vectors. It lies *below* the norm: good enough to learn from, never a bound. `upper` gives
bounds in place of it: singular values of matrices, and for convolutions those of each frequency, in float64, without
an allowance for rounding. What is counted with them is a score, not a certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import torch
from torch import Tensor, nn

from benchmark.layers.kinds import LinearMap, layer_constants
from benchmark.layers.kinds import product as product
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead
from benchmark.runtime.errors import BenchmarkError

Head = nn.Linear | BoundedLinear | NormalisedHead


class LayerNorms(nn.Module):
    """The constants of a sequence's layers. The vectors lie in buffers, which the checkpoint keeps; the layers are no
    submodules.

    Args:
        layers: in order, without the head; read at each use.
        image: (1, *shape) float32, of which shape and device count.

    Raises:
        BenchmarkError: a layer without a constant, by its type's name.
    """

    def __init__(self, layers: Sequence[nn.Module], image: Tensor, power_steps: int) -> None:
        super().__init__()
        self.power_steps, self._constants = power_steps, layer_constants(layers, image)
        generator = torch.Generator().manual_seed(0)
        for name, found in self._maps():
            start = torch.randn(found.shape, generator=generator)
            self.register_buffer(name, unit(start).to(image.device))

    def _maps(self, index: int | None = None) -> list[tuple[str, LinearMap]]:
        """The linear maps of all layers, or of one, each with the name of its vectors."""
        every = range(len(self._constants)) if index is None else [index]
        return [(f"v_{k}_{number}", found) for k in every for number, found in enumerate(self._constants[k].maps)]

    def forward(self) -> list[Tensor]:
        """() of each layer, by the kept vectors: at most the constant, differentiable."""
        return [
            constant.of([sizes(found.run(self.get_buffer(name))).flatten() for name, found in self._maps(index)])
            for index, constant in enumerate(self._constants)
        ]

    @torch.no_grad()
    def upper(self) -> list[Tensor]:
        """() of each layer, float64: at least the constant, but for rounding."""
        return [constant.of([found.upper() for found in constant.maps]) for constant in self._constants]

    def vector(self, index: int) -> Tensor:
        """(1, *inputs), that of the layer of this number, which is one linear map."""
        return self.get_buffer(f"v_{index}_0")

    @torch.no_grad()
    def advance(self, steps: int | None = None) -> None:
        """By `power_steps`, or by so many."""
        for name, found in self._maps():
            v = self.get_buffer(name)
            for _ in range(steps or self.power_steps):
                moved = unit(gram(found.run, v))
                v.copy_(torch.where(sizes(moved) > 0, moved, v))  # a weight of zeros has no direction to follow


def sequence(model: nn.Module, objective: str) -> tuple[list[nn.Module], Head]:
    """The layers of a plain nn.Sequential below its head, as `flat` has them, and the head.

    Raises:
        BenchmarkError: another kind of model, or a head that is no linear layer.
    """
    if type(model) is not nn.Sequential or not len(model):
        raise BenchmarkError(f"the {objective} objective needs a plain nn.Sequential, not {type(model).__name__}")
    *layers, head = flat(model)
    if not isinstance(head, Head) or type(head) not in get_args(Head):
        names = ", ".join(kind.__name__ for kind in get_args(Head))
        raise BenchmarkError(
            f"the {objective} objective needs a head of {names}; the last layer is {type(head).__name__}"
        )
    return layers, head


def flat(module: nn.Module) -> list[nn.Module]:
    """The layers of a plain nn.Sequential, those of inner ones in their place; another module alone."""
    return [part for layer in module for part in flat(layer)] if type(module) is nn.Sequential else [module]


def gram(run: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """W^T W v of a linear map: the gradient of |W v|^2 / 2."""
    with torch.enable_grad():
        v = v.detach().requires_grad_()
        moved = run(v)
        return torch.autograd.grad(moved, v, moved.detach())[0]


def sizes(vectors: Tensor) -> Tensor:
    """l2 norms of (n, *shape): (n, 1, ...)."""
    norms = torch.linalg.vector_norm(vectors.flatten(1), dim=1)
    return norms.reshape(-1, *[1] * (vectors.ndim - 1))


def unit(vectors: Tensor) -> Tensor:
    """(n, *shape) of norm 1, or 0 where they are 0."""
    return vectors / sizes(vectors).clamp(min=1e-30)
