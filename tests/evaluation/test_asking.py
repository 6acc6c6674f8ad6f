"""The same images in other ways: a model that answers otherwise in batches of some size is found, whichever the size."""

from __future__ import annotations

import pytest
import torch
from masked_networks import blobs
from torch import nn

from benchmark.evaluation import asking
from benchmark.runtime.errors import BenchmarkError
from benchmark.verdicts.prediction import MIN_ROWS

SIZE = 40


class Odd(nn.Module):
    """Answers otherwise in batches of one size, or only where gradients are taken in them."""

    def __init__(self, size: int, only_with_gradients: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(36, 4)
        self.size, self.only_with_gradients = size, only_with_gradients

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.linear(x.flatten(1))
        odd = len(x) == self.size and (torch.is_grad_enabled() or not self.only_with_gradients)
        return found.flip(1) if odd else found


def answers(model: nn.Module, count: int = 100) -> dict[str, torch.Tensor]:
    return asking.answers(model.eval(), blobs()[0][:count], SIZE, 0)


@pytest.mark.parametrize("size", [MIN_ROWS + 2, 17, SIZE - 1])
@pytest.mark.parametrize("only_with_gradients", [False, True])
def test_a_size_that_no_verdict_has_is_asked_in(size, only_with_gradients) -> None:
    found = answers(Odd(size, only_with_gradients))
    with pytest.raises(BenchmarkError, match=r"^row: image \d+ is of class \d .* in a batch of another size"):
        asking.depends_on_asking(found, "row", is_open=False)
    told = asking.depends_on_asking(found, "row", is_open=True)
    assert not told.sound
    assert "in a batch of another size" in told.measured


@pytest.mark.parametrize("count", [100, 7])
def test_an_honest_model_answers_alike(count) -> None:
    """Of seven images each is asked for several times in a batch."""
    assert asking.depends_on_asking(answers(Odd(0), count), "row", is_open=False).sound


def test_a_model_without_gradients_is_asked_without() -> None:
    class Refusing(Odd):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                raise RuntimeError("no gradients")
            return super().forward(x)

    assert asking.depends_on_asking(answers(Refusing(0)), "row", is_open=False).sound
    assert not asking.depends_on_asking(answers(Refusing(17)), "row", is_open=True).sound
