"""A suite of attacks, one after another, on one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmark.evaluation.run_attack import AttackState, Report, run_attack
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
) -> Iterator[tuple[AttackSpec, AttackState, Predictions]]:
    """Each attack with what it left and the verdict on it; partial work is kept in `folder`.

    `brought` gives the attack that somebody brought under a name, or None; without it none takes the place of
    benchmark/attacks. In the open division those of benchmark/attacks may meet a model without gradients, and say so in
    their warnings; a brought one gets the model itself. torch's generator starts each attack at its seed.
    """
    for spec in specs:
        module = brought(spec.attack)
        attacked, problem = model, ""
        if open_division and module is None:
            attacked, problem = attackable(model, images[:batch_size], labels[:batch_size])
        torch.manual_seed(spec.seed)  # for what an open model draws
        state, after = run_attack(
            attacked,
            images,
            labels,
            spec,
            batch_size=batch_size,
            checkpoint=folder / f"{spec.id}.safetensors",
            engine=engine,
            report=report,
            module=module,
        )
        if problem:
            state.warnings.append(f"the model gives no gradient ({problem}): steps that follow it went nowhere")
        yield spec, state, after
