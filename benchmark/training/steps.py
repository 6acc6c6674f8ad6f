"""The steps of an epoch: gradients, the optimiser, and what keeps the weights where the recipe wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from lightning_fabric import Fabric

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.training import TrainingSpec
from benchmark.training import draws, schedule
from benchmark.training.objective import Objective
from benchmark.training.optimisers import optimizer as optimizer_of
from benchmark.training.optimisers import sam_perturbation
from benchmark.training.penalty import Penalty
from benchmark.training.ranks import ALONE, Ranks
from benchmark.verdicts.prediction import checked

if TYPE_CHECKING:
    from lightning_fabric.wrappers import _FabricOptimizer
    from timm.utils.model_ema import ModelEmaV3

Split = tuple[torch.Tensor, torch.Tensor]  # images (n, c, h, w) float32 in [0, 1], labels (n,) int64
Augmenting = Callable[[torch.Tensor, torch.Tensor], Split]  # augment.Augment, or anything that keeps to its docstring


def nonzero(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Where the entries of matrices and kernels are not 0, by parameter, as a mask in its type; vectors are left free."""
    found = {name: p.detach() != 0 for name, p in model.named_parameters() if p.ndim > 1}
    return {name: mask.to(model.get_parameter(name).dtype) for name, mask in found.items()}


class NotFinite(Exception):
    """What is not finite, in words."""


