"""The training loop, through Lightning Fabric: seeded, selected on validation images only, resumable after a kill.

Every random draw of an epoch follows from (seed, epoch), so a run that resumes at an epoch is the run that never
stopped. Mixed precision is for the steps alone: scores, and the weights that are kept, are those of the float32 model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning_fabric import Fabric
from rich.progress import Progress

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.training import TrainingSpec
from benchmark.training import checkpoint as checkpoints
from benchmark.training import draws
from benchmark.training.capture import CudaRecorder, Split
from benchmark.training.checkpoint import TrainingProgress
from benchmark.training.objective import Objective
from benchmark.training.overfitting import OverfittingMonitor
from benchmark.training.penalty import Penalty
from benchmark.training.ranks import ALONE, Ranks
from benchmark.training.selection import SelectionMetric, exhausted
from benchmark.training.steps import Augmenting, NotFinite, Steps


def train(
    model: torch.nn.Module,
    objective: Objective,
    spec: TrainingSpec,
    train_split: Split,
    validation_split: Split,
    *,
    fabric: Fabric,
    seed: int,
    checkpoint: Path,
    metric: SelectionMetric | None = None,
    augment: Augmenting | None = None,
    closing: Augmenting | None = None,
    penalties: Mapping[str, Penalty] | None = None,
    monitor: OverfittingMonitor | None = None,
    ranks: Ranks = ALONE,
    recorder: CudaRecorder | None = None,
    on_epoch: Callable[[TrainingProgress], None] = lambda _: None,
) -> tuple[dict[str, torch.Tensor], TrainingProgress]:
    """Trains `model` in place and returns the weights of the epoch with the best validation score, and the history.

    Where the recipe has preparations, the weights that `model` comes with compete with those of the epochs, as epoch 0.

    Args:
        checkpoint: the file to resume from when it exists, rewritten after each epoch.
        metric: what epochs are selected by; the objective's own score if None.
        augment: of each batch; `spec.augmentation`, ready to run.
        closing: the same of the last epochs; `spec.closing`.
        penalties: by name, of `model`'s weights; `spec.penalties`, ready to run.
        monitor: of catastrophic overfitting, called after each epoch.
        ranks: the processes that share the batches. They begin with the weights of the first, which alone writes the
            checkpoint and calls `on_epoch`.
        recorder: captures the steps, on a GPU (capture.py); each runs by itself if None.
        on_epoch: called after each epoch, before the checkpoint.

    Raises:
        BenchmarkError: a loss, a penalty or a weight is not finite; the last good checkpoint stays.
    """
    ranks.take_first([model])
    steps = Steps.of(model, objective, spec, fabric, train_split[0][:1], augment, closing, penalties, ranks, recorder)
    modules, optimizer, precision = steps.modules, steps.optimizer.optimizer, fabric.strategy.precision
    best, done, scaler = checkpoints.resume(checkpoint, modules, optimizer)
    ranks.take_first(modules.values())
    if scaler:
        precision.load_state_dict(scaler)
    images, labels, *validation = (t.to(fabric.device) for t in (*train_split, *validation_split))
    score = _Scoring(seed, metric.score if metric else objective.score, monitor, validation, ranks)
    if spec.prepare and not best:
        best = score.start(_float32(model), done)
    with Progress(disable=ranks.rank > 0, transient=True) as progress:
        task = progress.add_task("training", total=spec.epochs, completed=done.epoch)
        while done.epoch < spec.epochs and not exhausted(
            spec.selection, done.epoch, done.best_epoch, spec.warmup_epochs
        ):
            try:
                done.losses.append(steps.epoch(images, labels, done.epoch, seed))
            except NotFinite as error:
                raise _stopped(error, done, checkpoint) from None
            ranks.take_first(modules.values())
            best = score.epoch(_float32(steps.judged), done) or best
            if ranks.rank == 0:
                on_epoch(done)
                checkpoints.write(checkpoint, modules, optimizer, best, done, precision.state_dict())
            line = f"epoch {done.epoch} loss {done.losses[-1]:.3f} score {done.scores[-1]:.3f}"
            progress.update(task, advance=1, description=line)
    return best, done


@dataclass(frozen=True)
class _Scoring:
    """Which weights are the best so far, by what they score on validation images."""

    seed: int
    metric: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], float]
    monitor: OverfittingMonitor | None
    validation: Sequence[torch.Tensor]
    ranks: Ranks

    def start(self, model: torch.nn.Module, done: TrainingProgress) -> checkpoints.Tensors:
        """Of the weights before the first epoch."""
        draws.seed(self.seed, "start")
        done.best_score = self._score(model)
        return _copied(model)

    def epoch(self, model: torch.nn.Module, done: TrainingProgress) -> checkpoints.Tensors:
        """Adds the score of an epoch and what the monitor measures to `done`; its weights if it is the best so far."""
        draws.seed(self.seed, done.epoch, "score")
        done.scores.append(self._score(model))
        if self.monitor:  # of few images: each rank sees all of them
            draws.seed(self.seed, done.epoch, "watch")
            done.watched.append(self.monitor(model, *self.validation))
        done.epoch += 1
        if not done.scores[-1] > done.best_score:  # a NaN is no score
            return {}
        done.best_epoch, done.best_score = done.epoch, done.scores[-1]
        return _copied(model)

    def _score(self, model: torch.nn.Module) -> float:
        images, labels = (self.ranks.share(part) for part in self.validation)
        return self.ranks.mean(self.metric(model, images, labels), len(labels))


def _copied(model: torch.nn.Module) -> checkpoints.Tensors:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _stopped(error: NotFinite, done: TrainingProgress, checkpoint: Path) -> BenchmarkError:
    kept = f"The last good checkpoint, after epoch {done.epoch}, is kept in {checkpoint}"
    kept = kept if done.epoch else "No epoch was finished, so there is no checkpoint"
    return BenchmarkError(f"{error} in epoch {done.epoch + 1}; lower the learning rate. {kept}")


def _float32(model: torch.nn.Module) -> torch.nn.Module:
    """The model that evaluation will see: itself, or a float32 copy where training keeps its weights otherwise."""
    if all(p.dtype == torch.float32 for p in model.parameters()):
        return model
    return copy.deepcopy(model).float()
