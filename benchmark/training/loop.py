"""The training loop, through Lightning Fabric: seeded, selected on validation images only, resumable after a kill.

Every random draw of an epoch follows from (seed, epoch), so a run that resumes at an epoch is the run that never
stopped. Mixed precision is for the steps alone: scores, and the weights that are kept, are those of the float32 model.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.training import TrainingSpec
from benchmark.training import checkpoint as checkpoints
from benchmark.training import schedule
from benchmark.training.checkpoint import TrainingProgress
from benchmark.training.objective import Objective
from benchmark.training.optimisers import optimizer as optimizer_of
from benchmark.training.optimisers import sam_perturbation
from benchmark.training.overfitting import OverfittingMonitor
from benchmark.training.penalty import Penalty
from benchmark.training.selection import SelectionMetric, exhausted
from benchmark.verdicts.prediction import checked

if TYPE_CHECKING:
    from timm.utils.model_ema import ModelEmaV3

Split = tuple[torch.Tensor, torch.Tensor]  # images (n, c, h, w) float32 in [0, 1], labels (n,) int64
Augmenting = Callable[[torch.Tensor, torch.Tensor], Split]  # augment.Augment, or anything that keeps to its docstring


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
    penalties: Mapping[str, Penalty] | None = None,
    monitor: OverfittingMonitor | None = None,
    on_epoch: Callable[[TrainingProgress], None] = lambda _: None,
) -> tuple[dict[str, torch.Tensor], TrainingProgress]:
    """Trains `model` in place and returns the weights of the epoch with the best validation score, and the history.

    Args:
        checkpoint: the file to resume from when it exists, rewritten after each epoch.
        metric: what epochs are selected by; the objective's own score if None.
        augment: of each batch; `spec.augmentation`, ready to run.
        penalties: by name, of `model`'s weights; `spec.penalties`, ready to run.
        monitor: of catastrophic overfitting, called after each epoch.
        on_epoch: called after each epoch, before the checkpoint.

    Raises:
        BenchmarkError: a loss, a penalty or a weight is not finite; the last good checkpoint stays.
    """
    wrapped, optimizer = fabric.setup(model, optimizer_of(model, spec))  # `model` itself is what it wraps
    wrapped.register_forward_hook(_held_to_shape)
    ema = _averaged(model, spec.ema) if spec.ema else None
    added = torch.nn.ModuleDict(penalties or {}).to(fabric.device)
    modules = {"model": model, "penalties": added} | ({"ema": ema.module} if ema else {})
    precision = fabric.strategy.precision
    if spec.sam and precision.state_dict():
        raise BenchmarkError(
            "sam cannot run with 16-mixed, which scales gradients; set another precision in params.yaml"
        )
    best, done, scaler = checkpoints.resume(checkpoint, modules, optimizer.optimizer)
    if scaler:
        precision.load_state_dict(scaler)
    images, labels, *validation = (t.to(fabric.device) for t in (*train_split, *validation_split))
    steps = _Steps(wrapped, model, objective, optimizer, spec, fabric, ema, augment, added)
    with Progress(disable=not fabric.is_global_zero, transient=True) as progress:
        task = progress.add_task("training", total=spec.epochs, completed=done.epoch)
        while done.epoch < spec.epochs and not exhausted(
            spec.selection, done.epoch, done.best_epoch, spec.warmup_epochs
        ):
            _seed(seed, done.epoch)
            try:
                done.losses.append(steps.epoch(images, labels, done.epoch))
            except _NotFinite as error:
                raise _stopped(error, done, checkpoint) from None
            evaluated = _float32(ema.module if ema else model)
            if _score_epoch(evaluated, validation, done, seed, metric.score if metric else objective.score, monitor):
                best = {name: tensor.detach().cpu().clone() for name, tensor in evaluated.state_dict().items()}
            on_epoch(done)
            checkpoints.write(checkpoint, modules, optimizer.optimizer, best, done, precision.state_dict())
            line = f"epoch {done.epoch} loss {done.losses[-1]:.3f} score {done.scores[-1]:.3f}"
            progress.update(task, advance=1, description=line)
    return best, done


def _score_epoch(
    model: torch.nn.Module,
    validation: Sequence[torch.Tensor],
    done: TrainingProgress,
    seed: int,
    score: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], float],
    monitor: OverfittingMonitor | None,
) -> bool:
    """Adds the score of an epoch and what the monitor measures to `done`; whether it is the best epoch so far."""
    _seed(seed, done.epoch, "score")
    done.scores.append(score(model, *validation))
    if monitor:
        _seed(seed, done.epoch, "watch")
        done.watched.append(monitor(model, *validation))
    done.epoch += 1
    better = done.scores[-1] > done.best_score
    if better:
        done.best_epoch, done.best_score = done.epoch, done.scores[-1]
    return better


def _stopped(error: _NotFinite, done: TrainingProgress, checkpoint: Path) -> BenchmarkError:
    kept = f"The last good checkpoint, after epoch {done.epoch}, is kept in {checkpoint}"
    kept = kept if done.epoch else "No epoch was finished, so there is no checkpoint"
    return BenchmarkError(f"{error} in epoch {done.epoch + 1}; lower the learning rate. {kept}")


class _NotFinite(Exception):
    """What is not finite, in words."""


@dataclass
class _Steps:
    """The steps of an epoch."""

    wrapped: torch.nn.Module
    model: torch.nn.Module  # inside `wrapped`
    objective: Objective
    optimizer: torch.optim.Optimizer
    spec: TrainingSpec
    fabric: Fabric
    ema: ModelEmaV3 | None
    augment: Augmenting | None
    penalties: torch.nn.ModuleDict

    def epoch(self, images: torch.Tensor, labels: torch.Tensor, epoch: int) -> float:
        """All images once, in random order; the mean loss."""
        self.wrapped.train()
        order = torch.randperm(len(labels), device="cpu")
        batches = order.split(self.spec.batch_size * self.spec.accumulation)
        eps_factor = schedule.eps_factor(self.spec, epoch)
        total = 0.0
        for step, batch in enumerate(batches):
            rate = self.spec.learning_rate * schedule.lr_factor(self.spec, epoch + step / len(batches))
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            batch = batch.to(images.device)
            x, y = images[batch], labels[batch]
            if self.augment:
                x, y = (t.to(images.device) for t in self.augment(x, y))
            total += self._step(x, y, eps_factor) * len(batch)
        if not all(torch.isfinite(p).all() for p in self.model.parameters()):
            raise _NotFinite("weights are not finite")
        return total / len(labels)

    def _step(self, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> float:
        for penalty in self.penalties.values():
            penalty.advance()  # type: ignore[operator]
        if self.spec.sam:
            devices = [self.fabric.device] if self.fabric.device.type == "cuda" else []
            with torch.random.fork_rng(devices):  # both steps draw the same masks and starts
                loss = self._gradient(images, labels, eps_factor)
            with sam_perturbation(self.model, self.spec.sam):
                self._gradient(images, labels, eps_factor)
        else:
            loss = self._gradient(images, labels, eps_factor)
        if self.spec.clip_norm:
            self.fabric.clip_gradients(
                self.wrapped, self.optimizer, max_norm=self.spec.clip_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        if self.ema:
            self.ema.update(self.model)
        return loss

    def _gradient(self, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> float:
        """Of the mean loss, gathered over batches of the recipe's size, and the penalties, once; their sum."""
        self.optimizer.zero_grad()
        total = 0.0
        batches = zip(images.split(self.spec.batch_size), labels.split(self.spec.batch_size), strict=True)
        for number, (x, y) in enumerate(batches):
            loss = self.objective.loss(self.wrapped, x, y, eps_factor) * (len(x) / len(images))
            if number == 0:
                loss = loss + self._penalty() if self.penalties else loss
            if not torch.isfinite(loss):
                raise _NotFinite(f"the training loss is {loss.item()}")
            self.fabric.backward(loss)
            total += loss.item()
        return total

    def _penalty(self) -> torch.Tensor:
        terms = {name: penalty() for name, penalty in self.penalties.items()}
        for name, term in terms.items():
            if not torch.isfinite(term):
                raise _NotFinite(f"the penalty {name} is {term.item()}")
        return torch.stack([term.to(self.fabric.device) for term in terms.values()]).sum()


def _held_to_shape(_: torch.nn.Module, given: tuple[torch.Tensor, ...], output: object) -> None:
    checked(output, len(given[0]))


def _averaged(model: torch.nn.Module, decay: float) -> ModelEmaV3:
    from timm.utils.model_ema import ModelEmaV3  # a slow import, with a warning: for those who ask for it

    return ModelEmaV3(model, decay)


def _float32(model: torch.nn.Module) -> torch.nn.Module:
    """The model that evaluation will see: itself, or a float32 copy where training keeps its weights otherwise."""
    if all(p.dtype == torch.float32 for p in model.parameters()):
        return model
    return copy.deepcopy(model).float()


def _seed(*parts: int | str) -> None:
    """Torch's, numpy's and Python's generators."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    value = int.from_bytes(digest[:8], "big") >> 1
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
