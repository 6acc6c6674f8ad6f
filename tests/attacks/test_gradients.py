"""A model without gradients: attacks meet the same logits, and a gradient of 0."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Linear, Through, grey_images

from benchmark.attacks import autoattack, pgd
from benchmark.attacks.gradients import attackable, usable_gradients
from benchmark.specs.threat import ThreatModel

CONVERTING = Through(Linear(), lambda x: torch.from_numpy(x.numpy()))
IMAGES = grey_images()
IMAGES[0, 0, 0, 0] = 0
LABELS = Linear()(IMAGES).argmax(1)
MODELS = {  # with how many images have a gradient
    "detached": (Through(Linear(), torch.Tensor.detach), 0),
    "converting": (CONVERTING, 0),
    "NaN where the first pixel is 0": (Through(Linear(), after=lambda z, x: z + 0 * x[:, 0, 0, :1].sqrt()), 15),
}


@pytest.mark.parametrize("case", MODELS)
def test_the_logits_are_the_models_own_and_the_gradient_is_finite(case) -> None:
    model, usable = MODELS[case]
    model.eval().requires_grad_(False)
    stand_in, problem = attackable(model, IMAGES, LABELS)
    assert bool(problem) == (not usable)
    with torch.no_grad():
        assert torch.equal(stand_in(IMAGES), model(IMAGES))
    probe = IMAGES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(stand_in(probe).sum(), probe)
    assert torch.isfinite(gradient).all()
    assert bool((gradient != 0).any()) == bool(usable)
    have_gradients, same = usable_gradients(model, IMAGES, LABELS)
    assert (int(have_gradients.sum()), same) == (usable, problem)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), KeyError("patch")])
def test_other_errors_are_not_taken_for_a_missing_gradient(error) -> None:
    def throw(x: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            raise error

    for ask in (usable_gradients, attackable):
        with pytest.raises(type(error)):
            ask(Through(Linear(), throw).eval(), IMAGES, LABELS)


@pytest.mark.parametrize("component", ["apgd-ce", "fab-t", "square"])
def test_attacks_end_without_gradients(component) -> None:
    images, labels, threat = IMAGES[:3], LABELS[:3], ThreatModel(norm="Linf", eps=0.05)
    stand_in, _ = attackable(CONVERTING.eval().requires_grad_(False), images, labels)
    assert torch.isfinite(autoattack.attack(stand_in, images, labels, threat, seed=0, component=component)).all()
    assert torch.isfinite(pgd.attack(stand_in, images, labels, threat, seed=0, steps=3, step_size=0.02)).all()
