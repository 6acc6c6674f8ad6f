"""The network of a row that is judged: never an object that the row's own code made in the judge's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmark.layers.derived import cache_weights
from benchmark.layers.description import rebuild
from benchmark.loading.confining import wall
from benchmark.loading.rows import Row
from benchmark.loading.trained import trained_model
from benchmark.loading.walled import WalledModel, walled_model
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.memory import peak
from benchmark.runtime.torch_setup import start, stop_filling
from benchmark.verdicts.prediction import logits


@dataclass(frozen=True)
class JudgedModel:
    """What is judged.

    Attributes:
        model: in evaluation mode, frozen: behind the wall, or, where it is certified, rebuilt here from a description of it.
        wall: what holds the row's own code, in words.
        claimed: the row's own model behind the wall, where `model` is one that was rebuilt.
    """

    model: nn.Module
    wall: str
    claimed: WalledModel | None = None

    @property
    def rebuilt(self) -> bool:
        """Whether `model` is made of layers that the judge knows, from their description."""
        return self.claimed is not None

    @property
    def memory(self) -> int:
        """Bytes of a GPU that the row's process and this one have held at most."""
        asked = self.claimed or self.model
        return peak() + (asked.memory() if isinstance(asked, WalledModel) else 0)

    def confirm(self, images: torch.Tensor, batch_size: int, row: str) -> None:
        """Holds the rebuilt network against the row's own model on images (n, c, h, w).

        Raises:
            BenchmarkError: they differ in a bit of a logit, with the first image.
        """
        if self.claimed is None:
            return
        own, rebuilt = (logits(model, images, batch_size) for model in (self.claimed, self.model))
        if own.shape != rebuilt.shape or not torch.equal(own, rebuilt):
            where = ""
            if own.shape == rebuilt.shape:
                image = int((own != rebuilt).any(1).nonzero()[0])
                where = f" for image {image} by {float((own[image] - rebuilt[image]).abs().max()):.3g}"
            raise BenchmarkError(
                f"{row}: its logits differ{where} from those of the network rebuilt from its layers, which is what would be "
                "certified; let its layers do what their types do, or leave the certificate out"
            )


Spare = Callable[[], AbstractContextManager[nn.Module]]


@contextmanager
def spare_models(row: Row, device: torch.device, count: int) -> Iterator[list[Spare]]:
    """`count` times the row's own model, each in a process of its own that exists now, before an image is read, and builds
    the model when it is entered. It has been asked nothing, and ends with the block that entered it, or with this one. None
    where nothing holds the row's code, which could then do anything.
    """
    held = wall()
    if not held.stands:
        yield []
        return
    with ExitStack() as ends:
        models = [ends.enter_context(closing(walled_model(row, device, held))) for _ in range(count)]
        yield [partial(_begun, model) for model in models]


@contextmanager
def _begun(model: WalledModel) -> Iterator[WalledModel]:
    with closing(model):
        model.begin()
        yield model


@contextmanager
def judged_model(row: Row, device: torch.device) -> Iterator[JudgedModel]:
    """The row's network with its trained weights, for as long as the block lasts.

    Raises:
        BenchmarkError: the weights are missing or do not fit, the row's code fails, or a certified row has layers that no
            certificate knows.
    """
    held = wall()
    if not held.stands:
        yield JudgedModel(trained_model(row, device), held.words)
        return
    with _begun(walled_model(row, device, held)) as model:
        if not row.described:
            yield JudgedModel(model, held.words)
            return
        try:
            rebuilt = rebuild(*model.description())
        except BenchmarkError as error:
            raise BenchmarkError(f"{row.name}: {error}") from None
        start(device)
        rebuilt = rebuilt.to(device)
        cache_weights(rebuilt)
        stop_filling()
        yield JudgedModel(rebuilt, held.words, model)
