"""Cross-entropy with a margin: the true logit lowered by `margin`, all logits times `temperature`.

For networks of Lipschitz layers the certified radius is about the margin over the Lipschitz constant, so a loss that accepts
small margins certifies nothing (Prach and Lampert 2022, section 5; Tsuzuku et al. 2018). The score is the share of
validation images with at least half of the margin, so that the selected epoch certifies.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.training.objective import Objective, TrainingAttack, accuracy, whole_labels


class Margin(Objective):
    def __init__(self, attack: TrainingAttack | None, *, margin: float, temperature: float) -> None:
        self.margin, self.temperature = margin, temperature
        self.selected_by = f"validation accuracy with margin {margin / 2:g} or more"

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> torch.Tensor:
        whole_labels(labels, "margin")
        return margin_loss(model(images), labels, self.margin, self.temperature)

    def score(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        return accuracy(model, images, labels, margin=self.margin / 2)


def margin_loss(logits: torch.Tensor, labels: torch.Tensor, margin: float, temperature: float) -> torch.Tensor:
    """Return the mean cross-entropy of logits (n, classes), the label's lowered by `margin`, times `temperature`: ()."""
    lowered = logits - margin * nn.functional.one_hot(labels, logits.shape[1])
    return nn.functional.cross_entropy(temperature * lowered, labels)


objective = Margin
