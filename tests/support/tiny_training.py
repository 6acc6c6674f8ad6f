"""Tiny training runs with everything at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from benchmark.specs.training import TrainingSpec
from benchmark.training.loop import train
from benchmark.training.steps import Steps


def blobs(seed: int, n: int = 120, channels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Four classes of noisy bright quadrants."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    images = 0.3 * torch.rand(n, channels, 6, 6, generator=generator)
    for label in range(4):
        row, column = 3 * (label // 2), 3 * (label % 2)
        images[labels == label, :, row : row + 3, column : column + 3] += 0.4
    return images, labels


def spec(**changes) -> TrainingSpec:
    return TrainingSpec(**{"objective": "standard", "epochs": 6, "batch_size": 16, "learning_rate": 0.02, **changes})


def model(channels: int = 1) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Linear(36 * channels, 16)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def run(network: nn.Module, objective, rules: TrainingSpec, checkpoint: Path, *, precision="32-true", **options):
    channels = options.pop("channels", 1)
    fabric = options.pop("fabric", None) or Fabric(accelerator="cpu", devices=1, precision=precision)
    own = {name: options.pop(name) for name in ("metric", "selected_by", "monitor", "on_epoch") if name in options}
    images = blobs(0, channels=channels)
    steps = Steps(network, objective, rules, fabric, images[0][:1], **options)
    return train(steps, images, blobs(1, 40, channels), seed=3, checkpoint=checkpoint, **own)


def stopping_after(epochs: int) -> Callable[[object], None]:
    """What ends a run, called after each of its epochs, in the one after so many."""
    calls: list[object] = []

    def stop(done: object) -> None:
        calls.append(done)
        if len(calls) > epochs:
            raise KeyboardInterrupt

    return stop


def resumed_to_the_same_bytes(start: Callable[..., tuple], stop: int) -> dict[str, torch.Tensor]:
    """Check that a run stopped after `stop` epochs ends with the weights, history and state of a whole one; return the state.

    Args:
        start: runs in the folder of a name, with more options of `run`: its result, and the state of its objective.
    """
    (whole, history), state = start("whole")
    with pytest.raises(KeyboardInterrupt):
        start("stopped", on_epoch=stopping_after(stop))
    (resumed, again), same = start("stopped")
    assert again == history
    for one, other in ((whole, resumed), (state, same)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    return state
