"""Measures of CertViT's tables: what a network costs, whether its attention does anything, its proven Lipschitz constant, and
what the paper's formula would call certified.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmark.certificates import lipschitz
from benchmark.certificates.unsound_paper_formula import unsound_radius
from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import MASKED
from benchmark.runtime.errors import BenchmarkError

Attention = SelfAttention | L2Attention


def cost(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, seed: int, epochs: int, train_images: int
) -> dict[str, float]:
    """Parameters, floating-point operations of one image's forward pass, and of `epochs` of training.

    Training counts three forward passes an image, one for the outputs and two for the gradients of weights and inputs. Power
    iterations, projections and preparations are not counted.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images[:1])
    forward = float(counter.get_total_flops())
    parameters = float(sum(p.numel() for p in model.parameters()))
    return {"parameters": parameters, "forward": forward, "training": 3 * forward * epochs * train_images}


def attention_used(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, seed: int) -> dict[str, float]:
    """Shares of images whose predicted class is another one where all heads give zeros ("without"), and where they give the
    mean of the values ("uniform"), of a window's where there are windows, on the same side of a masked border.

    Near 0 says that attention is idle: the network does the same without it.
    """
    with torch.no_grad():
        predicted = model(images).argmax(1)
        changed = [(_with(model, mixed)(images).argmax(1) != predicted).double().mean() for mixed in (_zeros, _mean)]
    return {"without": float(changed[0]), "uniform": float(changed[1])}


def lipschitz_constant(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, seed: int) -> dict[str, float]:
    """Return proven constants of the whole network and of all layers below the last. Only the images' shape matters.

    Raise a BenchmarkError for a model that is no plain sequence, or a layer without a known constant (named).
    """
    if type(model) is not nn.Sequential or len(model) < 2:
        raise BenchmarkError("measure lipschitz_constant: the model should be a plain nn.Sequential of known layers")
    network, x = copy.deepcopy(model).double(), images[:1].double()
    below = lipschitz.lipschitz_constant(network[:-1], x)
    return {"network": below * lipschitz.lipschitz_constant(network[-1], network[:-1](x)), "below the head": below}


def unsound_formula(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, seed: int, formula: str, radii: Sequence[float]
) -> dict[str, float | list[float] | torch.Tensor]:
    """Return what a published formula that is no bound calls certified. It certifies nothing.

    Args:
        formula: a name of `FORMULAS` in benchmark/certificates/unsound_paper_formula.py.
        radii: l2, in pixels.

    Returns:
        `reached`, the share of images whose value is at least each radius, over `x`; `value`, each image's.
    """
    values = unsound_radius(formula, model, images, labels).value
    reached = [float((values >= radius).double().mean()) for radius in radii]
    return {"x": [float(radius) for radius in radii], "reached": reached, "value": values}


def _with(model: nn.Module, mixed: Callable[..., torch.Tensor]) -> nn.Module:
    """A copy of the model whose attention layers have this in place of their `mixed`."""
    changed = copy.deepcopy(model)
    for part in changed.modules():
        if isinstance(part, Attention):
            part.mixed = partial(mixed, part)
    return changed


def _zeros(layer: Attention, x: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
    return torch.zeros_like(layer.values(x))


def _mean(layer: Attention, x: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
    values = layer.values(x)
    seen = torch.ones_like(values[..., :1] @ values[..., :1].mT)
    if offsets is not None:
        seen = seen * (offsets > MASKED / 2)  # position biases are far smaller
    return seen / seen.sum(-1, keepdim=True) @ values
