"""Data-parallel training: each process has a share of every batch, and all take the same step.

The gradients of the shares are added in one order, so a run of so many processes is the same every time. It is
not the run of one process: sums round otherwise, BatchNorm sees its share alone, and in the steps each rank draws for itself.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import distributed, nn

from benchmark.runtime.errors import BenchmarkError

Tensors = dict[str, torch.Tensor]
Exchange = Callable[[Literal["sum", "first"], Tensors], Tensors]  # of all ranks': their sum, or the first one's
LEAST = 2  # images of a share


def seed_draws(*parts: int | str) -> None:
    """Seed the generators of torch, numpy and Python from names and numbers, such as (seed, epoch)."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    value = int.from_bytes(digest[:8], "big") >> 1
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one network; by itself it is the only one, and exchanges nothing."""

    rank: int = 0
    count: int = 1
    exchange: Exchange | None = None

    @property
    def alone(self) -> bool:
        return self.exchange is None

    def share(self, rows: torch.Tensor) -> torch.Tensor:
        """Return every `count`-th row, starting at `rank`. Batches too small to give every rank two rows go to rank 0,
        because BatchNorm and mixup need two.
        """
        if self.alone or (self.rank == 0 and len(rows) < LEAST * self.count):
            return rows
        return rows[self.rank :: self.count] if len(rows) >= LEAST * self.count else rows[:0]

    def add_gradients(self, parameters: Iterable[nn.Parameter], loss: torch.Tensor) -> torch.Tensor:
        """Puts the sum of all ranks' gradients in place of this one's; the sum of their losses.

        A parameter that no rank has a gradient of is left without.
        """
        if self.exchange is None:
            return loss
        learned = [p for p in parameters if p.requires_grad]
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in learned]
        there = torch.tensor([p.grad is not None for p in learned], dtype=torch.float32)
        flat = torch.cat([grad.flatten() for grad in own])
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
        found = self.exchange("sum", {"gradient": flat, "there": there, "loss": loss})
        pieces = found["gradient"].split([p.numel() for p in learned])
        for parameter, piece, ranks in zip(learned, pieces, found["there"].tolist(), strict=True):
            parameter.grad = piece.to(parameter).view_as(parameter) if ranks else None
        return found["loss"].to(loss.device)

    def mean(self, value: float, rows: int) -> float:
        """The mean over all ranks' rows of what is a mean over `rows` of them here."""
        if self.exchange is None:
            return value
        here = torch.tensor([value * rows, rows], dtype=torch.float64)
        total, count = self.exchange("sum", {"mean": here})["mean"].tolist()
        return total / count

    def take_first(self, modules: Iterable[nn.Module]) -> None:
        """Parameters and kept buffers as the first rank has them: statistics of its own images are each rank's."""
        if self.exchange is None:
            return
        every = [*modules]
        own = {f"{i}.{name}": t for i, module in enumerate(every) for name, t in module.state_dict().items()}
        found = self.exchange("first", {} if self.rank else own)
        for i, module in enumerate(every):
            start = f"{i}."
            module.load_state_dict({k.removeprefix(start): t for k, t in found.items() if k.startswith(start)})

    def check(self, batch_size: int, validation: int) -> None:
        """
        Raises:
            BenchmarkError: too few images of a batch, or of the validation split, for so many processes.
        """
        if self.count > 1 and LEAST * self.count > min(batch_size, validation):
            raise BenchmarkError(
                f"params.yaml, train: {self.count} processes cannot share batches of {batch_size} and {validation} "
                f"validation images, {LEAST} each at least; use fewer"
            )


ALONE = Ranks()


@dataclass(frozen=True)
class Collective:
    """An exchange by torch.distributed: NCCL between GPUs, Gloo between processors. For processes that no sandbox holds,
    since both connect to each other.

    Attributes:
        meeting: a file that does not exist yet, the same for all ranks.
        seconds: that ranks wait for each other, at most.
    """

    rank: int
    count: int
    meeting: Path
    seconds: float
    on_gpus: bool = True

    def __call__(self, kind: Literal["sum", "first"], tensors: Tensors) -> Tensors:
        device = torch.device("cuda", torch.cuda.current_device()) if self.on_gpus else torch.device("cpu")
        if not distributed.is_initialized():
            distributed.init_process_group(
                "nccl" if self.on_gpus else "gloo", init_method=f"file://{self.meeting.absolute()}", rank=self.rank,
                world_size=self.count, timeout=timedelta(seconds=self.seconds),
            )  # fmt: skip
        if kind == "first":
            about = [{name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}]
            distributed.broadcast_object_list(about, src=0, device=device)
            tensors = tensors or {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in about[0].items()}
        exchanged = {}
        for name, tensor in tensors.items():
            there = tensor.detach().to(device, copy=True).contiguous()
            if kind == "first":
                distributed.broadcast(there, src=0)
            else:
                distributed.all_reduce(there)
            exchanged[name] = there.to(tensor.device)
        return exchanged


def add(total: Tensors, part: Tensors) -> None:
    """Adds what one more rank sent, in place.

    Raises:
        ValueError: it sent something else than those before.
    """
    kinds = [{name: (tensor.shape, tensor.dtype) for name, tensor in sent.items()} for sent in (total, part)]
    if kinds[0] != kinds[1]:
        raise ValueError("they do not keep step")
    for name, tensor in total.items():
        tensor += part[name]
