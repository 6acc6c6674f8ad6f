"""Certified l2 radii from one global Lipschitz constant: margins over constant times head (Tsuzuku et al. 2018).

The constant of a network of known layers, by exact type, is at most the product of theirs. A residual's is 1 + the body's,
or less if the body is a token convolution (bounds/token_convolution.py). With D_k the move of layer k's input, ||D_0|| <=
radius and ||D_(k+1)|| <= L_k ||D_k|| + t_k, where t_k is the layer's rounding in float32 (rounding.py). If the last layer is
linear with rows w_j, the margin over rival j falls by at most ||w_y - w_j|| ||D_K|| plus the rounding of its two logits;
otherwise by sqrt(2) times the move of the output.

The constants do not depend on the image, so a local certificate (local.py) gives larger radii; this one shows the cost of
global bounds. A layer whose constant is infinite or unknown is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from benchmark.certificates.bounds.checked_copy import rebuilt
from benchmark.certificates.bounds.layer_bound import UP, exact_layer_bound
from benchmark.certificates.bounds.rounding import FLOAT64, LARGEST, TINY, gamma, size
from benchmark.certificates.local import MANY, _largest, above, checked_gap
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead
from benchmark.runtime.errors import BenchmarkError


def lipschitz_constant(layer: nn.Module, x: torch.Tensor) -> float:
    """Return an upper bound of the l2 Lipschitz constant of `layer` on all inputs of the shape of x.

    Guarantee: never below the true constant, in real arithmetic.

    Args:
        layer: a layer or plain nn.Sequential of layers, float64.
        x: inputs (n, *shape) float64, whose shape alone counts.

    Raises:
        BenchmarkError: a named layer has no known global constant.
    """
    return exact_layer_bound(layer, x).everywhere


HEADS = (NormalisedHead, nn.Linear, BoundedLinear)
Move = Callable[[torch.Tensor], torch.Tensor]  # from a bound (n,) of an input's move to a bound of the output's


def guarantee() -> str:
    return (
        "For every image with certified radius r > 0, the float32 network's prediction equals the label for every image "
        "within l2 distance r (pixels in [0, 1]). Deterministic, from one global Lipschitz constant. Rounding is covered by "
        "a-priori error analysis: any order of summation, exp within 128 units in the last place, no reduced-precision "
        "products."
    )


@torch.no_grad()
def certify(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, largest: float = 8.0, precision: float = 1e-6
) -> torch.Tensor:
    """Return the certified l2 radius of each image; 0 if the prediction is wrong or tied.

    Guarantee: `guarantee()`. Arguments, result and errors as in `local.certify`; the last layer may be any known layer.
    """
    network, radii = _checked_copy(model), []
    for x, y in zip(images.split(MANY), labels.split(MANY), strict=True):
        margins, margin_drop = _margins(network, x.double(), y)
        rival_margins = margins.scatter(1, y[:, None], math.inf)
        zero = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        radii.append(_largest(above(rival_margins, margin_drop), zero, largest, precision).clamp(max=largest))
    return torch.cat(radii)


@torch.no_grad()
def float32_gap(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Return the measured and the allowed effect of float32 on margins, as `local.float32_gap`."""
    network = _checked_copy(model)

    def bounded(x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        margins, margin_drop = _margins(network, x.double(), labels)
        return margins, margin_drop(torch.zeros(len(x), dtype=torch.float64, device=x.device))

    return checked_gap(model, images, labels, bounded)


def _checked_copy(model: nn.Module) -> nn.Sequential:
    if type(model) is not nn.Sequential or not len(model):
        raise BenchmarkError("the Lipschitz certificate needs a plain nn.Sequential")
    network = rebuilt(model).double()
    assert isinstance(network, nn.Sequential)
    return network


def _margins(model: nn.Sequential, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Move]:
    """Return logit_y - logit_j (n, classes), and how far each can fall within a radius (n,) in the float32 network."""
    head = model[-1]
    if isinstance(head, HEADS) and type(head) in HEADS:
        features, move = _run(model[:-1], x)
        if type(head) is BoundedLinear:
            exact_layer_bound(head, features)  # refuses a norm for which float32 could overflow
        logits, drop = head(features), _head_drop(head.weight, head.bias, labels, move, size(features))
    else:
        logits, move = _run(model, x)
        drop = lambda radius: (math.sqrt(2) * UP * move(radius))[:, None].expand_as(logits)  # noqa: E731
    if logits.ndim != 2:
        raise BenchmarkError(f"the network should give one row of logits an image; it gives {tuple(logits.shape)}")
    return logits.gather(1, labels[:, None]) - logits, drop


def _run(layers: nn.Sequential, x: torch.Tensor) -> tuple[torch.Tensor, Move]:
    """Return the output for x (n, *shape), and a bound of its move in the float32 network."""
    bounds = []
    for layer in layers:
        bounds.append(exact_layer_bound(layer, x))
        _ = bounds[-1].everywhere  # refuses a layer without a constant, even without images
        x = layer(x)

    def move(delta: torch.Tensor) -> torch.Tensor:
        for bound in bounds:
            delta = bound.global_bound(delta)
        return delta

    return x, move


def _head_drop(
    weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor, move: Move, nominal: torch.Tensor
) -> Move:
    """Return ||w_y - w_j|| ||D_K|| plus the rounding of both logits, each gamma(width + 3) (||w|| ||x + D_K|| + |b|)."""
    rivals = torch.linalg.vector_norm(weight[labels][:, None] - weight[None], dim=-1) * UP
    norms, offsets = torch.linalg.vector_norm(weight, dim=-1), 0.0 if bias is None else bias.abs()

    def drop(radius: torch.Tensor) -> torch.Tensor:
        moved = move(radius)[:, None]
        terms = norms * (nominal[:, None] + moved) + offsets
        terms = terms + terms.gather(1, labels[:, None])
        fall = (rivals * moved + gamma(weight.shape[1] + 3) * terms * FLOAT64 + TINY) * UP
        return torch.where(nominal[:, None] + moved <= LARGEST, fall, torch.inf)

    return drop
