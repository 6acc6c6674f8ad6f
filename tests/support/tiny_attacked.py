"""A small smooth network that keeps what it is asked, its images, both sides of a comparison of AutoAttack engines, runs of
one of them in other company, and equality of rows of a batch, as far as this processor's products allow it.
"""

from __future__ import annotations

from functools import cache

import pyautoattack
import torch
from torch import nn

from benchmark.attacks import autoattack
from benchmark.attacks.engine.slots import Search
from benchmark.specs.threat import ThreatModel

RADII = {"Linf": 0.04, "L2": 0.2}


class Watched(nn.Module):
    """A small smooth network that keeps the points it is asked about, with whether a gradient was wanted."""

    def __init__(self, shape: tuple[int, int, int] = (1, 6, 6), classes: int = 6) -> None:
        super().__init__()
        torch.manual_seed(3)
        size = shape[0] * shape[1] * shape[2]
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(size, 24), nn.Tanh(), nn.Linear(24, classes))
        self.requires_grad_(False).eval()
        self.asked: list[tuple[bool, torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.asked.append((x.requires_grad, x.detach().clone()))
        return 4 * self.net(x)

    def points(self, place: int, gradient: bool) -> list[torch.Tensor]:
        return [batch[place] for wanted, batch in self.asked if wanted == gradient]


def labelled(model: nn.Module, shape=(1, 6, 6), n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(n, *shape, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        labels = model(images).argmax(1)
    if isinstance(model, Watched):
        model.asked.clear()
    return images, labels


def search_of(model, images, labels, norm: str, eps: float, slots: int = 128, indices=None) -> Search:
    return Search(model, images, labels, indices or list(range(len(images))), norm, eps, 0, slots)


def authors(model: nn.Module, norm: str, eps: float) -> pyautoattack.AutoAttack:
    return pyautoattack.AutoAttack(model, norm=norm, eps=eps, seed=0, version="standard", device="cpu")


def assert_slots_and_company_change_no_bit(model: nn.Module, images: torch.Tensor, threat: ThreatModel) -> None:
    """Few slots or many, the fourth image alone or among all: the gradient attacks find the same, and something."""
    labels = model(images).argmax(1)
    for component in autoattack.components[:3]:
        ways = [
            autoattack.attack(model, images, labels, threat, seed=0, component=component, slots=slots) for slots in (128, 16)
        ]
        alone = autoattack.attack(model, images[3:4], labels[3:4], threat, seed=0, component=component, indices=[3])
        assert torch.equal(*ways), component
        assert torch.equal(ways[0][3:4], alone), component
        assert (ways[0] != images).any(), component


@cache
def products_keep_rows() -> bool:
    """Whether a float32 product rounds a row alike wherever it stands. MKL's kernels for processors without AVX2 (and so
    MKL_CBWR=COMPATIBLE) sum the last rows in another order: nothing above them can be exact there.
    """
    # sums of whole multiples of quicker.ALIGNED, the only ones that the engine makes products of itself
    stream = torch.Generator().manual_seed(0)
    for inner, outer in ((12, 8), (36, 8), (64, 96), (96, 10)):
        rows, weight = torch.randn(240, inner, generator=stream), torch.randn(outer, inner, generator=stream)
        whole = rows @ weight.mT
        for count in (8, 9, 17, 33, 240):
            some = torch.randperm(240, generator=stream)[:count]
            if not torch.equal(rows[some] @ weight.mT, whole[some]):
                return False
    return True


def assert_same_rows(found: torch.Tensor, expected: torch.Tensor) -> None:
    """To the bit, or where products themselves differ by place, to what float32 sums of a hundred terms may differ by."""
    slack = 0.0 if products_keep_rows() else 1e-5
    torch.testing.assert_close(found, expected, rtol=slack, atol=slack)
