"""Decide the division of a model, with reasons: determinism, gradients, forward pass."""

from __future__ import annotations

import torch
from pyautoattack import checks
from torch import nn

from benchmark.attacks.gradients import usable_gradients
from benchmark.attacks.internals import Internals, Notes, internals
from benchmark.records.accuracy import ModelFacts
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.submission import Submission

RANDOM = "the model is random"
ONCE_WRONG = "an image that any pass over it, or over what an attack made of it within the ball, gets wrong counts as lost"
PROBABILITIES = "the model returns probabilities; let it return logits"


def inspect(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, submission: Submission) -> ModelFacts:
    """Measure the model and decide its division. Raise a BenchmarkError where it is declared closed and is not.

    Closed: deterministic, no state that a pass changes, usable input gradients, and none taken inside the pass.
    """
    inside = internals(model, images)
    against = _objections(model, images, labels, inside)
    if PROBABILITIES in against:
        raise BenchmarkError(f"{submission.name}: {PROBABILITIES}")
    if against and submission.division == "closed":
        raise BenchmarkError(
            f"{submission.name}: refused in the closed division: {'; '.join(against)}. Mend the model, or declare "
            "`division: open` in submission.yaml"
        )
    if any(reason.startswith(RANDOM) for reason in against):
        against.append(ONCE_WRONG)
    reasons = against or ["deterministic", "input gradients are usable", "no optimisation inside the forward pass"]
    reasons += [inside.uncounted] if inside.uncounted else []
    return ModelFacts(
        parameters=inside.parameters, flops=inside.flops, division=submission.division, division_reasons=tuple(reasons)
    )


def _objections(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, inside: Internals) -> list[str]:
    """Return what keeps the model out of the closed division."""
    reasons = []
    with torch.no_grad():
        torch.manual_seed(1)
        first = model(images)
        torch.manual_seed(2)
        second = model(images)
    gap = float((first - second).abs().max())
    turned = int((first.argmax(1) != second.argmax(1)).sum())
    if gap > 1e-4 * (1 + float(first.abs().max())) or turned > 1:
        reasons.append(f"{RANDOM}: two passes over the same images differ by {gap:.3g} in a logit")
    if inside.changes_itself:
        reasons.append("the model changes its own weights or buffers in evaluation mode")
    usable, problem = usable_gradients(model, images, labels)
    zero = int((~usable).sum())
    if zero > 0.1 * len(images):
        why = f" ({problem})" if problem else ""
        reasons.append(f"the model has no usable input gradient on {zero} of {len(images)} images{why}")
    flags = autoattack_flags(model, images, labels, inside)
    new = [flag for flag in flags if not reasons or "randomized" not in flag]
    return reasons + [flag if flag == PROBABILITIES else f"AutoAttack: {flag}" for flag in new]


def autoattack_flags(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, inside: Internals | None = None
) -> list[str]:
    """Return the warnings of AutoAttack's checks: a random model, `PROBABILITIES`, gradients taken inside the pass."""
    inside = inside or internals(model, images)
    notes = Notes([])
    with torch.no_grad():
        checks.check_randomized(model, images, labels, logger=notes)
        output = model(images)
    if bool((output >= 0).all() & ((output.sum(1) - 1).abs() < 1e-4).all()):
        notes.warning(PROBABILITIES)
    for flag in inside.dynamic:
        notes.warning(flag)
    return notes.warnings
