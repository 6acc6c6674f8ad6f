"""What a certificate of known layers may speak for: a plain sequence, of which nothing can hide behind a layer's bound."""

from __future__ import annotations

import copy

from torch import nn

from benchmark.layers.derived import cache_weights
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.runtime.errors import BenchmarkError

HEADS = (NormalisedHead, nn.Linear)


def checked_copy(model: nn.Module) -> nn.Sequential:
    """The float64 copy of a model that a certificate of known layers can speak for.

    Raises:
        BenchmarkError: it is no plain sequence ending in a linear head, or a hook could change what a layer returns.
    """
    if type(model) is not nn.Sequential or not len(model) or type(model[-1]) not in HEADS:
        raise BenchmarkError("this certificate needs a plain nn.Sequential that ends in a NormalisedHead or nn.Linear")
    refuse_hooks(model)
    if any(isinstance(layer, OrthogonalLinear) and layer.training for layer in model.modules()):
        raise BenchmarkError("the model is in training mode, where OrthogonalLinear rounds more; call its eval()")
    network = copy.deepcopy(model).double().eval().requires_grad_(False)
    cache_weights(network)
    return network


def refuse_hooks(model: nn.Module) -> None:
    """
    Raises:
        BenchmarkError: a hook, or a forward put on one instance, can change what a layer returns behind its bound.
    """
    for module in model.modules():
        if "forward" in vars(module):
            raise BenchmarkError(
                f"a layer {type(module).__name__} has a forward of its own; the certificate is refused"
            )
        if module._forward_hooks or module._forward_pre_hooks:
            raise BenchmarkError(
                f"the layer {type(module).__name__} carries a forward hook; the certificate is refused"
            )
