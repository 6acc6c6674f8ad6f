"""Data-parallel training: each process has a share of every batch, and all take the same step.

The gradients of the shares are added in the order of the ranks, so a run of so many processes is the same every time. It is
not the run of one process: sums round otherwise, BatchNorm sees its share alone, and each rank draws its own noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.training import draws

Tensors = dict[str, torch.Tensor]
Exchange = Callable[[Literal["sum", "first"], Tensors], Tensors]  # of all ranks': their sum, or the first one's


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
        """Every `count`th row from `rank` on: the ranks' shares differ by a row at most and may be empty."""
        return rows if self.alone else rows[self.rank :: self.count]

    def add_gradients(self, parameters: Iterable[nn.Parameter], loss: float) -> float:
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
        found = self.exchange(
            "sum", {"gradient": flat, "there": there, "loss": torch.tensor(loss, dtype=torch.float64)}
        )
        pieces = found["gradient"].split([p.numel() for p in learned])
        for parameter, piece, ranks in zip(learned, pieces, found["there"].tolist(), strict=True):
            parameter.grad = piece.to(parameter).view_as(parameter) if ranks else None
        return found["loss"].item()

    def mean(self, value: float, rows: int) -> float:
        """The mean over all ranks' rows of what is a mean over `rows` of them here."""
        if self.exchange is None:
            return value
        here = torch.tensor([value * rows, rows], dtype=torch.float64)
        total, count = self.exchange("sum", {"mean": here})["mean"].tolist()
        return total / count

    def take_first(self, modules: Iterable[nn.Module]) -> None:
        """Parameters and buffers as the first rank has them: those that follow its own images alone differ."""
        if self.exchange is None:
            return
        every = [*modules]
        own = {f"{i}.{name}": t for i, module in enumerate(every) for name, t in module.state_dict().items()}
        found = self.exchange("first", {} if self.rank else own)
        for i, module in enumerate(every):
            start = f"{i}."
            module.load_state_dict({k.removeprefix(start): t for k, t in found.items() if k.startswith(start)})

    def seed(self, *parts: int | str) -> None:
        """Draws from here on are this rank's own; by itself nothing is seeded."""
        if not self.alone:
            draws.seed(*parts, "rank", self.rank)

    def check(self, batch_size: int, validation: int) -> None:
        """
        Raises:
            BenchmarkError: more processes than images of a batch, or of the validation split.
        """
        if self.count > min(batch_size, validation):
            raise BenchmarkError(
                f"params.yaml, train: {self.count} processes cannot share batches of {batch_size} and {validation} "
                "validation images; use fewer"
            )


ALONE = Ranks()


def total(parts: Sequence[Tensors]) -> Tensors:
    """The sum of what the ranks sent, in their order.

    Raises:
        ValueError: they sent different things.
    """
    kinds = [{name: (tensor.shape, tensor.dtype) for name, tensor in part.items()} for part in parts]
    if any(kind != kinds[0] for kind in kinds):
        raise ValueError("they do not keep step")
    return {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[0]}
