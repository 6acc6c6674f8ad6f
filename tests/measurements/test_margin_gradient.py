"""The margin gradient taken apart is network_bound.py's, and what stays a bound in it is above what ascent finds."""

from __future__ import annotations

import pytest
import torch
from searched import few
from tiny_certified import network

from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.evaluation.audit import lower_margins
from measurements.margin_gradient import OneRival

pytestmark = pytest.mark.slow

# at the box's corners, where each pixel moves one way alone: a wrong sign of the first-order term falls below what is found
IMAGES = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)).round()


def one_rival(seed: int, image: int, radius: float) -> tuple[torch.nn.Sequential, torch.Tensor, torch.Tensor, OneRival]:
    model = checked_copy(network(seed))
    x = IMAGES[image : image + 1]
    y = model(x.double()).argmax(1)
    return model, x, y, OneRival(bound_network(model, x, y), radius)


@pytest.mark.parametrize(("seed", "radius"), few([(0, 0.01), (0, 0.5)], [(1, 0.01), (1, 0.1)]))
def test_its_parts_are_the_certificates_bound(seed, radius) -> None:
    for image in range(len(IMAGES)):
        *_, taken = one_rival(seed, image, radius)
        drop = float(taken.bounded.margin_drop(taken.radius, taken.rival))
        assert min(taken.composed, *taken.drops()) == pytest.approx(drop, rel=1e-9)


# at the first little but the first-order term is left
@pytest.mark.parametrize(("seed", "radius"), few([(0, 0.003), (0, 0.3)], [(0, 0.05), (1, 0.003), (1, 0.05), (1, 0.3)]))
def test_box_and_slopes_stay_bounds_and_the_box_gains(seed, radius) -> None:
    gained = []
    for image in range(len(IMAGES)):
        model, x, y, taken = one_rival(seed, image, radius)
        lowest, _ = lower_margins(model, x.double(), y, taken.rival[0], taken.radius, steps=40, seed=seed)
        slopes = {"chosen": taken.optimise(15)}
        for way in ({"box": True}, slopes, slopes | {"box": True}):
            assert float(lowest) <= min(taken.drops(**way))
        assert taken.drops(box=True)[-1] <= taken.drops()[-1]
        assert taken.drops(attention=False)[-1] < taken.drops()[-1]
        gained.append(taken.drops(box=True)[-1] < taken.drops()[-1] * (1 - 1e-6))
    assert any(gained)
