"""What training needs of a preparation: a step that changes a network's weights before the loop, or in its place.

Each is the file `benchmark/training/prepare/<name>.py` with

    def prepare(model, start, train_split, place, *, <its own parameters>) -> dict[str, JsonValue]

which changes `model` in place and returns its history, which stands in training.json. `start` is the trained network that
the row starts from, or the network as the step before left it, frozen and in evaluation mode. Where the file says
`OTHER_ARCHITECTURE = True`, `model` comes with fresh weights and may be another network than `start`; elsewhere it has the
weights of `start`. Training images are all that it sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue

from benchmark.training import checkpoint
from benchmark.training.checkpoint import Tensors as Tensors

History = dict[str, JsonValue]


@dataclass(frozen=True)
class Place:
    """Where a preparation works: `folder` keeps what a killed run goes on from, `say` tells of progress."""

    folder: Path
    seed: int
    device: torch.device
    say: Callable[[str], None]

    def kept(self, name: str, make: Callable[[], tuple[Tensors, History]]) -> tuple[Tensors, History]:
        """The tensors and the history of one part, such as a layer: what an earlier run kept of it, else made now and kept.

        Both ways they come back from the file, so that a run that goes on is the run that never stopped.
        """
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            checkpoint.keep(path, *make())
        tensors, history = checkpoint.kept(path)
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}, history

    def drawn(self, images: torch.Tensor, samples: int) -> torch.Tensor:
        """So many of the training images, in an order drawn by the seed."""
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.seed))
        return images[order[:samples].to(images.device)]
