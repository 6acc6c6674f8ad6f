"""Measure `lipschitz_constant`: the proven global l2 Lipschitz constant of a plain sequence of known layers."""

from __future__ import annotations

import copy

import torch
from torch import nn

from benchmark.certificates.lipschitz import lipschitz_constant
from benchmark.runtime.errors import BenchmarkError


def measure(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, seed: int) -> dict[str, float]:
    """Return proven constants of the whole network and of all layers below the last. Only the images' shape matters.

    Raise a BenchmarkError for a model that is no plain sequence, or a layer without a known constant (named).
    """
    if type(model) is not nn.Sequential or len(model) < 2:
        raise BenchmarkError("measure lipschitz_constant: the model should be a plain nn.Sequential of known layers")
    network, x = copy.deepcopy(model).double(), images[:1].double()
    below = lipschitz_constant(network[:-1], x)
    return {"network": below * lipschitz_constant(network[-1], network[:-1](x)), "below the head": below}
