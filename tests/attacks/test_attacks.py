"""Attacks on a linear model, whose exact radius is known; PGD compared with foolbox's."""

from __future__ import annotations

import foolbox
import pytest
import torch
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.attacks import apgd, autoattack, cw, fgsm, pgd, quick
from benchmark.attacks.ball import distances, into_ball
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from benchmark.specs.threat import ThreatModel
from benchmark.training.objective import frozen

MODEL, IMAGES = Linear().eval().requires_grad_(False), grey_images()
LABELS = MODEL(IMAGES).argmax(1)
NORMS = pytest.mark.parametrize("norm", ["L2", "Linf"])


def broken(model: nn.Module, adversarial: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return model(adversarial).argmax(1) != labels


@NORMS
@pytest.mark.parametrize(("name", "classes"), [("pgd", 2), ("autoattack", 4)])
def test_attack_succeeds_just_outside_the_exact_radius_and_fails_just_inside(norm, name, classes) -> None:
    """The radius is margin / dual norm of w_i - w_j. With more than two classes PGD's cross-entropy mixes rivals."""
    model = Linear(classes=classes).eval().requires_grad_(False)
    labels = model(IMAGES).argmax(1)
    radius = model.radius(IMAGES, labels, norm)
    image = int(radius.argsort()[8])
    assert 0 < radius[image] < 0.2  # well inside the box
    x, y = IMAGES[image : image + 1], labels[image : image + 1]
    for share, expected in ((0.99, False), (1.01, True)):
        threat = ThreatModel(norm=norm, eps=float(radius[image]) * share)
        if name == "pgd":
            results = [pgd.attack(model, x, y, threat, seed=0, steps=80, step_size=threat.eps / 4)]
        else:
            components = ("apgd-ce", "apgd-t")  # Square takes seconds
            results = [autoattack.attack(model, x, y, threat, seed=0, component=c) for c in components]
        assert any(bool(broken(model, into_ball(moved, x, threat, name), y)) for moved in results) is expected


@NORMS
def test_pgd_on_the_margin_is_exact_for_many_classes(norm) -> None:
    """Its gradient is that of one rival, where the cross-entropy mixes all: four classes do not hide the exact radius."""
    radius, shares = MODEL.radius(IMAGES, LABELS, norm), {}
    for share in (0.99, 1.01):
        hits = []
        for image in range(0, len(IMAGES), 2):
            threat = ThreatModel(norm=norm, eps=float(radius[image]) * share)
            x, y = IMAGES[image : image + 1], LABELS[image : image + 1]
            moved = pgd.attack(MODEL, x, y, threat, seed=0, steps=60, step_size=threat.eps / 4, climb="margin")
            hits.append(bool(broken(MODEL, into_ball(moved, x, threat, "pgd"), y)))
        shares[share] = sum(hits) / len(hits)
    assert shares[0.99] == 0
    assert shares[1.01] >= 0.5  # the box may stand in the way, or the largest rival not be the nearest


@NORMS
@pytest.mark.parametrize("random_start", [True, False])
@pytest.mark.parametrize(("steps", "share"), [(1, 1.25), (10, 0.25)])
@pytest.mark.parametrize("eps", [8 / 255, 0.5])
def test_pgd_takes_foolboxs_steps_to_the_bit(norm, random_start, steps, share, eps) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(8 * 36, 7)).eval()
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.rand(13, 3, 8, 8, generator=generator), torch.randint(7, (13,), generator=generator)
    images[0], images[1] = 0.0, 1.0  # corners of the box
    kind = foolbox.attacks.LinfPGD if norm == "Linf" else foolbox.attacks.L2PGD
    theirs = kind(abs_stepsize=share * eps, steps=steps, random_start=random_start)
    target = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    threat, options = ThreatModel(norm=norm, eps=eps), {"steps": steps, "step_size": share * eps}
    torch.manual_seed(5)
    with frozen(model):
        expected = theirs.run(target, images, foolbox.criteria.Misclassification(labels), epsilon=eps)
        moved = pgd.attack(model, images, labels, threat, seed=5, random_start=random_start, **options)
    assert torch.equal(moved, expected)
    assert not moved.requires_grad
    assert not torch.equal(moved, images)


