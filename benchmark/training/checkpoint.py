"""Checkpoints: safetensors files with JSON in their header, written atomically, never a pickle."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from benchmark.runtime import files

Tensors = dict[str, torch.Tensor]


def keep(path: Path, tensors: Tensors, state: Any) -> None:
    """Write tensors, and a state that JSON can hold."""
    packed = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    files.write(path, save(packed, {"state": json.dumps(state)}))  # one key: safetensors writes several in any order


def kept(path: Path) -> tuple[Tensors, Any]:
    """Return the tensors and the state that `keep` wrote."""
    with safe_open(path, "pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no mapping
        return tensors, json.loads(stored.metadata()["state"])


@dataclass
class TrainingProgress:
    """The progress of a run; the JSON part of a checkpoint."""

    epoch: int = 0  # epochs finished
    best_epoch: int = 0
    best_score: float = -math.inf
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    # each epoch's accuracy under the training attack, and under both it and PGD
    watched: list[tuple[float, float]] = field(default_factory=list)


def write(
    path: Path,
    modules: dict[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    best: Tensors,
    done: TrainingProgress,
    scaler: dict[str, Any],
) -> None:
    """Write all that training resumes from; `scaler` is the state of Fabric's precision."""
    tensors = {f"{kind}.{name}": t for kind, module in modules.items() for name, t in module.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items() if value is not None}
    keep(path, tensors, {"progress": asdict(done), "scaler": scaler})


def resume(
    path: Path, modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer
) -> tuple[Tensors, TrainingProgress, dict[str, Any]]:
    """Restore modules and optimizer from a checkpoint, if it exists; return best weights, progress and scaler."""
    if not path.exists():
        return {}, TrainingProgress(), {}
    tensors, saved = kept(path)
    done = TrainingProgress(**saved["progress"])
    done.watched = [(trained, pgd) for trained, pgd in done.watched]
    for kind, module in modules.items():
        module.load_state_dict(_under(tensors, f"{kind}."))
    state: dict[int, Tensors] = {}
    for name, tensor in _under(tensors, "optimizer.").items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    print(f"resuming after epoch {done.epoch}", flush=True)
    return _under(tensors, "best."), done, saved["scaler"]


def _under(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
