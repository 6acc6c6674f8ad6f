"""The steps of an epoch: gradients, the optimiser, and projections of the weights.

Schedules are closed forms of the epoch (`lr_factor`, `eps_factor`), so resuming needs no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.optim.optimizer import ParamsT

from benchmark.attacks.prediction import checked
from benchmark.runtime.errors import BenchmarkError, out_of_memory
from benchmark.specs.training import TrainingSpec
from benchmark.training.capture import CapturedStep, CudaRecorder, Split, compiled
from benchmark.training.objective import Objective, Penalty
from benchmark.training.ranks import ALONE, Ranks, seed_draws

if TYPE_CHECKING:
    from lightning_fabric.plugins.precision.precision import Precision
    from lightning_fabric.wrappers import _FabricOptimizer
    from timm.utils.model_ema import ModelEmaV3


LOOK = 64  # steps between checks of the total loss, each of which waits for a GPU
Augmenting = Callable[[torch.Tensor, torch.Tensor], Split]  # such as augment.Augment


def lr_factor(spec: TrainingSpec, place: float) -> float:
    """Return the factor of the learning rate after `place` epochs.

    `one_cycle` rises from 4% over the first 30% of training and falls along a cosine to 0. `cosine` and `constant` rise from
    1% over `rate_warmup_epochs`; the cosine then falls to `final_rate`.
    """
    if spec.schedule == "one_cycle":
        done = place / spec.epochs
        return 0.04 + 0.96 * done / 0.3 if done < 0.3 else 0.5 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))
    if place < spec.rate_warmup_epochs:
        return 0.01 + 0.99 * place / spec.rate_warmup_epochs
    if spec.schedule == "constant":
        return 1.0
    done = (place - spec.rate_warmup_epochs) / (spec.epochs - spec.rate_warmup_epochs)
    return spec.final_rate + (1 - spec.final_rate) * 0.5 * (1 + math.cos(math.pi * done))


def eps_factor(spec: TrainingSpec, epoch: int) -> float:
    """Return the factor of the training radius in this epoch: 0 in the first, 1 after `warmup_epochs`, linear between."""
    return min(1.0, epoch / spec.warmup_epochs) if spec.warmup_epochs else 1.0


def optimizer(
    model: nn.Module, spec: TrainingSpec, device: torch.device | None = None, *, scaled: bool = False, captured: bool = False
) -> torch.optim.Optimizer:
    """Return SGD (momentum 0.9) or AdamW; `weight_decay_on: weights` spares biases and parameters of one axis.

    On a GPU it is torch's fused optimiser, unless gradients are `scaled` (16-mixed). Its learning rate is a tensor there, so
    that a `captured` step follows the schedule.
    """
    on_gpu = device is not None and device.type == "cuda" and not scaled
    fused = True if on_gpu else None
    if spec.weight_decay_on == "all":
        parameters: ParamsT = list(model.parameters())
    else:
        from timm.optim.optim_factory import param_groups_weight_decay  # a slow import that few recipes need

        parameters = [g for g in param_groups_weight_decay(model, spec.weight_decay) if g["params"]]
    made: torch.optim.Optimizer
    rate, decay = spec.learning_rate, spec.weight_decay
    if spec.optimizer == "sgd":
        made = torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=decay, fused=fused)
    else:
        capturable = on_gpu and captured
        made = torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, capturable=capturable, fused=fused)
    if on_gpu:
        for group in made.param_groups:
            group["lr"] = torch.tensor(rate, device=device)
    return made


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def sam_perturbation(model: nn.Module, rho: float) -> Iterator[None]:
    """Set the weights to w + rho g / ||g||_2, g their gradient, inside the context; afterwards they are exactly w again.

    Sharpness-aware minimisation (SAM; Foret et al. 2021) descends from w along the gradient of the loss inside, for which the
    caller clears g first. BatchNorm's running statistics do not change inside.
    """
    gradients = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    before = [p.detach().clone() for p, _ in gradients]
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    with torch.no_grad():
        size = torch.linalg.vector_norm(torch.stack([gradient.norm() for _, gradient in gradients]))
        for p, gradient in gradients:
            p.add_(gradient * (rho / (size + 1e-12)))
    for m in norms:
        m.track_running_stats = False
    try:
        yield
    finally:
        with torch.no_grad():
            for (p, _), old in zip(gradients, before, strict=True):
                p.copy_(old)
        for m in norms:
            m.track_running_stats = True


class NotFinite(Exception):
    """A loss, penalty or weight is not finite; the message names it."""


class Autocast(nn.Module):
    """The model that learns, in the run's precision: images (n, c, h, w) to logits (n, classes).

    It replaces Fabric's wrapper, whose hook on the logits lets only Fabric differentiate them; attacks do too. Images are not
    rounded for mixed precision; autocast rounds the inputs of its operations.

    Args:
        compiled: the same model compiled, for batches of `full` images; compiling for other sizes would take minutes.
    """

    def __init__(self, model: nn.Module, precision: Precision, compiled: nn.Module | None = None, full: int = 0) -> None:
        super().__init__()
        self.module, self._precision = model, precision
        self._compiled, self._full = [compiled or model], full  # in a list, so that it is no submodule
        self._mixed = str(precision.precision).endswith("mixed")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        given = images if self._mixed else self._precision.convert_input(images)
        with self._precision.forward_context():
            logits = (self._compiled[0] if len(given) == self._full else self.module)(given)
        return self._precision.convert_output(checked(logits, len(images)))


class Steps:
    """The steps of an epoch, on this rank's share of every batch.

    Args:
        model: the model that learns; all ranks begin with the weights of rank 0.
        images: at least one, for `objective.attach`.
        augment: `spec.augmentation`, ready to run.
        closing: `spec.closing`, in place of `augment` in the last epochs.
        penalties: `spec.penalties` by name, ready to run.
        ranks: the processes that share the batches.
        recorder: captures the steps on a GPU (capture.py), unless None.

    Raises:
        BenchmarkError: the objective cannot be applied to the model, or the recipe does not work in this precision.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        spec: TrainingSpec,
        fabric: Fabric,
        images: torch.Tensor,
        *,
        augment: Augmenting | None = None,
        closing: Augmenting | None = None,
        penalties: Mapping[str, Penalty] | None = None,
        ranks: Ranks = ALONE,
        recorder: CudaRecorder | None = None,
    ) -> None:
        ranks.take_first([model])
        self.model, self.objective, self.spec, self.fabric, self.ranks = model, objective, spec, fabric, ranks
        self.augment, self.closing = augment, closing
        self.pieces = 1  # that each batch is cut into where memory does not hold it
        state = objective.attach(model, images)
        precision, device = fabric.strategy.precision, fabric.device
        scales = bool(precision.state_dict())
        if spec.sam and scales:
            raise BenchmarkError("sam cannot run with 16-mixed, which scales gradients; set another precision in params.yaml")
        learner = optimizer(model, spec, device, scaled=scales, captured=recorder is not None)
        self.optimizer: _FabricOptimizer = fabric.setup(model, learner)[1]
        self.learning = Autocast(model, precision, compiled(model) if recorder else None, spec.batch_size)
        self.ema: ModelEmaV3 | None = None
        if spec.ema:
            from timm.utils.model_ema import ModelEmaV3  # a slow import with a warning, that few recipes need

            self.ema = ModelEmaV3(model, spec.ema)
        self.penalties = nn.ModuleDict(penalties or {}).to(device)
        # masks of matrices and kernels whose zeros stay; vectors are free
        masked = {name: p for name, p in model.named_parameters() if p.ndim > 1 and spec.keep_zeros}
        self.nonzero = {name: (p.detach() != 0).to(p.dtype) for name, p in masked.items()}
        self.state = state.to(device) if state is not None else None
        self.captured: CapturedStep | None = None
        if recorder:
            problem = "16-mixed looks at the gradients" if scales else "" if ranks.alone else "processes share it"
            self.captured = CapturedStep(self.step, recorder, problem, still=bool(spec.sam))

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Return the modules whose parameters and buffers a checkpoint keeps, by kind."""
        ema = {"ema": self.ema.module} if self.ema else {}
        state = {"objective": self.state} if self.state is not None else {}
        return {"model": self.model, "penalties": self.penalties, **ema, **state}

    @property
    def scored(self) -> nn.Module:
        """Return the model whose weights are scored and kept."""
        return self.ema.module if self.ema else self.model

    def epoch(self, images: torch.Tensor, labels: torch.Tensor, epoch: int, seed: int) -> float:
        """Take a step on each batch of all images in random order; return the mean loss.

        All random draws follow from (seed, epoch).

        Raises:
            NotFinite: a loss, a penalty or a weight is not finite.
        """
        with self.captured.recorder.stream() if self.captured else nullcontext():
            seed_draws(seed, epoch)
            self.learning.train()
            order = torch.randperm(len(labels), device="cpu").to(images.device)
            batches = order.split(self.spec.batch_size * self.spec.accumulation)
            if not self.ranks.alone:  # further draws differ between ranks
                seed_draws(seed, epoch, "rank", self.ranks.rank)
            factor = eps_factor(self.spec, epoch)
            closes = self.spec.closing is not None and epoch >= self.spec.epochs - self.spec.closing.epochs
            augment = self.closing if closes else self.augment
            take = self.captured or self.step
            total = torch.zeros((), dtype=torch.float64, device=images.device)
            for number, batch in enumerate(batches):
                place = epoch + number / len(batches)
                set_rate(self.optimizer.optimizer, self.spec.learning_rate * lr_factor(self.spec, place))
                shares = [self.ranks.share(part) for part in batch.split(self.spec.batch_size)]
                own = torch.cat(shares)
                x, y = images[own], labels[own]
                if augment and len(own):
                    x, y = (t.to(images.device) for t in augment(x, y))
                sizes = [len(share) for share in shares]
                parts = [*zip(x.split(sizes), y.split(sizes), strict=True)]
                total += take(parts, len(batch), factor) * len(batch)
                if number % LOOK == LOOK - 1:
                    self._check_total(total)
            self._check_total(total)
            if not all(torch.isfinite(p).all() for p in self.model.parameters()):
                raise NotFinite("weights are not finite")
            return total.item() / len(labels)

    def step(self, batches: Sequence[Split], images: int, eps_factor: float) -> torch.Tensor:
        """Take one optimiser step on batches with `images` images over all ranks; return their mean loss, () float64."""
        for penalty in self.penalties.values():
            penalty.advance()  # type: ignore[operator]
        self.objective.advance()
        loss = self._sam(batches, images, eps_factor) if self.spec.sam else self._gradient(batches, images, eps_factor)
        if self.spec.clip_norm:
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.spec.clip_norm, error_if_nonfinite=False)
        self.optimizer.step()
        with torch.no_grad():
            for name, mask in self.nonzero.items():
                self.model.get_parameter(name).mul_(mask)
            self.objective.after_step(self.model)
        if self.ema:
            self.ema.update(self.model)
        return loss

    def _sam(self, batches: Sequence[Split], images: int, eps_factor: float) -> torch.Tensor:
        """Leave the gradient of sharpness-aware minimisation; both passes draw the same random numbers."""
        devices = [self.fabric.device] if self.fabric.device.type == "cuda" else []
        # a graph cannot reset its generator, so only steps that draw nothing are recorded
        again = nullcontext() if self.captured and self.captured.recording else torch.random.fork_rng(devices)
        with again:
            loss = self._gradient(batches, images, eps_factor)
        with sam_perturbation(self.model, self.spec.sam):
            self._gradient(batches, images, eps_factor)
        return loss

    def _gradient(self, batches: Sequence[Split], images: int, eps_factor: float) -> torch.Tensor:
        """Leave the gradient of the mean loss of `images` images over all ranks plus the penalties; return that sum.

        Where a GPU's memory does not suffice, the batches are halved, repeatedly. Raise a BenchmarkError where it does not
        suffice for a single image.
        """
        while True:
            try:
                loss = self._gathered(batches, images, eps_factor)
                loss = self.ranks.add_gradients(self.model.parameters(), loss)
                for name, mask in self.nonzero.items():  # what stays zero counts in no norm of the gradient
                    if (gradient := self.model.get_parameter(name).grad) is not None:
                        gradient.mul_(mask)
                return loss
            except Exception as error:
                recording = self.captured is not None and self.captured.recording
                if not (self._on_gpu and out_of_memory(error)) or recording:
                    raise
                largest = max(len(x) for x, _ in batches)
                if self.pieces >= largest:
                    raise BenchmarkError(f"out of memory with one image of a batch of {largest}; use another GPU") from None
            self.pieces *= 2
            torch.cuda.empty_cache()
            print(
                f"out of memory: gradients of batches of {largest} are gathered from {-(-largest // self.pieces)} images "
                "at a time",
                flush=True,
            )

    def _gathered(self, batches: Sequence[Split], images: int, eps_factor: float) -> torch.Tensor:
        """Gather the gradients of all batches, each cut into `pieces`; return the loss of this rank."""
        sizes = [max(1, -(-len(x) // self.pieces)) for x, _ in batches]
        parts = (zip(x.split(size), y.split(size), strict=True) for (x, y), size in zip(batches, sizes, strict=True))
        self.optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=self.fabric.device)
        for number, (x, y) in enumerate(chain.from_iterable(parts)):
            if not len(x):
                continue
            loss = self.objective.loss(self.learning, x, y, eps_factor) * (len(x) / images)
            if number == 0 and self.ranks.rank == 0:
                loss = loss + self._penalty() if self.penalties else loss
            if not self._on_gpu and not torch.isfinite(loss):
                raise NotFinite(f"the training loss is {loss.item()}")
            self.fabric.backward(loss)
            total += loss.detach()
        return total

    @property
    def _on_gpu(self) -> bool:
        """Whether reading a number waits for the device, and a full memory raises an exception."""
        return self.fabric.device.type != "cpu"

    def _penalty(self) -> torch.Tensor:
        terms = {name: penalty() for name, penalty in self.penalties.items()}
        if not self._on_gpu:
            _check_terms(terms)
        return torch.stack([term.to(self.fabric.device) for term in terms.values()]).sum()

    def _check_total(self, total: torch.Tensor) -> None:
        if not torch.isfinite(total):
            _check_terms({name: penalty() for name, penalty in self.penalties.items()})
            raise NotFinite("the training loss is not finite")


def _check_terms(terms: Mapping[str, torch.Tensor]) -> None:
    for name, term in terms.items():
        if not torch.isfinite(term):
            raise NotFinite(f"the penalty {name} is {term.item()}")