@pytest.mark.parametrize("options", [{"climb": "cw"}, {"climb": "margin", "loss": torch.sum}])
def test_pgd_refuses_what_it_cannot_climb(options) -> None:
    with pytest.raises(BenchmarkError, match=r"climb '(cw|margin)' should be one of cross_entropy, margin"):
        pgd.attack(MODEL, IMAGES, LABELS, ThreatModel(norm="Linf", eps=0.1), seed=0, steps=1, step_size=0.1, **options)


def test_apgd_restarts_find_more_and_the_first_is_that_of_one() -> None:
    threat = ThreatModel(norm="L2", eps=float(MODEL.radius(IMAGES, LABELS, "L2").median()))
    once = apgd.attack(MODEL, IMAGES, LABELS, threat, seed=0)
    five = apgd.attack(MODEL, IMAGES, LABELS, threat, seed=0, restarts=5)
    first = broken(MODEL, once, LABELS)
    assert torch.equal(once[first], five[first])
    assert (broken(MODEL, five, LABELS) >= first).all()
    assert not torch.equal(apgd.attack(MODEL, IMAGES, LABELS, threat, seed=0, indices=list(range(5, 21))), once)
    with pytest.raises(BenchmarkError, match="apgd with 0 restarts does nothing"):
        apgd.attack(MODEL, IMAGES, LABELS, threat, seed=0, restarts=0)


def test_cw_finds_nearly_the_exact_l2_radius_and_returns_the_clean_image_beyond_its_own() -> None:
    radius = MODEL.radius(IMAGES, LABELS, "L2")
    far, near = ThreatModel(norm="L2", eps=2.0), ThreatModel(norm="L2", eps=1e-6)
    adversarial = cw.attack(MODEL, IMAGES, LABELS, far, seed=0, steps=400, step_size=0.003, c=50.0)
    moved = distances(adversarial, IMAGES)["L2"]
    assert broken(MODEL, adversarial, LABELS).all()
    assert (moved >= radius - 1e-6).all()
    assert (moved <= 1.5 * radius + 0.01).all()
    assert torch.equal(cw.attack(MODEL, IMAGES, LABELS, near, seed=0, steps=20, step_size=0.01, c=50.0), IMAGES)


def test_fgsm_is_one_signed_step() -> None:
    moved = fgsm.attack(MODEL, IMAGES, LABELS, ThreatModel(norm="Linf", eps=0.05), seed=0) - IMAGES
    assert torch.allclose(moved.abs(), torch.full_like(moved, 0.05), atol=1e-6)


def test_square_that_beats_white_box_attacks_is_flagged() -> None:
    assert autoattack.flags({"apgd-ce": 50, "apgd-t": 40, "fab-t": 40, "square": 30}, 100)
    assert not autoattack.flags({"apgd-ce": 50, "apgd-t": 40, "fab-t": 40, "square": 40}, 100)


def test_quick_is_the_first_two_parts_of_autoattack_by_another_name() -> None:
    x, y = IMAGES[:6], LABELS[:6]
    threat = ThreatModel(norm="L2", eps=float(MODEL.radius(x, y, "L2").median()))
    assert quick.components == autoattack.components[:2]
    for part in quick.components:
        whole = autoattack.attack(MODEL, x, y, threat, seed=0, component=part)
        assert torch.equal(quick.attack(MODEL, x, y, threat, seed=0, component=part), whole)
    for module, component in ((quick, "square"), (autoattack, "fab")):
        with pytest.raises(ValueError, match=f"no component '{component}'"):
            module.attack(MODEL, x, y, threat, seed=0, component=component)
    assert [spec.id for spec in tracks.load("digits").development["quick"]] == ["quick-Linf-0.15", "quick-L2-0.5"]
