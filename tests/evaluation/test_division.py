"""Divisions: decided by what the model does, with the reason."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Linear, Through, grey_images

from benchmark.evaluation.division import inspect
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import submissions
from benchmark.specs.submission import Submission


class Searching(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            probe = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(super().forward(probe).sum(), probe)
        return super().forward(x) + 0 * gradient.sum()


class Counting(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def declared(division: str) -> Submission:
    return submissions.load("Wong2020Fast").model_copy(update={"division": division})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Through(Linear(), after=lambda z, x: z + 0.1 * torch.randn_like(z)), "random"),
        (Through(Linear(), lambda x: torch.round(x * 8) / 8), "no usable input gradient on 16 of 16"),
        (Through(Linear(), after=lambda z, x: z + 0 * (x - x).sqrt().sum()), "no usable input gradient on 16 of 16"),
        (Through(Linear(), torch.Tensor.detach), "no usable input gradient on 16 of 16"),
        (Searching(), "dynamic defense"),
        (Counting(), "changes its own weights or buffers"),
    ],
)
def test_closed_division_refuses_with_the_reason(model, reason) -> None:
    model.eval().requires_grad_(False)
    images, labels = grey_images(), torch.zeros(16, dtype=torch.long)
    with pytest.raises(BenchmarkError, match=f"refused in the closed division: .*{reason}.*declare `division: open`"):
        inspect(model, images, labels, declared("closed"))
    facts = inspect(model, images, labels, declared("open"))
    assert facts.division == "open"
    assert any(reason in r for r in facts.division_reasons)


@pytest.mark.parametrize("division", ["closed", "open"])
def test_probabilities_are_refused_in_both_divisions(division) -> None:
    model = Through(Linear(), after=lambda z, x: z.softmax(1)).eval().requires_grad_(False)
    with pytest.raises(BenchmarkError, match=r"the model returns probabilities; let it return logits$"):
        inspect(model, grey_images(), torch.zeros(16, dtype=torch.long), declared(division))


def test_a_plain_model_is_closed_and_counted() -> None:
    model = Linear().eval().requires_grad_(False)
    facts = inspect(model, grey_images(), torch.zeros(16, dtype=torch.long), declared("closed"))
    assert (facts.division, facts.parameters, facts.flops) == ("closed", 4 * 36 + 4, 2 * 4 * 36)
