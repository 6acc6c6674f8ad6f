"""Measure one model for indicators.py: numbers for each image, without a verdict.

A margin is the true logit less the largest other, of the float32 model on an image that the harness put into the ball and the
box. An image is broken unless its margin is above 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmark.attacks import fgsm, pgd
from benchmark.attacks.ball import into_ball
from benchmark.attacks.prediction import logits, margins, predict
from benchmark.evaluation.indicators import DRAWS, RADIUS_STEPS, STEPS, ProbeResults
from benchmark.specs.threat import ThreatModel

STEP = 0.1  # of the radius
RADII = 8

Probe = Callable[[torch.Tensor, torch.Tensor], ProbeResults]  # of one batch of images and labels


def first_threat(threats: tuple[ThreatModel, ...]) -> ThreatModel | None:
    """Return the smallest Linf ball of a track, else the smallest l2 one, that is larger than a point."""
    return next((threat for threat in threats if threat.eps > 0), None)


def radii(threat: ThreatModel, shape: tuple[int, ...]) -> tuple[ThreatModel, ...]:
    """Return `RADII` balls that grow by a constant factor from `threat` to the ball of all images of `shape` (c, h, w)."""
    largest = 1.0 if threat.norm == "Linf" else math.sqrt(math.prod(shape))
    factor = max(largest / threat.eps, 1.0) ** (1 / (RADII - 1))
    sizes = [threat.eps * factor**k for k in range(1, RADII - 1)] + [max(largest, threat.eps)]
    return threat, *(ThreatModel(norm=threat.norm, eps=float(f"{size:.6g}")) for size in sizes)


def measure(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    threat: ThreatModel,
    *,
    batch_size: int,
    seed: int = 0,
    done: ProbeResults | None = None,
    keep: Callable[[str, ProbeResults], None] = lambda _name, _done: None,
) -> ProbeResults:
    """Return the results of all `probes` on images (n, c, h, w), float64 on the CPU.

    Args:
        seed: of every random start and draw; torch's own generator is seeded with it before each batch.
        done: probes measured before, in any order; they are not measured again.
        keep: is called after each probe with its name and all results so far.
    """
    done = done or {}
    results: ProbeResults = {}
    for name, probe in probes(model, threat, tuple(images.shape[1:]), seed).items():
        if name in done:
            results |= {key: done[key] for key in (name, name.replace("steps", "loss"))}
            continue
        parts = []
        for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            torch.manual_seed(seed)
            parts.append({key: values.detach().double().cpu() for key, values in probe(x, y).items()})
        results |= {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        keep(name, results)
    return results


def probes(model: nn.Module, threat: ThreatModel, shape: tuple[int, ...], seed: int) -> dict[str, Probe]:
    """Return the probes by name, in order:

    - `clean` margin, and `again`, the same at another state of torch's generator;
    - `gradient`, the l2 norm of the margin's gradient, and `loss gradient`, of the cross-entropy's; NaN where there is none;
    - `fgsm`: margin after one signed step of the radius (Linf only);
    - `noise`: the least margin of `DRAWS` random points, corners of the Linf ball or points of the l2 sphere;
    - `clean start`: margin after `RADIUS_STEPS` steps of PGD from the image itself;
    - `steps <k>` and `loss <k>`: margin and cross-entropy after k steps of PGD, the same random start and the same step size,
      `STEP` of the radius, for each k;
    - `radius <eps>`: margin after `RADIUS_STEPS` steps of PGD in a ball of that size.
    """

    def again(x: torch.Tensor, y: torch.Tensor) -> ProbeResults:
        torch.manual_seed(seed + 1)
        return {"again": _margin(model, x, y)}

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, y, reduction="sum")

    def one_step(x: torch.Tensor, y: torch.Tensor) -> ProbeResults:
        adversarial = fgsm.attack(model, x, y, threat, seed=seed)
        return {"fgsm": _margin(model, into_ball(adversarial, x, threat, "fgsm"), y)}

    every: dict[str, Probe] = {
        "clean": lambda x, y: {"clean": _margin(model, x, y)},
        "again": again,
        "gradient": lambda x, y: {"gradient": _gradient_norm(lambda p: margins(model(p), y).sum(), x)},
        "loss gradient": lambda x, y: {"loss gradient": _gradient_norm(lambda p: loss(model(p), y), x)},
        "noise": lambda x, y: {"noise": noise(model, x, y, threat, seed)},
    }
    if threat.norm == "Linf":
        every["fgsm"] = one_step
    pgd_in = partial(after_pgd, model, seed)
    every["clean start"] = pgd_in(threat, "clean start", RADIUS_STEPS, random_start=False)
    every |= {f"steps {k}": pgd_in(threat, f"steps {k}", k, f"loss {k}") for k in STEPS}
    balls = {f"radius {ball.eps:g}": ball for ball in radii(threat, shape)}
    return every | {name: pgd_in(ball, name, RADIUS_STEPS) for name, ball in balls.items()}


def after_pgd(
    model: nn.Module, seed: int, ball: ThreatModel, name: str, steps: int, loss: str = "", random_start: bool = True
) -> Probe:
    """Return the probe of the margin `name` after `steps` of PGD, and of the cross-entropy `loss` if named."""

    def probe(x: torch.Tensor, y: torch.Tensor) -> ProbeResults:
        size = STEP * ball.eps
        adversarial = pgd.attack(model, x, y, ball, seed=seed, steps=steps, step_size=size, random_start=random_start)
        output = logits(model, into_ball(adversarial, x, ball, "pgd"), len(x))
        # in float64, so that rounding hides no rise that the attack sees
        losses = {loss: functional.cross_entropy(output.double(), y, reduction="none")} if loss else {}
        return {name: margins(output, y), **losses}

    return probe


def probed_within(results: ProbeResults, threat: ThreatModel) -> torch.Tensor:
    """Return which images (n,) some probe inside `threat` broke."""
    inside = {"fgsm", "noise", "clean start", f"radius {threat.eps:g}", *(f"steps {k}" for k in STEPS)} & results.keys()
    return torch.stack([results[name] <= 0 for name in inside]).any(0)


def noise(model: nn.Module, x: torch.Tensor, y: torch.Tensor, threat: ThreatModel, seed: int) -> torch.Tensor:
    """Return the least margin (n,) over `DRAWS` random points of the ball's surface, clamped to the box."""
    generator, least = torch.Generator().manual_seed(seed), torch.full((len(x),), torch.inf, device=x.device)
    for _ in range(DRAWS):
        drawn = torch.randn(x.shape, generator=generator).to(x.device)
        size = drawn.abs() if threat.norm == "Linf" else drawn.flatten(1).norm(dim=1)[:, None, None, None]
        noisy = (x + threat.eps * drawn / size.clamp(min=1e-12)).clamp(0, 1)
        least = torch.minimum(least, _margin(model, into_ball(noisy, x, threat, "noise"), y))
    return least


def _margin(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return predict(model, x, y, len(x)).margin


def _gradient_norm(loss: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return l2 norms (n,) of the gradient of `loss` at the images, NaN where there is none."""
    probe = x.clone().requires_grad_()
    with torch.enable_grad():
        value = loss(probe)
        gradient = torch.autograd.grad(value, probe, allow_unused=True)[0] if value.requires_grad else None
    return torch.full((len(x),), torch.nan) if gradient is None else gradient.double().flatten(1).norm(dim=1)
