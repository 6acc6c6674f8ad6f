"""Runs an attack on one model in batches, re-tests what it returns, and keeps the state of each image.

Verdicts are the harness's own: an image is broken when the float32 model's true logit is not above every other on an
image that the harness itself put into the ball and the box. A tie counts as broken.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, Engine
from benchmark.verdicts.ball import into_ball
from benchmark.verdicts.internals import logged_warnings
from benchmark.verdicts.prediction import Predictions, predict

Report = Callable[[str], None]


@dataclass
class AttackState:
    """How far one attack has come on one model; survives a kill."""

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
        """That of one attack on several sets of images, which it went through one by one."""
        return cls(
            torch.cat([one.adversarial for one in states]),
            torch.cat([one.robust for one in states]),
            {name: sum(one.remaining[name] for one in states) for name in states[0].remaining},
            list(dict.fromkeys(warning for one in states for warning in one.warnings)),
            engine=states[0].engine,
        )


def run_attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    spec: AttackSpec,
    *,
    batch_size: int,
    checkpoint: Path | None = None,
    engine: Engine = "fast",
    report: Report = lambda _: None,
    module: Any = None,
    search: Mapping[str, int] | None = None,
    together: int | None = None,
) -> tuple[AttackState, Predictions]:
    """Runs one attack, component by component, each on the images still robust, in batches; resumes from `checkpoint`.

    Args:
        images: (n, c, h, w) float32 in [0, 1].
        engine: which of its engines an attack runs that has several.
        report: is told what is running, for progress.
        module: the attack, where it is another than benchmark/attacks/<attack>.py; anything with such a file's attributes.
        search: how an attack that goes image by image asks the model, `slots` and `flops`; a batch a call unless given.
        together: images that are attacked at a time, where it is not the verdict's `batch_size`.

    Returns:
        The final state, whose `adversarial` (n, c, h, w) are the clean images where nothing was found, and the model's
        verdict on them in fixed batches, which decides.

    Raises:
        BenchmarkError: unknown parameters, or the attack returned what it may not.
    """
    module = module or importlib.import_module(f"benchmark.attacks.{spec.attack}")
    state = attack_images(
        model, images, labels, spec, batch_size=batch_size, checkpoint=checkpoint, engine=engine, report=report,
        module=module, search=search, together=together,
    )  # fmt: skip
    state.warnings += flags(module, state)
    return state, predict(model, state.adversarial, labels, batch_size)


def attack_images(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    spec: AttackSpec,
    *,
    batch_size: int,
    checkpoint: Path | None = None,
    engine: Engine = "fast",
    report: Report = lambda _: None,
    module: Any = None,
    first: int = 0,
    search: Mapping[str, int] | None = None,
    together: int | None = None,
) -> AttackState:
    """What `run_attack` does, without the last verdict and the attack's own flags.

    Args:
        first: the number of the first image in the data set, where these are not its first ones.
    """
    module = module or importlib.import_module(f"benchmark.attacks.{spec.attack}")
    used = engine if hasattr(module, "engines") else None
    if checkpoint and checkpoint.exists():
        state = AttackState.load(checkpoint, images.device)
        if state.engine != used:
            raise BenchmarkError(f"{checkpoint} was begun by the {state.engine} engine; delete it to attack by {used}")
    else:
        state = AttackState(images.clone(), predict(model, images, labels, batch_size).correct, engine=used)
    for component in getattr(module, "components", (spec.attack,)):
        if component not in state.remaining:
            _run_component(
                module, model, images, labels, spec, component, state, batch_size, checkpoint, engine, report, first,
                search or {"slots": together or batch_size}, together or batch_size,
            )  # fmt: skip
    return state


def flags(module: Any, state: AttackState) -> list[str]:
    """What an attack says of how its components fared against each other, as far as it was not said yet."""
    found = module.flags(state.remaining, len(state.robust)) if hasattr(module, "flags") else []
    return [warning for warning in found if warning not in state.warnings]


def _run_component(
    module: Any,
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    spec: AttackSpec,
    component: str,
    state: AttackState,
    batch_size: int,
    checkpoint: Path | None,
    engine: Engine,
    report: Report,
    first: int,
    search: Mapping[str, int],
    together: int,
) -> None:
    options: dict[str, Any] = {"component": component} if hasattr(module, "components") else {}
    if hasattr(module, "engines"):
        options["engine"] = engine
    if hasattr(module, "per_image"):
        options |= search
    if state.component != component:
        state.component, state.batch, state.queue = component, 0, state.robust.nonzero()[:, 0].tolist()
    batches = torch.tensor(state.queue, dtype=torch.long, device=images.device).split(together)
    for number, index in enumerate(batches):
        if number < state.batch or not len(index):
            continue
        part = f", batch {number + 1} of {len(batches)}" if len(batches) > 1 else ""
        report(f"{spec.id}: attacking {len(index)} of {len(labels)} images with {component}{part}")
        if hasattr(module, "per_image"):
            options["indices"] = (index + first).tolist()
        with logged_warnings() as warnings:
            adversarial = _call(module, model, images[index], labels[index], spec, options)
        adversarial = into_ball(adversarial, images[index], spec.threat, spec.id)
        broken = ~_correct_in_full_batches(model, state.adversarial, adversarial, labels, index, batch_size)
        state.adversarial[index[broken]] = adversarial[broken]
        state.robust[index[broken]] = False
        state.warnings += [w for w in warnings if w not in state.warnings]
        state.batch = number + 1
        if checkpoint:
            state.save(checkpoint)
    state.remaining[component] = int(state.robust.sum())
    if checkpoint:
        state.save(checkpoint)


def _correct_in_full_batches(
    model: nn.Module,
    adversarial: torch.Tensor,
    found: torch.Tensor,
    labels: torch.Tensor,
    index: torch.Tensor,
    batch_size: int,
) -> torch.Tensor:
    """Whether the model classifies each of `found`, adversarial images of the images `index`, correctly: (len(index),) bool.

    They are evaluated in the batches of the final verdict, so that rounding cannot make an image broken here and robust
    there.
    """
    correct = torch.empty_like(index, dtype=torch.bool)
    for batch in (index // batch_size).unique().tolist():
        rows = slice(batch * batch_size, (batch + 1) * batch_size)
        here, tried = index // batch_size == batch, adversarial[rows].clone()
        tried[index[here] - rows.start] = found[here]
        correct[here] = predict(model, tried, labels[rows], batch_size).correct[index[here] - rows.start]
    return correct


def _call(
    module: Any,
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    spec: AttackSpec,
    options: dict[str, Any],
) -> torch.Tensor:
    try:
        return module.attack(model, images, labels, spec.threat, seed=spec.seed, **spec.parameters, **options)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise BenchmarkError(f"attack {spec.id}: {error}; see benchmark/attacks/{spec.attack}.py") from error
