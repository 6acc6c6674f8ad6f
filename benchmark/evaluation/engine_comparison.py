"""Both AutoAttack engines on the same images: verdicts, disagreements and seconds. What `rvb compare-engines` shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmark.attacks import autoattack
from benchmark.specs.threat import AttackSpec
from benchmark.verdicts.ball import into_ball
from benchmark.verdicts.prediction import predict

Report = Callable[[str], None]


@dataclass
class EngineRun:
    """One engine's way through AutoAttack's components.

    Per image, all (n,): `robust` bool, `margin` of the float32 model on the image that broke it (clean where none did),
    `broke` the number of the component that did, -1 for none. By component: how many images stand after it, its seconds.
    """

    robust: torch.Tensor
    margin: torch.Tensor
    broke: torch.Tensor
    remaining: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Disagreement:
    """An image that `engine` broke, with `component`, and the other engine did not; both margins."""

    image: int
    engine: str
    component: str
    margin: float
    clean_margin: float


@dataclass(frozen=True)
class Comparison:
    """Both engines under one attack's threat model; `runs` by engine. `clean` and the images counted."""

    spec: AttackSpec
    clean: torch.Tensor  # (n,) margins
    runs: dict[str, EngineRun]

    @property
    def disagreements(self) -> list[Disagreement]:
        one, other = (self.runs[engine].robust for engine in ("reference", "fast"))
        found = []
        for image in (one != other).nonzero()[:, 0].tolist():
            engine = "fast" if one[image] else "reference"
            run = self.runs[engine]
            component = autoattack.components[int(run.broke[image])]
            found.append(Disagreement(image, engine, component, float(run.margin[image]), float(self.clean[image])))
        return found


def compare(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    spec: AttackSpec,
    *,
    batch_size: int,
    report: Report = lambda _: None,
) -> Comparison:
    """Runs both engines as the harness does, each component on the images still robust, the engines in turn.

    Args:
        images: (n, c, h, w) float32 in [0, 1].
        spec: norm, radius in pixels and the seed of both engines.

    Returns:
        Verdicts that are this module's own: what an engine returns is put into the ball and judged again.
    """
    clean = predict(model, images, labels, batch_size)
    runs = {
        engine: EngineRun(clean.correct.clone(), clean.margin.clone(), torch.full_like(labels, -1))
        for engine in ("reference", "fast")
    }
    for number, component in enumerate(autoattack.components):
        for engine, run in runs.items():
            report(f"{spec.id}: {engine}: {component} on {int(run.robust.sum())} of {len(labels)} images")
            started = _clock(images.device)
            for index in run.robust.nonzero()[:, 0].split(batch_size):
                _attack(model, images, labels, spec, engine, number, index, batch_size, run)
            run.seconds[component] = _clock(images.device) - started
            run.remaining[component] = int(run.robust.sum())
    return Comparison(spec, clean.margin, runs)


def _attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    spec: AttackSpec,
    engine: str,
    number: int,
    index: torch.Tensor,
    batch_size: int,
    run: EngineRun,
) -> None:
    """One component on one batch, the images `index`; updates `run`."""
    if not len(index):
        return
    x, y = images[index], labels[index]
    found = autoattack.attack(
        model,
        x,
        y,
        spec.threat,
        seed=spec.seed,
        component=autoattack.components[number],
        engine=engine,
        indices=index.tolist(),
        slots=batch_size,
    )
    judged = predict(model, into_ball(found, x, spec.threat, f"{spec.id} ({engine})"), y, len(index))
    broken = index[~judged.correct]
    run.robust[broken], run.broke[broken] = False, number
    run.margin[broken] = judged.margin[~judged.correct]


def _clock(device: torch.device) -> float:
    """Seconds: the process's CPU time, which other work on the machine does not lengthen; the wall's on a GPU."""
    if device.type == "cpu":
        return time.process_time()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
