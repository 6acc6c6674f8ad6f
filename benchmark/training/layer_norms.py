"""Lipschitz constants of a sequence's layers, differentiable in their weights, to train for certificates.

The constant of a linear map is its spectral norm. In training it is |W v| with a unit vector v, kept from step to step and
moved by power steps, v = W^T W v / |W^T W v| (Leino et al. 2021; maps with their strides, padding and image sizes). For
fixed v the gradient is u v^T, u = W v / |W v|, which is the norm's own for singular vectors. |W v| lies *below* the norm: it
is good enough to learn from, never a bound. `upper` returns bounds: singular values of matrices, and of each frequency for
convolutions, in float64, without an allowance for rounding. They give a score, not a certificate.
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
    """The constants of a sequence's layers. Vectors are buffers, kept by the checkpoint; layers are no submodules.

    Args:
        layers: in order, without the head; read at each use.
        image: (1, *shape) float32; shape and device count.

    Raises:
        BenchmarkError: a layer without a constant, by its type's name.
    """

    def __init__(self, layers: Sequence[nn.Module], image: Tensor, power_steps: int) -> None:
        super().__init__()
        self.power_steps, self._constants = power_steps, layer_constants(layers, image)
        generator = torch.Generator().manual_seed(0)
        for name, linear in self._maps():
            start = torch.randn(linear.shape, generator=generator)
            self.register_buffer(name, unit(start).to(image.device))

    def _maps(self, index: int | None = None) -> list[tuple[str, LinearMap]]:
        """Return the linear maps of all layers, or of one, each with the name of its vectors."""
        layers = range(len(self._constants)) if index is None else [index]
        return [(f"v_{k}_{number}", linear) for k in layers for number, linear in enumerate(self._constants[k].maps)]

    def forward(self) -> list[Tensor]:
        """Return each layer's constant by the kept vectors, () each: at most the true one, differentiable."""
        return [
            constant.of([sizes(linear.run(self.get_buffer(name))).flatten() for name, linear in self._maps(index)])
            for index, constant in enumerate(self._constants)
        ]

    @torch.no_grad()
    def upper(self) -> list[Tensor]:
        """Return a bound of each layer's constant, () float64: at least the true one, but for rounding."""
        return [constant.of([linear.upper() for linear in constant.maps]) for constant in self._constants]

    def vector(self, index: int) -> Tensor:
        """Return the kept vector (1, *inputs) of layer `index`, which must be a single linear map."""
        return self.get_buffer(f"v_{index}_0")

    @torch.no_grad()
    def advance(self, steps: int | None = None) -> None:
        """Take `steps` power steps, by default `power_steps`."""
        for name, linear in self._maps():
            v = self.get_buffer(name)
            for _ in range(steps or self.power_steps):
                moved = unit(gram(linear.run, v))
                v.copy_(torch.where(sizes(moved) > 0, moved, v))  # a weight of zeros has no direction


def sequence(model: nn.Module, objective: str) -> tuple[list[nn.Module], Head]:
    """Return the layers of a plain nn.Sequential below its head, flattened, and the head.

    Raises:
        BenchmarkError: another kind of model, or a head that is no linear layer.
    """
    if type(model) is not nn.Sequential or not len(model):
        raise BenchmarkError(f"the {objective} objective needs a plain nn.Sequential, not {type(model).__name__}")
    *layers, head = flat(model)
    if not isinstance(head, Head) or type(head) not in get_args(Head):
        names, last = ", ".join(kind.__name__ for kind in get_args(Head)), type(head).__name__
        raise BenchmarkError(f"the {objective} objective needs a head of {names}; the last layer is {last}")
    return layers, head


def flat(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a plain nn.Sequential, inner sequences expanded; for another module itself alone."""
    return [part for layer in module for part in flat(layer)] if type(module) is nn.Sequential else [module]


def gram(run: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """Return W^T W v of a linear map: the gradient of |W v|^2 / 2."""
    with torch.enable_grad():
        v = v.detach().requires_grad_()
        moved = run(v)
        return torch.autograd.grad(moved, v, moved.detach())[0]


def sizes(vectors: Tensor) -> Tensor:
    """Return the l2 norms of (n, *shape): (n, 1, ...)."""
    norms = torch.linalg.vector_norm(vectors.flatten(1), dim=1)
    return norms.reshape(-1, *[1] * (vectors.ndim - 1))


def unit(vectors: Tensor) -> Tensor:
    """Divide each of (n, *shape) by its norm; 0 stays 0."""
    return vectors / sizes(vectors).clamp(min=1e-30)
