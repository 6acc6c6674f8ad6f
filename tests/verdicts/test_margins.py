"""Margins: the true logit less the best other one."""

from __future__ import annotations

import torch

from benchmark.verdicts.prediction import margins


def test_margins_are_true_less_best_other() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 5.0]])
    assert margins(logits, torch.tensor([0, 1])).tolist() == [1.0, 0.0]
