"""A suite of attacks, one after another, on one model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmark.evaluation.run_attack import Attack, AttackState, Report
from benchmark.specs.threat import AttackSpec, Engine
from benchmark.verdicts.gradients import attackable
from benchmark.verdicts.prediction import Predictions


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
    brought: Callable[[str], Any] = lambda _: None,
    open_division: bool = False,
    together: int | None = None,
    wide: int = 0,
) -> Iterator[tuple[AttackSpec, AttackState, Predictions]]:
    """Each attack with what it left and the verdict on it; partial work is kept in `folder`.

    An attack goes through all its components on one batch of images before it turns to the next, so that what it finds for
    an image depends on that batch alone.

    `brought` gives the attack that somebody brought under a name, or None; without it none takes the place of
    benchmark/attacks. In the open division those of benchmark/attacks may meet a model without gradients, and say so in
    their warnings; a brought one gets the model itself. torch's generator starts each batch at the attack's seed and the
    number of its first image. `together` images are a batch for attacks where it is given, `batch_size` ones elsewhere and
    for verdicts; `wide` is `Attack`'s.
    """
    for spec in specs:
        module, attacked, problem = brought(spec.attack), model, ""
        if open_division and module is None:
            attacked, problem = attackable(model, images[:batch_size], labels[:batch_size])
        module = module or importlib.import_module(f"benchmark.attacks.{spec.attack}")
        states, size = [], together or batch_size
        for first in range(0, len(images), size):
            batch = slice(first, min(first + size, len(images)))
            place = f" ({first + 1} to {batch.stop} of {len(images)})" if len(images) > size else ""
            kept = f"{spec.id}@{first}{f'-{batch.stop}' if together else ''}.safetensors"
            torch.manual_seed(spec.seed + first)  # for what an open model draws
            attack = Attack(
                attacked,
                spec,
                batch_size,
                engine,
                lambda text, place=place: report(f"{text}{place}"),  # type: ignore[misc]
                module,
                together=together,
                wide=wide,
            )
            states.append(attack.on(images[batch], labels[batch], folder / kept, first))
        state, after = attack.verdict(states, labels)
        if problem:
            state.warnings.append(f"the model gives no gradient ({problem}): steps that follow it went nowhere")
        yield spec, state, after