@dataclass
class Steps:
    """The steps of an epoch, of this rank's share of every batch."""

    wrapped: torch.nn.Module
    model: torch.nn.Module  # inside `wrapped`
    objective: Objective
    optimizer: _FabricOptimizer
    spec: TrainingSpec
    fabric: Fabric
    ema: ModelEmaV3 | None
    augment: Augmenting | None
    closing: Augmenting | None  # in place of `augment`, in the last epochs
    penalties: torch.nn.ModuleDict
    nonzero: Mapping[str, torch.Tensor]  # by parameter: where its entries may leave 0
    state: torch.nn.Module | None  # the objective's
    ranks: Ranks = ALONE

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        objective: Objective,
        spec: TrainingSpec,
        fabric: Fabric,
        images: torch.Tensor,
        augment: Augmenting | None = None,
        closing: Augmenting | None = None,
        penalties: Mapping[str, Penalty] | None = None,
        ranks: Ranks = ALONE,
    ) -> Steps:
        """Those of a recipe before its first epoch; `images` are one or more, for the objective to look at.

        Raises:
            BenchmarkError: a model that the objective cannot be applied to, or a precision that the recipe cannot have.
        """
        state = objective.attach(model, images)
        kept = nonzero(model) if spec.keep_zeros else {}
        wrapped, optimizer = fabric.setup(model, optimizer_of(model, spec))  # `model` itself is what it wraps
        wrapped.register_forward_hook(_held_to_shape)
        if spec.sam and fabric.strategy.precision.state_dict():
            raise BenchmarkError(
                "sam cannot run with 16-mixed, which scales gradients; set another precision in params.yaml"
            )
        device = fabric.device
        return cls(
            wrapped, model, objective, optimizer, spec, fabric,
            ema=_averaged(model, spec.ema) if spec.ema else None,
            augment=augment,
            closing=closing,
            penalties=torch.nn.ModuleDict(penalties or {}).to(device),
            nonzero={name: mask.to(device) for name, mask in kept.items()},
            state=state.to(device) if state is not None else None,
            ranks=ranks,
        )  # fmt: skip

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """Those whose parameters and buffers a run resumes from, by kind."""
        found: dict[str, torch.nn.Module] = {"model": self.model, "penalties": self.penalties}
        found |= {"ema": self.ema.module} if self.ema else {}
        return found | ({"objective": self.state} if self.state is not None else {})

    @property
    def judged(self) -> torch.nn.Module:
        """The model whose weights are scored and kept."""
        return self.ema.module if self.ema else self.model

    def epoch(self, images: torch.Tensor, labels: torch.Tensor, epoch: int, seed: int) -> float:
        """All images once, in random order; the mean loss. Every draw follows from (seed, epoch)."""
        draws.seed(seed, epoch)
        self.wrapped.train()
        order = torch.randperm(len(labels), device="cpu")
        batches = order.split(self.spec.batch_size * self.spec.accumulation)
        self.ranks.seed(seed, epoch)
        eps_factor = schedule.eps_factor(self.spec, epoch)
        augment = self.closing if schedule.closes(self.spec, epoch) else self.augment
        total = 0.0
        for step, batch in enumerate(batches):
            rate = self.spec.learning_rate * schedule.lr_factor(self.spec, epoch + step / len(batches))
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            shares = [self.ranks.share(part) for part in batch.split(self.spec.batch_size)]
            own = torch.cat(shares).to(images.device)
            x, y = images[own], labels[own]
            if augment and len(own):
                x, y = (t.to(images.device) for t in augment(x, y))
            sizes = [len(share) for share in shares]
            parts = [*zip(x.split(sizes), y.split(sizes), strict=True)]
            total += self._step(parts, len(batch), eps_factor) * len(batch)
        if not all(torch.isfinite(p).all() for p in self.model.parameters()):
            raise NotFinite("weights are not finite")
        return total / len(labels)

    def _step(self, batches: Sequence[Split], images: int, eps_factor: float) -> float:
        for penalty in self.penalties.values():
            penalty.advance()  # type: ignore[operator]
        self.objective.advance()
        if self.spec.sam:
            devices = [self.fabric.device] if self.fabric.device.type == "cuda" else []
            with torch.random.fork_rng(devices):  # both steps draw the same masks and starts
                loss = self._gradient(batches, images, eps_factor)
            with sam_perturbation(self.model, self.spec.sam):
                self._gradient(batches, images, eps_factor)
        else:
            loss = self._gradient(batches, images, eps_factor)
        if self.spec.clip_norm:
            self.fabric.clip_gradients(
                self.wrapped, self.optimizer, max_norm=self.spec.clip_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        self._put_back()
        if self.ema:
            self.ema.update(self.model)
        return loss

    def _gradient(self, batches: Sequence[Split], images: int, eps_factor: float) -> float:
        """Of the mean loss of `images` over all ranks, gathered over `batches`, and the penalties, once; their sum."""
        self.optimizer.zero_grad()
        total = 0.0
        for number, (x, y) in enumerate(batches):
            if not len(x):
                continue
            loss = self.objective.loss(self.wrapped, x, y, eps_factor) * (len(x) / images)
            if number == 0 and self.ranks.rank == 0:
                loss = loss + self._penalty() if self.penalties else loss
            if not torch.isfinite(loss):
                raise NotFinite(f"the training loss is {loss.item()}")
            self.fabric.backward(loss)
            total += loss.item()
        return self.ranks.add_gradients(self.model.parameters(), total)

    @torch.no_grad()
    def _put_back(self) -> None:
        """Weights among those that the recipe and the objective allow."""
        for name, parameter in self.model.named_parameters():
            if name in self.nonzero:
                parameter.mul_(self.nonzero[name])
        self.objective.after_step(self.model)

    def _penalty(self) -> torch.Tensor:
        terms = {name: penalty() for name, penalty in self.penalties.items()}
        for name, term in terms.items():
            if not torch.isfinite(term):
                raise NotFinite(f"the penalty {name} is {term.item()}")
        return torch.stack([term.to(self.fabric.device) for term in terms.values()]).sum()


def _held_to_shape(_: torch.nn.Module, given: tuple[torch.Tensor, ...], output: object) -> None:
    checked(output, len(given[0]))


def _averaged(model: torch.nn.Module, decay: float) -> ModelEmaV3:
    from timm.utils.model_ema import ModelEmaV3  # a slow import, with a warning: for those who ask for it

    return ModelEmaV3(model, decay)
