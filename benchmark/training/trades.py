"""TRADES (Zhang et al. 2019, equation 5): cross-entropy on clean images plus beta times the divergence of predictions.

loss = CE(f(x), y) + beta KL(softmax f(x) || softmax f(x')), where x' maximises that KL by the training attack. As in the
authors' code both sides of the KL are differentiated, and the attack holds the clean side fixed. At the clean image the KL
is 0 and its gradient only rounding, so the attack must start at random.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.training.adversarial import Adversarial
from benchmark.training.objective import Positive, Share, TrainingAttack, frozen

NEEDS_RANDOM_START = True


class Trades(Adversarial):
    def __init__(self, attack: TrainingAttack | None, *, beta: Positive, label_smoothing: Share = 0.0) -> None:
        super().__init__(attack, label_smoothing=label_smoothing)
        self.beta = beta

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> torch.Tensor:
        """Return the loss; for `eps_factor` 0 the cross-entropy alone."""
        moved = self._moved(model, images, labels, eps_factor) if eps_factor > 0 else None
        clean = model(images)
        natural = nn.functional.cross_entropy(clean, labels, label_smoothing=self.smoothing)
        return natural if moved is None else natural + self.beta * divergence(clean, model(moved)) / len(images)

    def _moved(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> torch.Tensor:
        """Return images whose predictions the attack moved away from the clean ones, whatever their labels."""
        with frozen(model):
            with torch.no_grad():
                clean = model(images)
            whole = labels.argmax(1) if labels.is_floating_point() else labels
            return self.attack(model, images, whole, eps_factor, lambda logits: divergence(clean, logits)).detach()


def divergence(clean: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """Return KL(softmax clean || softmax moved) of logits (n, classes), summed over the batch."""
    return nn.functional.kl_div(moved.log_softmax(1), clean.log_softmax(1), log_target=True, reduction="sum")


objective = Trades
