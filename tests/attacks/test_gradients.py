"""What attacks meet in place of a model without gradients: the same logits, and a gradient of 0."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Linear, Through, grey_images

from benchmark.attacks import autoattack, pgd
from benchmark.attacks.gradients import attackable, usable_gradients
from benchmark.specs.threat import ThreatModel

CONVERTING = Through(Linear(), lambda x: torch.from_numpy(x.numpy()))


@pytest.fixture
def judged() -> tuple[torch.Tensor, torch.Tensor]:
    images = grey_images()
    images[0, 0, 0, 0] = 0
    return images, Linear()(images).argmax(1)


@pytest.mark.parametrize(
    ("model", "usable"),
    [
        (Through(Linear(), torch.Tensor.detach), 0),
        (CONVERTING, 0),
        # NaN in the first pixel of the first image, which is 0
        (Through(Linear(), after=lambda z, x: z + 0 * x[:, 0, 0, :1].sqrt()), 15),
    ],
    ids=["detached", "converting", "infinite"],
)
def test_the_logits_are_the_models_own_and_the_gradient_is_finite(judged, model, usable) -> None:
    images, labels = judged
    model.eval().requires_grad_(False)
    stand_in, problem = attackable(model, images, labels)
    assert bool(problem) == (not usable)
    with torch.no_grad():
        assert torch.equal(stand_in(images), model(images))
    probe = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(stand_in(probe).sum(), probe)
    assert torch.isfinite(gradient).all()
    assert bool((gradient != 0).any()) == bool(usable)
    found, same = usable_gradients(model, images, labels)
    assert (int(found.sum()), same) == (usable, problem)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), KeyError("patch")])
def test_what_says_nothing_of_gradients_is_not_taken_for_their_absence(judged, error) -> None:
    def throw(x: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            raise error

    for ask in (usable_gradients, attackable):
        with pytest.raises(type(error)):
            ask(Through(Linear(), throw).eval(), *judged)


@pytest.mark.parametrize("component", ["apgd-ce", "fab-t", "square"])
def test_attacks_end_on_it(judged, component) -> None:
    images, labels = (part[:3] for part in judged)
    stand_in, _ = attackable(CONVERTING.eval().requires_grad_(False), images, labels)
    threat = ThreatModel(norm="Linf", eps=0.05)
    found = autoattack.attack(stand_in, images, labels, threat, seed=0, component=component)
    assert torch.isfinite(found).all()
    moved = pgd.attack(stand_in, images, labels, threat, seed=0, steps=3, step_size=0.02)
    assert torch.isfinite(moved).all()
