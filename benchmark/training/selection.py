"""The recipe's selection of an epoch by a score on validation images, and when to stop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmark.specs.training import Selection
from benchmark.training.objective import Objective, TrainingAttack, accuracy, robust_accuracy

Score = Callable[[nn.Module, torch.Tensor, torch.Tensor], float]  # of a model on images and labels; larger is better


def selection_metric(
    selection: Selection, objective: Objective, attack: TrainingAttack | None, certified: Score | None = None
) -> tuple[str, Score]:
    """Return the recipe's score, in words and to call.

    Args:
        attack: the attack of `selection`, ready to run, if it names one.
        certified: the accuracy by the certificate of `selection`, if it names one.
    """
    if selection.by == "clean":
        return "validation accuracy", accuracy
    if certified:
        return f"validation accuracy certified by {selection.certificate} at L2 {selection.radius:g}", certified
    if attack and selection.attack:
        given = ", ".join(f"{name} {value}" for name, value in sorted(selection.attack.parameters.items()))
        words = f"validation accuracy under {selection.attack.id}" + (f" ({given})" if given else "")
        return words, partial(robust_accuracy, attack)
    return objective.selected_by, objective.score


def exhausted(selection: Selection, epoch: int, best_epoch: int, warmup_epochs: int) -> bool:
    """Return whether `patience` epochs, without the warm-up, had nothing better after `epoch` of them."""
    return bool(selection.patience) and epoch - max(best_epoch, warmup_epochs) >= selection.patience
