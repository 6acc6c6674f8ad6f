"""The training loop, through Lightning Fabric: seeded, selected on validation images only, resumable after a kill.

Every random draw of an epoch follows from (seed, epoch), so on a CPU a resumed run is byte-identical to one that never
stopped. Only the steps use mixed precision: scores and kept weights are those of the float32 model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.progress import Progress
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import tensor_float32
from benchmark.specs.training import Selection
from benchmark.training import checkpoint as checkpoints
from benchmark.training.capture import Split
from benchmark.training.checkpoint import Tensors, TrainingProgress
from benchmark.training.objective import Objective, TrainingAttack, accuracy, robust_accuracy
from benchmark.training.overfitting import OverfittingMonitor
from benchmark.training.ranks import seed_draws
from benchmark.training.steps import NotFinite, Steps

Score = Callable[[nn.Module, torch.Tensor, torch.Tensor], float]  # of a model on images and labels; larger is better


def train(
    steps: Steps,
    train_split: Split,
    validation_split: Split,
    *,
    seed: int,
    checkpoint: Path,
    metric: Score | None = None,
    selected_by: str = "",
    monitor: OverfittingMonitor | None = None,
    on_epoch: Callable[[TrainingProgress], None] = lambda _: None,
) -> tuple[Tensors, TrainingProgress]:
    """Train the model of `steps` in place; return the weights of the epoch with the best validation score, and the history.

    If the recipe has preparations, the initial weights compete with those of the epochs, as epoch 0.

    Args:
        checkpoint: the file to resume from if it exists, rewritten after each epoch.
        metric: selects the epoch; by default the objective's score.
        selected_by: `metric` in words, for messages; by default the objective's own words.
        monitor: of catastrophic overfitting, called after each epoch.
        on_epoch: called by rank 0 after each epoch, before the checkpoint.

    Raises:
        BenchmarkError: a loss, a penalty, a weight or a score is not finite; the last good checkpoint stays.
    """
    spec, ranks, precision = steps.spec, steps.ranks, steps.fabric.strategy.precision
    modules, optimizer, measure = steps.modules, steps.optimizer.optimizer, metric or steps.objective.score
    best, done, scaler = checkpoints.resume(checkpoint, modules, optimizer)
    ranks.take_first(modules.values())
    if scaler:
        precision.load_state_dict(scaler)
    images, labels, *validation = (part.to(steps.fabric.device) for part in (*train_split, *validation_split))
    own_images, own_labels = map(ranks.share, validation)

    def score(model: nn.Module, *place: int | str) -> float:
        seed_draws(seed, *place)
        with tensor_float32(False):
            value = ranks.mean(measure(model, own_images, own_labels), len(own_labels))
        if not math.isfinite(value):
            when = "before the first epoch" if "start" in place else f"in epoch {done.epoch + 1}"
            words = selected_by or steps.objective.selected_by
            raise _stopped(f"the score that selects the epoch, {words}, is {value} {when}", done, checkpoint)
        return value

    if spec.prepare and not best:
        model = in_float32(steps.model)
        done.best_score, best = score(model, "start"), _copied(model)
    with Progress(disable=ranks.rank > 0, transient=True) as progress:
        task = progress.add_task("training", total=spec.epochs, completed=done.epoch)
        while done.epoch < spec.epochs and not exhausted(spec.selection, done.epoch, done.best_epoch, spec.warmup_epochs):
            try:
                done.losses.append(steps.epoch(images, labels, done.epoch, seed))
            except NotFinite as error:
                words = f"{error} in epoch {done.epoch + 1}; lower the learning rate"
                raise _stopped(words, done, checkpoint) from None
            ranks.take_first(modules.values())
            model = in_float32(steps.scored)
            done.scores.append(score(model, done.epoch, "score"))
            if monitor:  # each rank sees all of its few images
                seed_draws(seed, done.epoch, "watch")
                with tensor_float32(False):
                    done.watched.append(monitor(model, *validation))
            done.epoch += 1
            if done.scores[-1] > done.best_score:
                best, done.best_epoch, done.best_score = _copied(model), done.epoch, done.scores[-1]
            if ranks.rank == 0:
                on_epoch(done)
                checkpoints.write(checkpoint, modules, optimizer, best, done, precision.state_dict())
            line = f"epoch {done.epoch} loss {done.losses[-1]:.3f} score {done.scores[-1]:.3f}"
            progress.update(task, advance=1, description=line)
    return best, done


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


def _copied(model: nn.Module) -> Tensors:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _stopped(problem: str, done: TrainingProgress, checkpoint: Path) -> BenchmarkError:
    kept = f"The last good checkpoint, after epoch {done.epoch}, is kept in {checkpoint}"
    kept = kept if done.epoch else "No epoch was finished, so there is no checkpoint"
    return BenchmarkError(f"{problem}. {kept}")


def in_float32(model: nn.Module) -> nn.Module:
    """Return the model for evaluation: itself, or a float32 copy if its weights have another precision."""
    if all(p.dtype == torch.float32 for p in model.parameters()):
        return model
    return copy.deepcopy(model).float()
