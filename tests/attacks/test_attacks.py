"""Attacks against a linear model, whose exact radius is known, and the harness's own checks of what they return."""

from __future__ import annotations

import pyautoattack
import pytest
import torch
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.attacks import apgd, autoattack, cw, fgsm, pgd
from benchmark.evaluation.run_attack import run_attack
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.verdicts.ball import distances, into_ball
from benchmark.verdicts.prediction import logits


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


def test_autoattack_by_components_is_the_authors_evaluation(linear, tmp_path) -> None:
    """The harness runs the four components one by one; the package runs them in its own loop: the same verdicts."""
    model, images, labels = linear
    eps = float(model.radius(images, labels, "Linf").median())
    spec = AttackSpec(attack="autoattack", norm="Linf", eps=eps)
    package = pyautoattack.AutoAttack(model, norm="Linf", eps=eps, seed=0)
    package.apgd_targeted.n_target_classes = package.fab.n_target_classes = 3
    expected, _ = package.run_standard_evaluation(images, labels, batch_size=5)
    state, after = run_attack(
        model, images, labels, spec, batch_size=5, checkpoint=tmp_path / "state", engine="reference"
    )
    assert state.engine == "reference"
    assert torch.equal(after.correct, model(expected).argmax(1) == labels)
    assert 0 < int(after.correct.sum()) < len(labels)
    assert torch.equal(state.robust, after.correct)


def test_an_attack_resumes_from_the_images_already_done(linear, tmp_path, monkeypatch) -> None:
    """Stopped after any batch, the rest gives the same adversarial images and runs no batch twice."""
    model, images, labels = linear
    monkeypatch.setattr(autoattack, "components", ("apgd-ce", "apgd-t"))  # the others take seconds a batch
    monkeypatch.delattr(autoattack, "flags")
    spec = AttackSpec(attack="autoattack", norm="L2", eps=float(model.radius(images, labels, "L2").median()))
    whole, _ = run_attack(model, images, labels, spec, batch_size=5, checkpoint=tmp_path / "whole")
    calls, original = [], autoattack.attack

    def stopping(*arguments, **options):
        calls.append(options["component"])
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(autoattack, "attack", stopping)
    stop_at = 0
    run_attack(model, images, labels, spec, batch_size=5, checkpoint=tmp_path / "count")
    total = len(calls)
    for stop_at in range(1, total + 1):
        calls.clear()
        path = tmp_path / f"stopped{stop_at}"
        with pytest.raises(KeyboardInterrupt):
            run_attack(model, images, labels, spec, batch_size=5, checkpoint=path)
        done, stop_at = len(calls) - 1, 0
        calls.clear()
        resumed, _ = run_attack(model, images, labels, spec, batch_size=5, checkpoint=path)
        assert len(calls) == total - done
        assert torch.equal(resumed.adversarial, whole.adversarial)
        assert resumed.remaining == whole.remaining


def test_the_harness_hands_on_engine_slots_and_the_images_numbers(linear, tmp_path, monkeypatch) -> None:
    """Numbers in the whole set, which the random streams are drawn by, not places in the batch."""
    model, images, labels = linear
    labels = labels.clone()
    labels[3] = (labels[3] + 1) % 4  # wrong when clean: not attacked
    calls = []

    def noting(model, images, labels, threat, *, seed, component, engine, indices, slots):
        calls.append((component, engine, indices, slots))
        return images

    monkeypatch.setattr(autoattack, "attack", noting)
    spec = AttackSpec(attack="autoattack", norm="L2", eps=0.1)
    options = {"batch_size": 9, "checkpoint": tmp_path / "state"}
    state, _ = run_attack(model, images, labels, spec, engine="fast", **options)
    first, rest = [0, 1, 2, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15]
    assert calls == [(name, "fast", part, 9) for name in autoattack.components for part in (first, rest)]
    assert state.engine == "fast"
    assert run_attack(model, images, labels, spec, engine="fast", **options)[0].engine == "fast"
    with pytest.raises(BenchmarkError, match="was begun by the fast engine; delete it to attack by reference"):
        run_attack(model, images, labels, spec, engine="reference", **options)
    plain = AttackSpec(attack="fgsm", norm="L2", eps=0.1)
    assert run_attack(model, images, labels, plain, batch_size=9)[0].engine is None


