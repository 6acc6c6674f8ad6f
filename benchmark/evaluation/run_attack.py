"""Run attacks on one model in batches, evaluate again what they return, and keep the state of each image.

The harness decides: an image is broken when the float32 model's true logit is not above every other, on an image that the
harness itself put into the ball and the box. A tie counts as broken.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from benchmark.attacks.ball import into_ball
from benchmark.attacks.gradients import attackable
from benchmark.attacks.internals import Notes
from benchmark.attacks.prediction import Predictions, predict
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, Engine

Report = Callable[[str], None]


@dataclass
class AttackState:
    """The progress of one attack on one model; survives a kill."""

    adversarial: torch.Tensor
    robust: torch.Tensor  # (n,) bool: correct on the clean image and not broken yet
    remaining: dict[str, int] = field(default_factory=dict)  # robust images after each finished component
    warnings: list[str] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)  # images that the running component started with
    component: str | None = None
    batch: int = 0  # batches of it done
    engine: Engine | None = None  # that ran, where the attack has several

    def save(self, path: Path) -> None:
        state = {k: getattr(self, k) for k in ("remaining", "warnings", "queue", "component", "batch", "engine")}
        tensors = {"adversarial": self.adversarial.cpu().contiguous(), "robust": self.robust.cpu()}
        files.write(path, save(tensors, {"state": json.dumps(state)}))

    @classmethod
    def load(cls, path: Path, device: torch.device) -> AttackState:
        with safe_open(path, "pt") as stored:
            state = json.loads(stored.metadata()["state"])
            return cls(stored.get_tensor("adversarial").to(device), stored.get_tensor("robust").to(device), **state)

    @classmethod
    def joined(cls, states: Sequence[AttackState]) -> AttackState:
        """Return the state of one attack on several sets of images together."""
        return cls(
            torch.cat([state.adversarial for state in states]),
            torch.cat([state.robust for state in states]),
            {name: sum(state.remaining[name] for state in states) for name in states[0].remaining},
            list(dict.fromkeys(warning for state in states for warning in state.warnings)),
            engine=states[0].engine,
        )


@dataclass(frozen=True)
class Attack:
    """One attack on one model, as the harness runs it."""

    model: nn.Module
    spec: AttackSpec
    batch_size: int  # of verdicts
    engine: Engine  # of an attack that has several
    report: Report  # is called with what is running, for progress
    module: Any  # the attack: a file of benchmark/attacks, or an object with its attributes
    search: Mapping[str, int] | None = None  # `slots` and `flops` of an attack that searches image by image
    together: int | None = None  # images attacked at a time, if not `batch_size`
    wide: int = 0  # images in AutoAttack's larger calls (attacks/autoattack.py); 0 for none

    def on(
        self, images: torch.Tensor, labels: torch.Tensor, checkpoint: Path | None = None, first: int = 0, place: str = ""
    ) -> AttackState:
        """Run the attack component by component, each on the images (n, c, h, w) still robust; resume from `checkpoint`.

        Args:
            first: the index of the first image in the data set.
            place: is added to lines of progress.

        Raises:
            BenchmarkError: unknown parameters, or images that an attack may not return.
        """
        used = self.engine if hasattr(self.module, "engines") else None
        if checkpoint and checkpoint.exists():
            state = AttackState.load(checkpoint, images.device)
            if state.engine != used:
                words = f"{checkpoint} was begun by the {state.engine} engine; delete it to attack by {used}"
                raise BenchmarkError(words)
        else:
            right = predict(self.model, images, labels, self.batch_size).correct
            state = AttackState(images.clone(), right, engine=used)

        def keep() -> None:
            if checkpoint:
                state.save(checkpoint)

        for component in getattr(self.module, "components", (self.spec.attack,)):
            if component in state.remaining:
                continue
            if state.component != component:
                state.component, state.batch, state.queue = component, 0, state.robust.nonzero()[:, 0].tolist()
            queue = torch.tensor(state.queue, dtype=torch.long, device=images.device)
            batches = queue.split(self.together or self.batch_size)
            for number, index in enumerate(batches):
                if number < state.batch or not len(index):
                    continue
                part = f", batch {number + 1} of {len(batches)}" if len(batches) > 1 else ""
                self.report(f"{self.spec.id}: attacking {len(index)} of {len(labels)} images with {component}{part}{place}")
                self._attack(state, images, labels, index, first)
                state.batch = number + 1
                keep()
            state.remaining[component] = int(state.robust.sum())
            keep()
        return state

    def verdict(self, states: Sequence[AttackState], labels: torch.Tensor) -> tuple[AttackState, Predictions]:
        """Return the joined state of several sets of images, with the attack's warnings about its components, and the model's
        predictions for `adversarial` in fixed batches, which decide.
        """
        state = AttackState.joined(states)
        flags = self.module.flags(state.remaining, len(state.robust)) if hasattr(self.module, "flags") else []
        state.warnings += [warning for warning in flags if warning not in state.warnings]
        return state, predict(self.model, state.adversarial, labels, self.batch_size)

    def _attack(
        self, state: AttackState, images: torch.Tensor, labels: torch.Tensor, index: torch.Tensor, first: int
    ) -> None:
        """Attack the images `index` (m,) by the running component, and keep those that are broken."""
        spec, options, notes = self.spec, dict[str, Any](), Notes()
        if hasattr(self.module, "components"):
            options["component"] = state.component
        if hasattr(self.module, "engines"):
            options |= {"engine": self.engine, "wide": self.wide}
        if hasattr(self.module, "per_image"):
            options |= self.search or {"slots": self.together or self.batch_size}
            options["indices"] = (index + first).tolist()
        if getattr(self.module, "warns", False):
            options["notes"] = notes
        try:
            adversarial = self.module.attack(
                self.model, images[index], labels[index], spec.threat, seed=spec.seed, **spec.parameters, **options
            )
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise BenchmarkError(f"attack {spec.id}: {error}; see benchmark/attacks/{spec.attack}.py") from error
        adversarial = into_ball(adversarial, images[index], spec.threat, spec.id)
        broken = ~self._is_correct(state.adversarial, adversarial, labels, index)
        state.adversarial[index[broken]] = adversarial[broken]
        state.robust[index[broken]] = False
        state.warnings += [warning for warning in notes.warnings if warning not in state.warnings]

    def _is_correct(
        self, adversarial: torch.Tensor, candidates: torch.Tensor, labels: torch.Tensor, index: torch.Tensor
    ) -> torch.Tensor:
        """Return whether the model classifies `candidates`, versions of the images `index`, correctly: (m,) bool.

        They are evaluated in the batches of the final verdict, so that rounding is the same in both.
        """
        correct = torch.empty_like(index, dtype=torch.bool)
        for batch in (index // self.batch_size).unique().tolist():
            rows = slice(batch * self.batch_size, (batch + 1) * self.batch_size)
            inside, images = index // self.batch_size == batch, adversarial[rows].clone()
            images[index[inside] - rows.start] = candidates[inside]
            predictions = predict(self.model, images, labels[rows], self.batch_size)
            correct[inside] = predictions.correct[index[inside] - rows.start]
        return correct


def run_attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    spec: AttackSpec,
    *,
    batch_size: int,
    checkpoint: Path | None = None,
    engine: Engine = "fast",
) -> tuple[AttackState, Predictions]:
    """Run an attack of benchmark/attacks; see `Attack` for the arguments, and `Attack.verdict` for the result."""
    module = importlib.import_module(f"benchmark.attacks.{spec.attack}")
    attack = Attack(model, spec, batch_size, engine, lambda _: None, module)
    return attack.verdict([attack.on(images, labels, checkpoint)], labels)


def run_suite(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    specs: Sequence[AttackSpec],
    *,
    batch_size: int,
    folder: Path,
    engine: Engine,
    report: Report,
    contributed: Callable[[str], Any] = lambda _: None,
    open_division: bool = False,
    together: int | None = None,
    wide: int = 0,
) -> Iterator[tuple[AttackSpec, AttackState, Predictions]]:
    """Run attacks one after another; yield each with its state and final predictions. Partial work is kept in `folder`.

    An attack runs all its components on one batch before the next, so that an image's result depends on that batch alone.
    torch's generator starts each batch at the attack's seed and the index of its first image.

    Args:
        contributed: returns the attack that somebody contributed under a name, or None for that of benchmark/attacks.
        open_division: attacks of benchmark/attacks may meet a model without gradients, and warn of it; a contributed one
            gets the model itself.
        together, wide: as in `Attack`.
    """
    for spec in specs:
        module, attacked, problem = contributed(spec.attack), model, ""
        if open_division and module is None:
            attacked, problem = attackable(model, images[:batch_size], labels[:batch_size])
        module = module or importlib.import_module(f"benchmark.attacks.{spec.attack}")
        attack = Attack(attacked, spec, batch_size, engine, report, module, together=together, wide=wide)
        states, size = [], together or batch_size
        for first in range(0, len(images), size):
            batch = slice(first, min(first + size, len(images)))
            place = f" ({first + 1} to {batch.stop} of {len(images)})" if len(images) > size else ""
            kept = folder / f"{spec.id}@{first}{f'-{batch.stop}' if together else ''}.safetensors"
            torch.manual_seed(spec.seed + first)  # for what an open model draws
            states.append(attack.on(images[batch], labels[batch], kept, first, place))
        state, after = attack.verdict(states, labels)
        if problem:
            state.warnings.append(f"the model gives no gradient ({problem}): steps that follow it went nowhere")
        yield spec, state, after
