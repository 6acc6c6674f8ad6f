"""A model that gives other answers in batches of some size is found, whichever the size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from masked_networks import blobs
from tiny_models import Through
from torch import nn

from benchmark.attacks.prediction import MIN_ROWS
from benchmark.evaluation import asking
from benchmark.runtime.errors import BenchmarkError

SIZE = 40


def odd(size: int, only_with_gradients: bool = False, before: Callable = lambda x: None) -> nn.Module:
    """Answers otherwise in batches of one size, or only where gradients are taken in them."""
    torch.manual_seed(0)

    def turned(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return z.flip(1) if len(x) == size and (torch.is_grad_enabled() or not only_with_gradients) else z

    return Through(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), before, turned)


def answers(model: nn.Module, count: int = 100) -> dict[str, torch.Tensor]:
    return asking.answers(model.eval(), blobs()[0][:count], SIZE, 0)


@pytest.mark.parametrize("size", [MIN_ROWS + 2, 17, SIZE - 1])
@pytest.mark.parametrize("only_with_gradients", [False, True])
def test_a_size_that_no_verdict_has_is_asked_in(size, only_with_gradients) -> None:
    found = answers(odd(size, only_with_gradients))
    with pytest.raises(BenchmarkError, match=r"^row: image \d+ is of class \d .* in a batch of another size"):
        asking.depends_on_asking(found, "row", is_open=False)
    told = asking.depends_on_asking(found, "row", is_open=True)
    assert not told.sound
    assert "in a batch of another size" in told.measured


@pytest.mark.parametrize("count", [100, 7])
def test_an_honest_model_answers_alike(count) -> None:
    """Of seven images each is asked for several times in a batch."""
    assert asking.depends_on_asking(answers(odd(0), count), "row", is_open=False).sound


def test_a_model_without_gradients_is_asked_without() -> None:
    def refuse(x: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError("no gradients")

    for size, sound in ((0, True), (17, False)):
        told = asking.depends_on_asking(answers(odd(size, before=refuse)), "row", is_open=not sound)
        assert told.sound == sound
