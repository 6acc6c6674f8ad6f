"""The kept epoch, the overfitting monitor, and what stops a run."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import Linear, Through
from tiny_training import blobs, model, run, spec
from torch import nn

from benchmark.specs.threat import AttackSpec
from benchmark.specs.training import Selection
from benchmark.training import standard
from benchmark.training.fitting import overfitting_monitor, training_attack
from benchmark.training.loop import exhausted, selection_metric
from benchmark.training.objective import accuracy
from benchmark.training.overfitting import OverfittingMonitor, probe

FGSM = AttackSpec(attack="fgsm", norm="Linf", eps=0.1, parameters={"step": 1.25, "random_start": True})
PGD = AttackSpec(attack="pgd", norm="Linf", eps=0.1, parameters={"steps": 3, "step_size": 0.05})


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_scores_and_kept_weights_are_float32_whatever_training_is(tmp_path, precision) -> None:
    seen: set[torch.dtype] = set()

    def score(candidate, images, labels) -> float:
        seen.add(candidate(images).dtype)
        assert not torch.is_autocast_enabled("cpu")
        return accuracy(candidate, images, labels)

    network = Linear()
    best, done = run(network, standard.objective(None), spec(), tmp_path / "c", precision=precision, metric=score)
    assert seen == {torch.float32}
    assert {t.dtype for t in best.values()} == {torch.float32}
    fresh = Linear()
    fresh.load_state_dict(best)
    assert accuracy(fresh, *blobs(1, 40)) == done.best_score > 0.5


def test_selection_and_patience(tmp_path) -> None:
    scores = iter([0.5, 0.6, 0.55, 0.6, 0.7, 0.7])
    rules = spec(epochs=6, selection={"by": "clean", "patience": 2})
    calls: list[int] = []

    def score(*_) -> float:
        calls.append(1)
        return next(scores)

    best, done = run(model(), standard.objective(None), rules, tmp_path / "c", metric=score)
    assert (done.epoch, done.best_epoch) == (4, 2)
    again, done = run(model(), standard.objective(None), rules, tmp_path / "c", metric=score)
    assert (done.epoch, len(calls)) == (4, 4), "a run that stopped early does not go on when it is resumed"
    assert all(torch.equal(best[name], again[name]) for name in best)
    assert not exhausted(Selection(patience=2), epoch=9, best_epoch=1, warmup_epochs=8), "a warm-up does not count"
    assert not exhausted(Selection(), epoch=99, best_epoch=1, warmup_epochs=0)


def test_robust_selection_scores_under_its_own_attack() -> None:
    objective = standard.objective(None)
    network, (images, labels) = Linear().eval(), blobs(1, 40)
    labels = network(images).argmax(1)
    words, score = selection_metric(Selection(by="robust", attack=PGD), objective, training_attack(PGD))
    assert words == "validation accuracy under pgd-Linf-0.1 (step_size 0.05, steps 3)"
    inside = (network.radius(images, labels, "Linf") > 0.1).float().mean().item()
    assert score(network, images, labels) == pytest.approx(inside, abs=0.1)
    assert inside < 0.9
    assert selection_metric(Selection(by="clean"), objective, None)[1](network, images, labels) == 1.0


def test_catastrophic_overfitting_is_found() -> None:
    one_step = AttackSpec(attack="fgsm", norm="Linf", eps=0.2)
    monitor = overfitting_monitor(one_step, training_attack(one_step))
    images, labels = torch.full((40, 1, 1, 1), 0.5), torch.zeros(40, dtype=torch.int64)

    def dip(_: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Right at the image and at the full radius, wrong half way, as of a network that has overfitted to FGSM."""
        margin = 0.5 + torch.cos(2 * math.pi * (x.flatten(1)[:, 0] - 0.5) / 0.2 + 0.2)
        return torch.stack([margin, torch.zeros_like(margin)], 1)

    torch.manual_seed(0)
    seen = monitor(Through(nn.Identity(), after=dip).eval(), images, labels)
    assert seen[0] == 1.0
    assert seen[1] < 0.5  # from some starts PGD climbs out of the ball, where the network is right again
    assert monitor.verdict([seen], selected=1, warmup_epochs=0, validation=40).found
    for lead, robust in ((0.3, 0.0), (0.5, 1.0)):
        apart = images.repeat(1, 2, 1, 1) + torch.tensor([lead, 0]).view(1, 2, 1, 1)
        assert monitor(nn.Flatten(), apart, labels) == (robust, robust)


def test_overfitting_counts_after_the_warmup_and_is_reported() -> None:
    monitor = OverfittingMonitor(training_attack(FGSM), training_attack(probe(FGSM)), probe(FGSM))
    seen = [(0.5, 0.0), (0.8, 0.7), (0.95, 0.05), (0.8, 0.7)]
    verdict = monitor.verdict(seen, selected=3, warmup_epochs=1, validation=200)
    assert (verdict.found, verdict.epochs) == (True, (3,))
    assert (verdict.trained, verdict.pgd, verdict.images) == (0.95, 0.05, 100)
    assert verdict.words.startswith("CATASTROPHIC OVERFITTING in epochs 3: at the selected epoch 0.95 right")
    fine = monitor.verdict(seen[:2], selected=2, warmup_epochs=1, validation=40)
    assert (fine.found, fine.images) == (False, 40)
    assert fine.words.startswith("no catastrophic overfitting")
