"""Globally-robust training (Leino, Wang and Fredrikson 2021): a further class for images that cannot be certified.

Below its head, with rows w_i, the network has the Lipschitz constant K, a product over layers. With j = argmax f(x), the
further logit is max over i != j of f_i + eps K |w_j - w_i|. The loss is the cross-entropy over classes + 1 with the true
label: an image is classified robustly if its own logit is above the further one. In training K comes from few power steps
with kept vectors and is a little too low (layer_norms.py); the score uses bounds instead.

CertViT (Gupta and Verma 2023, table 7) trains with eps 1.74 for 1.58 and with 0.16 for 0.141.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from benchmark.training.layer_norms import LayerNorms, product, sequence
from benchmark.training.objective import Count, Objective, Positive, TrainingAttack, share, whole_labels


class Robust(Objective):
    """An objective for an l2 radius that reads the Lipschitz constants of a sequence's layers.

    Args:
        radius: in pixels of [0, 1].
        power_steps: on each layer's kept vector, in each optimiser step.
        bound: the method, for `selected_by`.
    """

    name: ClassVar[str]

    def __init__(self, radius: float, power_steps: int, bound: str) -> None:
        self.radius, self.power_steps = radius, power_steps
        self.selected_by = f"validation accuracy robust at L2 {radius:g} by {bound}"

    def attach(self, model: nn.Module, images: Tensor) -> LayerNorms:
        self.layers, self.head = sequence(model, self.name)
        self.norms = LayerNorms(self.layers, images[:1], self.power_steps)
        return self.norms

    def advance(self) -> None:
        self.norms.advance()


class GloRo(Robust):
    name = "gloro"

    def __init__(self, attack: TrainingAttack | None, *, radius: Positive, power_steps: Count = 5) -> None:
        super().__init__(radius, power_steps, "a global Lipschitz constant")

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, eps_factor: float) -> Tensor:
        whole_labels(labels, self.name)
        logits = model(images).float()
        raised = eps_factor * self.radius * product(self.norms())
        further = further_logit(logits, self.head.weight.float(), raised)
        return nn.functional.cross_entropy(torch.cat([logits, further[:, None]], dim=1), labels)

    @torch.no_grad()
    def score(self, model: nn.Module, images: Tensor, labels: Tensor) -> float:
        model.eval()
        layers, head = sequence(model, self.name)
        constant = product(LayerNorms(layers, images[:1], self.power_steps).upper())

        def robust(x: Tensor, y: Tensor) -> Tensor:
            logits = model(x).double()
            further = further_logit(logits, head.weight.double(), self.radius * constant)
            return logits.gather(1, y[:, None])[:, 0] > further

        return share(robust, images, labels, 500)


def further_logit(logits: Tensor, weight: Tensor, move: Tensor) -> Tensor:
    """Return max over i != j of logits_i + move |w_j - w_i|, j the largest logit: (n,).

    Args:
        logits: (n, classes).
        weight: of the head, (classes, width).
        move: (), how far the head's input can move.
    """
    top = logits.argmax(1)
    gaps = torch.linalg.vector_norm(weight[:, None] - weight[None], dim=-1)
    raised = logits + move * gaps[top]
    return raised.scatter(1, top[:, None], -math.inf).amax(1)


objective = GloRo
