"""Attacks against a linear model, whose exact radius is known."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.attacks import apgd, autoattack, cw, fgsm, pgd
from benchmark.attacks.ball import distances, into_ball
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel


@pytest.fixture
def linear() -> tuple[Linear, torch.Tensor, torch.Tensor]:
    model, images = Linear().eval().requires_grad_(False), grey_images()
    return model, images, model(images).argmax(1)


def broken(model: nn.Module, found: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return model(found).argmax(1) != labels


@pytest.mark.parametrize("norm", ["L2", "Linf"])
@pytest.mark.parametrize(("name", "classes"), [("pgd", 2), ("autoattack", 4)])
def test_attack_succeeds_just_outside_the_exact_radius_and_fails_just_inside(norm, name, classes) -> None:
    """On a linear model the radius is margin / dual norm of w_i - w_j, so both sides are exact.

    Two classes for PGD: with more, the cross-entropy's gradient mixes rivals and its direction is not the nearest one's.
    """
    model, images = Linear(classes=classes).eval().requires_grad_(False), grey_images()
    labels = model(images).argmax(1)
    radius = model.radius(images, labels, norm)
    image = int(radius.argsort()[8])
    assert 0 < radius[image] < 0.2  # well inside the box
    x, y = images[image : image + 1], labels[image : image + 1]
    for share, expected in ((0.99, False), (1.01, True)):
        threat = ThreatModel(norm=norm, eps=float(radius[image]) * share)
        if name == "pgd":
            found = [pgd.attack(model, x, y, threat, seed=0, steps=80, step_size=threat.eps / 4)]
        else:
            components = ("apgd-ce", "apgd-t")  # Square takes seconds
            found = [autoattack.attack(model, x, y, threat, seed=0, component=c) for c in components]
        assert any(bool(broken(model, into_ball(f, x, threat, name), y)) for f in found) is expected


@pytest.mark.parametrize("norm", ["L2", "Linf"])
def test_pgd_on_the_margin_is_exact_for_many_classes(norm) -> None:
    """Its gradient is that of one rival, where the cross-entropy mixes all: the exact radius is reached with four classes."""
    model, images = Linear(classes=4).eval().requires_grad_(False), grey_images()
    labels = model(images).argmax(1)
    radius = model.radius(images, labels, norm)
    shares = {}
    for share in (0.99, 1.01):
        hits = []
        for image in range(0, len(images), 2):
            threat = ThreatModel(norm=norm, eps=float(radius[image]) * share)
            x, y = images[image : image + 1], labels[image : image + 1]
            options = {"steps": 60, "step_size": threat.eps / 4, "climb": "margin"}
            found = pgd.attack(model, x, y, threat, seed=0, **options)
            hits.append(bool(broken(model, into_ball(found, x, threat, "pgd"), y)))
        shares[share] = sum(hits) / len(hits)
    assert shares[0.99] == 0
    assert shares[1.01] >= 0.5  # the box may stand in the way, or the largest rival not be the nearest


@pytest.mark.parametrize("options", [{"climb": "cw"}, {"climb": "margin", "loss": torch.sum}])
def test_pgd_refuses_what_it_cannot_climb(linear, options) -> None:
    model, images, labels = linear
    with pytest.raises(BenchmarkError, match=r"climb '(cw|margin)' should be one of cross_entropy, margin"):
        pgd.attack(model, images, labels, ThreatModel(norm="Linf", eps=0.1), seed=0, steps=1, step_size=0.1, **options)


def test_apgd_restarts_find_more_and_the_first_is_that_of_one(linear) -> None:
    model, images, labels = linear
    threat = ThreatModel(norm="L2", eps=float(model.radius(images, labels, "L2").median()))
    once = apgd.attack(model, images, labels, threat, seed=0)
    five = apgd.attack(model, images, labels, threat, seed=0, restarts=5)
    first = broken(model, once, labels)
    assert torch.equal(once[first], five[first])
    assert (broken(model, five, labels) >= first).all()
    assert not torch.equal(apgd.attack(model, images, labels, threat, seed=0, indices=list(range(5, 21))), once)
    with pytest.raises(BenchmarkError, match="apgd with 0 restarts does nothing"):
        apgd.attack(model, images, labels, threat, seed=0, restarts=0)


def test_cw_finds_nearly_the_exact_l2_radius(linear) -> None:
    model, images, labels = linear
    radius = model.radius(images, labels, "L2")
    threat = ThreatModel(norm="L2", eps=2.0)
    found = cw.attack(model, images, labels, threat, seed=0, steps=400, step_size=0.003, c=50.0)
    moved = distances(found, images)["L2"]
    hit = broken(model, found, labels)
    assert hit.all()
    assert (moved >= radius - 1e-6).all()
    assert (moved <= 1.5 * radius + 0.01).all()


def test_cw_returns_the_clean_image_beyond_its_radius(linear) -> None:
    model, images, labels = linear
    found = cw.attack(model, images, labels, ThreatModel(norm="L2", eps=1e-6), seed=0, steps=20, step_size=0.01, c=50.0)
    assert torch.equal(found, images)


def test_fgsm_is_one_signed_step(linear) -> None:
    model, images, labels = linear
    found = fgsm.attack(model, images, labels, ThreatModel(norm="Linf", eps=0.05), seed=0)
    assert torch.allclose((found - images).abs(), torch.full_like(images, 0.05), atol=1e-6)


def test_square_that_beats_white_box_attacks_is_flagged() -> None:
    assert autoattack.flags({"apgd-ce": 50, "apgd-t": 40, "fab-t": 40, "square": 30}, 100)
    assert not autoattack.flags({"apgd-ce": 50, "apgd-t": 40, "fab-t": 40, "square": 40}, 100)
