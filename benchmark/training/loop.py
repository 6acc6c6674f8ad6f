"""The training loop, through Lightning Fabric: seeded, selected on validation images only, resumable after a kill.

Every random draw of an epoch follows from (seed, epoch), so a run that resumes at an epoch is the run that never
stopped. A checkpoint is one safetensors file (tensors) with its JSON state in the header: written whole or not at all,
and never a pickle.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from lightning_fabric import Fabric
from rich.progress import Progress
from safetensors import safe_open
from safetensors.torch import save

from benchmark import files
from benchmark.errors import BenchmarkError
from benchmark.records import TrainingSpec
from benchmark.training.objective import Objective

Split = tuple[torch.Tensor, torch.Tensor]  # images (n, c, h, w) float32 in [0, 1], labels (n,) int64


@dataclass
class Progressed:
    """How far a run has come; the JSON part of a checkpoint."""

    epoch: int = 0  # epochs finished
    best_epoch: int = 0
    best_score: float = -math.inf
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


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
    on_epoch: Callable[[Progressed], None] = lambda _: None,
) -> tuple[dict[str, torch.Tensor], Progressed]:
    """Trains `model` in place and returns the weights of the epoch with the best validation score, and the history.

    Args:
        checkpoint: the file to resume from when it exists, rewritten after each epoch.
        on_epoch: called after each epoch, before the checkpoint.

    Raises:
        BenchmarkError: the loss is not finite; the last good checkpoint stays.
    """
    optimizer = _optimizer(model, spec)
    wrapped, optimizer = fabric.setup(model, optimizer)  # `model` itself is what it wraps
    best, done = _resume(model, optimizer, checkpoint)
    data = tuple(t.to(fabric.device) for t in (*train_split, *validation_split))
    with Progress(disable=not fabric.is_global_zero, transient=True) as progress:
        task = progress.add_task("training", total=spec.epochs, completed=done.epoch)
        for epoch in range(done.epoch, spec.epochs):
            _seed(seed, epoch)
            loss = _epoch(wrapped, objective, optimizer, spec, data[0], data[1], epoch, fabric)
            _seed(seed, epoch, "score")
            score = objective.score(wrapped, data[2], data[3])
            done.losses.append(loss)
            done.scores.append(score)
            if score > done.best_score:
                done.best_epoch, done.best_score = epoch + 1, score
                best = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
            done.epoch = epoch + 1
            on_epoch(done)
            files.write(checkpoint, _pack(model, best, optimizer.optimizer, done))
            progress.update(task, advance=1, description=f"epoch {epoch + 1} loss {loss:.3f} score {score:.3f}")
    return best, done


def _epoch(model, objective, optimizer, spec, images, labels, epoch, fabric) -> float:
    model.train()
    order = torch.randperm(len(labels), device="cpu")
    batches = order.split(spec.batch_size)
    total = 0.0
    for step, batch in enumerate(batches):
        place = epoch + step / len(batches)
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate * _schedule(place / spec.epochs)
        strength = min(1.0, epoch / spec.warmup_epochs) if spec.warmup_epochs else 1.0
        batch = batch.to(images.device)
        loss = objective.loss(model, images[batch], labels[batch], strength)
        if not torch.isfinite(loss):
            raise BenchmarkError(
                f"the training loss is {loss.item()} in epoch {epoch + 1}; lower the learning rate. "
                "The last good checkpoint is kept"
            )
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        total += loss.item() * len(batch)
    return total / len(labels)


def _schedule(done: float) -> float:
    """Share of the full learning rate: linear rise over the first 30%, then a cosine to 0."""
    if done < 0.3:
        return 0.04 + 0.96 * done / 0.3
    return 0.5 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))


def _seed(*parts: int | str) -> None:
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _optimizer(model: torch.nn.Module, spec: TrainingSpec) -> torch.optim.Optimizer:
    if spec.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=spec.learning_rate, momentum=0.9, weight_decay=spec.weight_decay)
    return torch.optim.AdamW(model.parameters(), lr=spec.learning_rate, weight_decay=spec.weight_decay)


def _pack(model, best: dict[str, torch.Tensor], optimizer, done: Progressed) -> bytes:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {
            f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items() if value is not None
        }
    packed = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(packed, {"progress": json.dumps(asdict(done))})


def _resume(model, optimizer, checkpoint: Path) -> tuple[dict[str, torch.Tensor], Progressed]:
    """Puts a checkpoint back into model and optimizer; a fresh start where there is none."""
    if not checkpoint.exists():
        return {}, Progressed()
    with safe_open(checkpoint, "pt") as stored:
        done = Progressed(**json.loads(stored.metadata()["progress"]))
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no mapping
    model.load_state_dict(_under(tensors, "model."))
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in _under(tensors, "optimizer.").items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = tensor
    inner = optimizer.optimizer
    inner.load_state_dict({"state": state, "param_groups": inner.state_dict()["param_groups"]})
    print(f"resuming after epoch {done.epoch}", flush=True)
    return _under(tensors, "best."), done


def _under(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
