"""Margins, and logits that are no numbers or of another width in every batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmark.attacks.prediction import logits, margins
from benchmark.runtime.errors import BenchmarkError


def test_logits_that_are_not_finite_name_the_image() -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = x.flatten(1)[:, :4].clone()
            out[x[:, 0, 0, 0] > 0.8] = float("nan")
            return out

    images = torch.zeros(5, 1, 2, 2)
    images[3] = 0.9
    with pytest.raises(BenchmarkError, match="evaluation image 3"):
        logits(Bad(), images, 2)


def test_margins_are_true_less_best_other() -> None:
    found = margins(torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 5.0]]), torch.tensor([0, 1]))
    assert found.tolist() == [1.0, 0.0]
