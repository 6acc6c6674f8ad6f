"""The margin of a classification: how far the true logit stands above every other."""

from __future__ import annotations

import torch


def margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """True logit less the largest other: (n, classes) and (n,) to (n,)."""
    true = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return (true - others.amax(1, keepdim=True))[:, 0]
