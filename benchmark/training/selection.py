"""Which epoch is kept: a score on validation images, by what the recipe asks for, and when to stop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmark.specs.training import Selection
from benchmark.training.objective import Objective, TrainingAttack, accuracy, robust_accuracy

Score = Callable[[nn.Module, torch.Tensor, torch.Tensor], float]  # of a model on images and their labels, to be large


def selection_metric(
    selection: Selection, objective: Objective, attack: TrainingAttack | None, certified: Score | None = None
) -> tuple[str, Score]:
    """The score that a recipe asks for, in words and to call.

    Args:
        attack, certified: that of `selection` and accuracy by its certificate, ready to run, where it names them.
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
    """Whether `patience` epochs have brought nothing better after `epoch` of them are done; a warm-up counts for none."""
    return bool(selection.patience) and epoch - max(best_epoch, warmup_epochs) >= selection.patience
