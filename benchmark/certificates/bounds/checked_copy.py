"""What a certificate of known layers speaks of: a network rebuilt from the model's description, in which nothing can hide.

Hooks, subclasses, methods replaced on an instance and cached weights of the model stay behind (layers/description.py).
Whether the model computes what the rebuilt network does is asked of its logits (`same_logits`).
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.certificates.bounds.plain_float32 import full_precision
from benchmark.layers.derived import cache_weights
from benchmark.layers.description import describe, rebuild
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.runtime.errors import BenchmarkError

HEADS = (NormalisedHead, nn.Linear)


def rebuilt(model: nn.Module) -> nn.Module:
    """The float32 network that a certificate of `model` speaks of, in evaluation mode, frozen.

    Raises:
        BenchmarkError: a layer that is not known (named), a model in training mode whose layers compute something else then,
            hooks that torch runs on every module, or a network that would not run in plain float32.
    """
    if hooks := [name for name, held in vars(nn.modules.module).items() if name.endswith("_hooks") and len(held)]:
        raise BenchmarkError(f"torch has {hooks[0].strip('_')} that would run in the judge's network too; remove them")
    if any(isinstance(layer, OrthogonalLinear) and layer.training for layer in model.modules()):
        raise BenchmarkError("the model is in training mode, where OrthogonalLinear rounds more; call its eval()")
    network = rebuild(*describe(model))
    full_precision(network)
    return network


def checked_copy(model: nn.Module) -> nn.Sequential:
    """The float64 copy of `rebuilt(model)`, a plain sequence that ends in a linear head.

    Raises:
        BenchmarkError: it is no such sequence, or `rebuilt` refuses it.
    """
    if type(model) is not nn.Sequential or not len(model) or type(model[-1]) not in HEADS:
        raise BenchmarkError("this certificate needs a plain nn.Sequential that ends in a NormalisedHead or nn.Linear")
    network = rebuilt(model).double()
    assert isinstance(network, nn.Sequential)
    cache_weights(network)
    return network


@torch.no_grad()
def same_logits(model: nn.Module, network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The logits (n, classes) of `model`, which are those of `network`, rebuilt from it, bit for bit, in the same batch.

    Raises:
        BenchmarkError: they are not, so a certificate of the network says nothing about the model.
    """
    logits, ours = model(images.clone()), network(images)  # a model may write to what it is given
    if type(logits) is not torch.Tensor or logits.shape != ours.shape or logits.dtype != ours.dtype:
        raise BenchmarkError(
            f"the model returns a {type(logits).__name__} where its layers give {tuple(ours.shape)} logits"
        )
    if not torch.equal(logits, ours):
        raise BenchmarkError(
            f"the model's logits differ by up to {float((logits - ours).abs().max()):.2g} from those of the network that its "
            "layers and weights describe: a hook, a replaced method or an altered attribute changes what it computes; a "
            "certificate speaks of the layers alone"
        )
    return logits