def test_an_image_is_judged_in_the_batch_of_the_final_verdict(linear, monkeypatch) -> None:
    """A model that rounds otherwise in a batch with fewer images must not lose an image here and keep it there."""
    model, images, labels = linear

    class Rounding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return model(x) if len(x) == 16 else model(1 - x)

    monkeypatch.setattr(autoattack, "attack", lambda m, x, *a, **k: x.clone())
    state, after = run_attack(
        Rounding(), images, labels, AttackSpec(attack="autoattack", norm="L2", eps=0.1), batch_size=16
    )
    assert state.robust.all()
    assert after.correct.all()
    labels = labels.clone()
    labels[5] = (labels[5] + 1) % 4
    state, after = run_attack(
        Rounding(), images, labels, AttackSpec(attack="autoattack", norm="L2", eps=0.1), batch_size=16
    )
    assert state.robust.tolist() == after.correct.tolist() == [i != 5 for i in range(16)]


@pytest.mark.parametrize("norm", ["L2", "Linf"])
def test_into_ball_brings_rounding_back_and_refuses_more(norm) -> None:
    images = torch.rand(50, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    threat = ThreatModel(norm=norm, eps=0.3)
    direction = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    size = (
        direction.abs().amax((1, 2, 3), keepdim=True)
        if norm == "Linf"
        else direction.flatten(1).norm(dim=1)[:, None, None, None]
    )
    inside = into_ball((images + direction / size * 0.300001).clamp(0, 1), images, threat, "test")
    assert distances(inside, images)[norm].max() <= 0.3 + 1e-12
    assert inside.min() >= 0
    assert inside.max() <= 1
    flat = torch.full_like(images, 0.5)
    with pytest.raises(BenchmarkError, match="left its"):
        into_ball(flat + direction / size * 0.31, flat, threat, "test")


def test_into_ball_refuses_nan_shape_and_box() -> None:
    images, threat = torch.full((2, 1, 2, 2), 0.9), ThreatModel(norm="Linf", eps=0.5)
    with pytest.raises(BenchmarkError, match="not finite"):
        into_ball(images * float("nan"), images, threat, "test")
    with pytest.raises(BenchmarkError, match="shape"):
        into_ball(images[:1], images, threat, "test")
    with pytest.raises(BenchmarkError, match=r"left \[0, 1\]"):
        into_ball(images + 0.3, images, threat, "test")


def test_radius_zero_returns_the_clean_image() -> None:
    images = torch.rand(3, 1, 4, 4)
    for norm in ("L2", "Linf"):
        assert torch.equal(into_ball(images, images, ThreatModel(norm=norm, eps=0.0), "test"), images)


def test_an_attack_outside_its_ball_stops_the_run(linear, tmp_path, monkeypatch) -> None:
    model, images, labels = linear
    monkeypatch.setattr(pgd, "attack", lambda model, x, *_, **__: x + 0.4)
    spec = AttackSpec(attack="pgd", norm="Linf", eps=0.1)
    with pytest.raises(BenchmarkError, match=r"pgd-Linf-0\.1 left its"):
        run_attack(model, images, labels, spec, batch_size=5, checkpoint=tmp_path / "state")


def test_logits_that_are_not_finite_name_the_image() -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = x.flatten(1)[:, :4].clone()
            out[x[:, 0, 0, 0] > 0.8] = float("nan")
            return out

    images = torch.zeros(5, 1, 2, 2)
    images[3] = 0.9
    with pytest.raises(BenchmarkError, match="evaluation image 3"):
        logits(Bad(), images, 2)


def test_autoattack_needs_four_classes() -> None:
    model = Linear(classes=3).requires_grad_(False)
    images = grey_images(2)
    with pytest.raises(BenchmarkError, match="4 classes"):
        autoattack.attack(
            model, images, model(images).argmax(1), ThreatModel(norm="L2", eps=0.1), seed=0, component="apgd-t"
        )


def test_square_that_beats_white_box_attacks_is_flagged() -> None:
    assert autoattack.flags({"apgd-ce": 50, "apgd-t": 40, "fab-t": 40, "square": 30}, 100)
    assert not autoattack.flags({"apgd-ce": 50, "apgd-t": 40, "fab-t": 40, "square": 40}, 100)
