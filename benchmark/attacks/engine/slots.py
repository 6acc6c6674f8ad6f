"""Attack runs in parallel, in full batches for the model whatever each run's progress; and the calls of the model.

A run is one attack on one image, towards one target where the attack has targets. A slot whose run has ended, or whose
image an earlier run has broken, takes the next waiting run. Runs are independent, and of several that break an image the
first in order counts. So the result is that of the sequential attack; `prediction.padded` keeps its rounding the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import nn

from benchmark.attacks.engine.fused_ops import FusedOps
from benchmark.attacks.prediction import checked, margins, padded
from benchmark.runtime.errors import BenchmarkError

State = dict[str, torch.Tensor]  # one row a slot
UNBROKEN = 2**62
FULLER, FULL, PIXELS = 4, 2e8, 2**20
NO_GRADIENT = "the model's logits have no gradient by its input; AutoAttack cannot evaluate it"


def generator(seed: int, image: int, *purpose: int) -> torch.Generator:
    """Return the random stream of evaluation image `image` for one purpose (such as an attack and its target), on the CPU.

    It does not depend on the image's batch, its place there, or the machine. numpy's SeedSequence makes streams of
    different (seed, image, purpose) independent. They differ while the numbers are below 2**32 and purposes have one length.
    """
    state = np.random.SeedSequence((seed, image, *purpose)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> 1))


def _finite(logits: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(logits).all():
        raise BenchmarkError("the model's logits are not finite (NaN or infinity) near an evaluation image")
    return logits


@dataclass
class Search:
    """One attack on a batch of images that the model classifies correctly.

    Attributes:
        images: (n, c, h, w) float32 in [0, 1]; labels: (n,) int64.
        indices: the images' numbers in the data set, which select their random streams.
        slots: the most images in one call of the model.
        flops: of the model on one image; 0 if unknown.
        adversarial: (n, c, h, w) adversarial images; the clean image where there is none.
        by: (n,) int64, the target or number of the run that broke the image; `UNBROKEN` where none did.
        flat: how many runs began at a point with zero gradient.
    """

    model: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    indices: list[int]
    norm: str
    eps: float
    seed: int
    slots: int
    flops: int = 0
    adversarial: torch.Tensor = field(init=False)
    by: torch.Tensor = field(init=False)
    flat: int = 0
    _fused_ops: FusedOps = field(default_factory=FusedOps)

    def __post_init__(self) -> None:
        self.adversarial = self.images.clone()
        self.by = torch.full((len(self.images),), UNBROKEN, device=self.images.device)

    @property
    def broken(self) -> torch.Tensor:
        """(n,) bool."""
        return self.by < UNBROKEN

    def logits(self, points: torch.Tensor) -> torch.Tensor:
        """Return logits (m, classes) of points (m, c, h, w) by `FusedOps`, without gradients; their rounding may differ."""
        with self._fused_ops:
            return self.own_logits(points)

    def own_logits(self, points: torch.Tensor) -> torch.Tensor:
        """Return logits (m, classes) of points (m, c, h, w) by the unmodified model, without gradients."""
        with torch.no_grad():
            batches = ((padded(p), len(p)) for p in points.split(self.slots))
            return _finite(torch.cat([checked(self.model(p), len(p))[:rows].float() for p, rows in batches]))

    def gradient(
        self, points: torch.Tensor, objective: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits (m, classes), objective (m,) and its gradient at points (m, c, h, w), m at most `slots`.

        Raises:
            BenchmarkError: gradient or logits are missing or not finite; a search that cannot go on shows no robustness.
        """
        rows = len(points)
        leaf = padded(points.detach()).requires_grad_()
        with torch.enable_grad():
            with self._fused_ops:
                logits = _finite(checked(self.model(leaf.clone()), len(leaf))[:rows].float())
            value = objective(logits)
            if not value.requires_grad:
                raise BenchmarkError(f"{NO_GRADIENT} (does it detach, round or argmax?)")
            slope = torch.autograd.grad(value.sum(), leaf, allow_unused=True)[0]
        if slope is None:
            raise BenchmarkError(f"{NO_GRADIENT}: they do not depend on it")
        if not torch.isfinite(slope).all():
            raise BenchmarkError("the model's input gradient is not finite (NaN or infinity); AutoAttack cannot evaluate it")
        return logits.detach(), value.detach(), slope[:rows]

    def record(self, state: State, wrong: torch.Tensor) -> torch.Tensor:
        """Keep the misclassified points as adversarial images where no earlier run has broken the image.

        Args:
            state: of m runs, with their `point` (m, c, h, w).
            wrong: (m,) bool, which points are misclassified.

        Returns:
            (m,) bool: which of them the unmodified model misclassifies too.
        """
        if self._fused_ops.used and wrong.any():
            wrong = wrong.clone()
            wrong[wrong.clone()] = margins(self.own_logits(state["point"][wrong]), state["label"][wrong]) <= 0
        for row in wrong.nonzero()[:, 0].tolist():
            image, target = state["image"][row], state["target"][row]
            if target < self.by[image]:
                self.adversarial[image], self.by[image] = state["point"][row], target
        return wrong

    def run(
        self,
        runs: list[tuple[int, int]],
        start: Callable[[torch.Tensor, torch.Tensor], State],
        advance: Callable[[State], torch.Tensor],
    ) -> None:
        """Carry out `runs`, pairs (place of an image in the batch, target), in order of their targets.

        Args:
            start: maps images (m,) and targets (m,) to the states of new runs, with one row a run, `point` among them.
            advance: advances the run of every slot by a step, in place; returns which runs have ended, (m,) bool.
        """
        device, waiting, state = self.images.device, iter(runs), State()
        while True:
            room, broken = self.slots - (len(state["image"]) if state else 0), self.broken.tolist()
            fresh = list(islice((run for run in waiting if not broken[run[0]]), room))
            if fresh:
                image, target = torch.tensor(fresh, device=device).T
                begun = {"image": image, "target": target, **start(image, target)}
                state = {k: torch.cat([state[k], v]) for k, v in begun.items()} if state else begun
            if not state or not len(state["image"]):
                return
            ended = advance(state) | (self.by[state["image"]] < state["target"])
            if ended.any():
                state = {k: v[~ended] for k, v in state.items()}


def fuller(slots: int, images: torch.Tensor, flops: int) -> int:
    """Return how many images (n, c, h, w) a call should take if a batch has `slots` and an image costs the model `flops`.

    On a CPU the call itself dominates for small models. Such calls take up to FULLER times as many images, at most FULL
    operations and PIXELS numbers together. Submitted models that answer otherwise then are refused
    (evaluation/asked_again.py).
    """
    if flops <= 0 or images.device.type != "cpu" or not len(images):
        return slots
    most = min(FULL // flops, PIXELS // images[0].numel())
    return max(slots, min(FULLER * slots, int(most)))


def column(values: torch.Tensor) -> torch.Tensor:
    """Reshape (m,) to (m, 1, 1, 1)."""
    return values[:, None, None, None]


def sizes(points: torch.Tensor, norm: str) -> torch.Tensor:
    """Return the Linf or l2 norm of each of (m, c, h, w): (m,)."""
    flat = points.flatten(1)
    return flat.abs().amax(1) if norm == "Linf" else (flat**2).sum(1).sqrt()
