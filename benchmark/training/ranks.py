"""Data-parallel training: each process has a share of every batch, and all take the same step.

Gradients of the shares are added in a fixed order, so runs with the same number of processes are identical. They differ from
a run of one process: sums round otherwise, BatchNorm sees one share, and each rank draws its own random numbers.
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
Exchange = Callable[[Literal["sum", "first"], Tensors], Tensors]  # returns the sum over ranks, or rank 0's tensors
LEAST = 2  # images in a share


def seed_draws(*parts: int | str) -> None:
    """Seed the generators of torch, numpy and Python from names and numbers, such as (seed, epoch)."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    value = int.from_bytes(digest[:8], "big") >> 1
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one network; by default it is alone and exchanges nothing."""

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
        """Replace this rank's gradients by the sum over all ranks; return the sum of their losses.

        A parameter without a gradient in any rank stays without.
        """
        if self.exchange is None:
            return loss
        learned = [p for p in parameters if p.requires_grad]
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in learned]
        there = torch.tensor([p.grad is not None for p in learned], dtype=torch.float32)
        flat = torch.cat([grad.flatten() for grad in own])
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
        total = self.exchange("sum", {"gradient": flat, "there": there, "loss": loss})
        pieces = total["gradient"].split([p.numel() for p in learned])
        for parameter, piece, ranks in zip(learned, pieces, total["there"].tolist(), strict=True):
            parameter.grad = piece.to(parameter).view_as(parameter) if ranks else None
        return total["loss"].to(loss.device)

    def mean(self, value: float, rows: int) -> float:
        """Return the mean over all ranks' rows, given this rank's mean over `rows` of them."""
        if self.exchange is None:
            return value
        own = torch.tensor([value * rows, rows], dtype=torch.float64)
        total, count = self.exchange("sum", {"mean": own})["mean"].tolist()
        return total / count

    def take_first(self, modules: Iterable[nn.Module]) -> None:
        """Load parameters and kept buffers of rank 0, since each rank has statistics of its own images."""
        if self.exchange is None:
            return
        every = [*modules]  # a submitted module may have a `state_dict` of its own
        own = {f"{i}.{name}": t for i, module in enumerate(every) for name, t in module.state_dict().items()}
        first = self.exchange("first", {} if self.rank else own)
        for i, module in enumerate(every):
            start = f"{i}."
            module.load_state_dict({k.removeprefix(start): t for k, t in first.items() if k.startswith(start)})

    def check(self, batch_size: int, validation: int) -> None:
        """Raise a BenchmarkError if a batch or the validation split has too few images for the processes."""
        if self.count > 1 and LEAST * self.count > min(batch_size, validation):
            raise BenchmarkError(
                f"params.yaml, train: {self.count} processes cannot share batches of {batch_size} and {validation} "
                f"validation images, {LEAST} each at least; use fewer"
            )


ALONE = Ranks()


@dataclass(frozen=True)
class Collective:
    """An exchange by torch.distributed: NCCL between GPUs, Gloo between CPUs. A sandbox does not allow its connections.

    Attributes:
        meeting: a file that does not exist yet, the same for all ranks.
        seconds: the longest that ranks wait for each other.
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
            shapes = [{name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}]
            distributed.broadcast_object_list(shapes, src=0, device=device)
            tensors = tensors or {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes[0].items()}
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
    """Add the tensors of one more rank, in place.

    Raises:
        ValueError: its names, shapes or types differ from those before.
    """
    expected, sent = ({name: (t.shape, t.dtype) for name, t in tensors.items()} for tensors in (total, part))
    if sent != expected:
        raise ValueError("they do not keep step")
    for name, tensor in total.items():
        tensor += part[name]
