"""PGD visits the points that foolbox's visits, from the same generator."""

from __future__ import annotations

import foolbox
import pytest
import torch
from torch import nn

from benchmark.attacks import pgd
from benchmark.specs.threat import ThreatModel
from benchmark.training.objective import frozen


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(8 * 36, 7)).eval()


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("random_start", [True, False])
@pytest.mark.parametrize(("steps", "share"), [(1, 1.25), (10, 0.25)])
@pytest.mark.parametrize("eps", [8 / 255, 0.5])
def test_it_takes_foolboxs_steps_to_the_bit(norm, random_start, steps, share, eps) -> None:
    model, generator = network(), torch.Generator().manual_seed(1)
    images, labels = torch.rand(13, 3, 8, 8, generator=generator), torch.randint(7, (13,), generator=generator)
    images[0], images[1] = 0.0, 1.0  # corners of the box
    kind = foolbox.attacks.LinfPGD if norm == "Linf" else foolbox.attacks.L2PGD
    theirs = kind(abs_stepsize=share * eps, steps=steps, random_start=random_start)
    target = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    torch.manual_seed(5)
    with frozen(model):
        wanted = theirs.run(target, images, foolbox.criteria.Misclassification(labels), epsilon=eps)
        found = pgd.attack(
            model, images, labels, ThreatModel(norm=norm, eps=eps), seed=5, steps=steps, step_size=share * eps,
            random_start=random_start,
        )  # fmt: skip
    assert torch.equal(found, wanted)
    assert not found.requires_grad
    assert not torch.equal(found, images)
