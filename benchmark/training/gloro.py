"""Globally-robust training (Leino, Wang and Fredrikson 2021): a further class for images that cannot be certified.

Below its head, with rows w_i, the network has the constant K, a product over layers. With j = argmax f(x), the further
logit is max over i != j of f_i + eps K |w_j - w_i|, and the loss the cross-entropy over classes + 1 with the true
label: an image is classified robustly where its own logit stands above the further one. K comes from few power steps
with kept vectors while training and lies a little too low (layer_norms.py); the score takes bounds in its place.

CertViT (Gupta and Verma 2023, table 7) trains with eps 1.74 for 1.58 and with 0.16 for 0.141.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.training.layer_norms import LayerNorms, product, sequence
from benchmark.training.objective import Objective, TrainingAttack, share


class GloRo(Objective):
    def __init__(self, radius: float, power_steps: int) -> None:
        self.radius, self.power_steps = checked_radius(radius, "gloro"), checked_steps(power_steps, "gloro")
        self.selected_by = f"validation accuracy robust at L2 {radius:g} by a global Lipschitz constant"

    def attach(self, model: nn.Module, images: Tensor) -> LayerNorms:
        layers, self.head = sequence(model, "gloro")
        self.norms = LayerNorms(layers, images[:1], self.power_steps)
        return self.norms

    def advance(self) -> None:
        self.norms.advance()

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, eps_factor: float) -> Tensor:
        whole_labels(labels, "gloro")
        logits = model(images).float()
        raised = eps_factor * self.radius * product(self.norms())
        further = further_logit(logits, self.head.weight.float(), raised)
        return nn.functional.cross_entropy(torch.cat([logits, further[:, None]], dim=1), labels)

    @torch.no_grad()
    def score(self, model: nn.Module, images: Tensor, labels: Tensor) -> float:
        model.eval()
        layers, head = sequence(model, "gloro")
        constant = product(LayerNorms(layers, images[:1], self.power_steps).upper())

        def robust(x: Tensor, y: Tensor) -> Tensor:
            logits = model(x).double()
            further = further_logit(logits, head.weight.double(), self.radius * constant)
            return logits.gather(1, y[:, None])[:, 0] > further

        return share(robust, images, labels, 500)


def further_logit(logits: Tensor, weight: Tensor, move: Tensor) -> Tensor:
    """max over i != j of logits_i + move |w_j - w_i|, j the largest logit: (n,).

    Args:
        logits: (n, classes).
        weight: of the head, (classes, width).
        move: (), how far the head's input can move.
    """
    top = logits.argmax(1)
    gaps = torch.linalg.vector_norm(weight[:, None] - weight[None], dim=-1)
    raised = logits + move * gaps[top]
    return raised.scatter(1, top[:, None], -math.inf).amax(1)


def checked_radius(radius: float, objective: str) -> float:
    if isinstance(radius, bool) or not isinstance(radius, int | float) or not 0 < radius < math.inf:
        raise BenchmarkError(
            f"{objective}: radius {radius} should be a positive number, an l2 radius in pixels of [0, 1]"
        )
    return float(radius)


def checked_steps(steps: float, objective: str, name: str = "power_steps") -> int:
    """A recipe's numbers come as floats."""
    if isinstance(steps, bool) or not isinstance(steps, int | float) or not 1 <= steps < 1e6 or steps != int(steps):
        raise BenchmarkError(f"{objective}: {name} {steps} should be a whole number of at least 1; 5 is usual")
    return int(steps)


def whole_labels(labels: Tensor, objective: str) -> None:
    if labels.is_floating_point():
        raise BenchmarkError(f"the {objective} objective needs whole labels; leave mixup and cutmix out")


def objective(attack: TrainingAttack | None, *, radius: float, power_steps: int = 5) -> GloRo:
    """
    Args:
        radius: l2, in pixels of [0, 1].
        power_steps: of each layer an optimiser step; the paper's 5.

    Raises:
        BenchmarkError: a radius that is not positive and finite, or power_steps that are no whole number above 0.
    """
    return GloRo(radius, power_steps)
