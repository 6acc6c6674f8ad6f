"""The interface of preparations: steps that change a network's weights before the loop, or instead of it.

Each is a file `<name>.py` of the folder of the submission whose recipe names it, with

    def prepare(model, start, train_split, place, *, <its own parameters>) -> dict[str, JsonValue]

which changes `model` in place and returns its history for training.json. `start` is the trained network that the row starts
from, or the result of the step before, frozen and in evaluation mode. `model` has the weights of `start`; in a file with
`OTHER_ARCHITECTURE = True` it has fresh weights and may be another network. It sees training images only.
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
    """Where a preparation works: `folder` keeps finished parts for a resumed run, `say` reports progress."""

    folder: Path
    seed: int
    device: torch.device
    say: Callable[[str], None]

    def kept(self, name: str, make: Callable[[], tuple[Tensors, History]]) -> tuple[Tensors, History]:
        """Return tensors and history of one part, such as a layer, as an earlier run kept them, or make and keep them.

        Either way they are read from the file, so that a resumed run is byte-identical to one that never stopped.
        """
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(self.seed)  # so that its draws do not depend on the parts before it
                checkpoint.keep(path, *make())
        tensors, history = checkpoint.kept(path)
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}, history

    def drawn(self, images: torch.Tensor, samples: int) -> torch.Tensor:
        """Return `samples` of the training images, in an order drawn by the seed."""
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.seed))
        return images[order[:samples].to(images.device)]
