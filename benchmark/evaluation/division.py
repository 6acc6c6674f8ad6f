"""Which division a model belongs to, with reasons: its determinism, its gradients, its forward pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from pyautoattack import checks
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmark.results.attack import ModelFacts
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.submission import Submission
from benchmark.verdicts.gradients import usable_gradients

RANDOM = "the model is random"
ONCE_WRONG = (
    "an image that any pass over it, or over what an attack made of it within the ball, gets wrong counts as lost"
)


class _Collect(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = " ".join(record.getMessage().split())
        if message not in self.messages:
            self.messages.append(message)


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """The warnings that libraries log inside the block, each once: AutoAttack flags unreliable evaluations this way."""
    handler, root = _Collect(), logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler.messages
    finally:
        root.removeHandler(handler)


def inspect(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, submission: Submission) -> ModelFacts:
    """Measures the model and decides its division.

    Closed: deterministic, no state that a forward pass changes, usable input gradients, no gradients taken inside the
    forward pass (AutoAttack's own checks and ours).

    Raises:
        BenchmarkError: the submission declares `division: closed` and the model is not, with the reason.
    """
    against = _objections(model, images, labels)
    if against and submission.division == "closed":
        raise BenchmarkError(
            f"{submission.name}: refused in the closed division: {'; '.join(against)}. "
            "Mend the model, or declare `division: open` in submission.yaml"
        )
    if any(reason.startswith(RANDOM) for reason in against):
        against.append(ONCE_WRONG)
    reasons = against or ["deterministic", "input gradients are usable", "no optimisation inside the forward pass"]
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(images[:1])
    return ModelFacts(
        parameters=sum(p.numel() for p in model.parameters()),
        flops=counter.get_total_flops(),
        division=submission.division,
        division_reasons=tuple(reasons),
    )


def _objections(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[str]:
    found = []
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        torch.manual_seed(1)
        first = model(images)
        torch.manual_seed(2)
        second = model(images)
    gap = float((first - second).abs().max())
    if gap > 1e-4 * (1 + float(first.abs().max())):
        found.append(f"{RANDOM}: two passes over the same images differ by {gap:.3g} in a logit")
    if any(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items()):
        found.append("the model changes its own weights or buffers in evaluation mode")
    usable, problem = usable_gradients(model, images, labels)
    zero = int((~usable).sum())
    if zero > 0.1 * len(images):
        why = f" ({problem})" if problem else ""
        found.append(f"the model has no usable input gradient on {zero} of {len(images)} images{why}")
    return found + [
        f"AutoAttack: {flag}"
        for flag in autoattack_flags(model, images, labels)
        if not found or "randomized" not in flag
    ]


def autoattack_flags(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[str]:
    """What AutoAttack's own checks say against judging this model by it: random, no logits, gradients taken inside."""
    for name in checks.funcs:
        checks.funcs[name] = 0  # pyautoattack counts over the whole process
    with logged_warnings() as flags, torch.no_grad():
        logger = logging.getLogger("auto-attack")
        checks.check_randomized(model, images, labels, logger=logger)
        checks.check_range_output(model, images, logger=logger)
        checks.check_dynamic(model, images, False, logger=logger)
    return flags
