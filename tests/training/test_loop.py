"""Training: exact resume, selection on validation images, refusal of a loss that is not finite."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Linear
from tiny_training import blobs, model, resumed_to_the_same_bytes, run, spec
from torch import nn

from benchmark.attacks import pgd
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel
from benchmark.training import adversarial, margin, standard
from benchmark.training.objective import accuracy
from benchmark.verdicts.prediction import margins


def attack(network, images, labels, eps_factor):
    threat = ThreatModel(norm="Linf", eps=0.1 * eps_factor)
    return pgd.attack(network, images, labels, threat, seed=None, steps=2, step_size=0.1)


@pytest.mark.parametrize(("optimizer", "stop"), [("adamw", 1), ("sgd", 2)])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, optimizer, stop) -> None:
    rules, objective = spec(epochs=4, optimizer=optimizer, warmup_epochs=2), adversarial.objective(attack)
    resumed_to_the_same_bytes(
        lambda place, **more: (run(model(), objective, rules, tmp_path / place, **more), {}), stop
    )


def test_the_best_validation_epoch_is_returned(tmp_path) -> None:
    class Scripted(standard.Standard):
        scores = iter([0.1, 0.9, 0.9, 0.2, 0.3, 0.4])

        def score(self, network, images, labels) -> float:
            assert len(labels) == 40, "the score may look at validation images only"
            states.append({name: t.clone() for name, t in network.state_dict().items()})
            return next(self.scores)

    states: list[dict[str, torch.Tensor]] = []
    best, done = run(model(), Scripted(), spec(), tmp_path / "checkpoint")
    assert done.best_epoch == 2
    assert all(torch.equal(best[name], states[1][name]) for name in best)


def test_training_learns(tmp_path) -> None:
    network = model()
    best, done = run(network, standard.objective(None), spec(epochs=12), tmp_path / "checkpoint")
    network.load_state_dict(best)
    assert accuracy(network, *blobs(2)) > 0.95
    assert done.losses[-1] < done.losses[0]


def test_nan_loss_stops_and_keeps_the_last_checkpoint(tmp_path) -> None:
    class Breaking(standard.Standard):
        def loss(self, network, images, labels, eps_factor):
            value = super().loss(network, images, labels, eps_factor)
            return value * float("nan") if (tmp_path / "checkpoint").exists() else value

    with pytest.raises(BenchmarkError, match="nan in epoch 2"):
        run(model(), Breaking(), spec(), tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint").exists()


def test_the_adversarial_objective_stays_in_its_ball_and_needs_an_attack() -> None:
    network = model().train()
    images, labels = blobs(0)
    perturbed = adversarial.objective(attack).perturb(network, images, labels, 1.0)
    assert (perturbed - images).abs().max() <= 0.1 + 1e-6
    assert torch.equal(adversarial.objective(attack).perturb(network, images, labels, 0.0), images)
    with pytest.raises(BenchmarkError, match=r"needs `training\.attack`"):
        adversarial.objective(None)


def test_margin_objective_by_hand() -> None:
    network = Linear().eval()
    images, labels = torch.rand(5, 1, 6, 6), torch.tensor([0, 1, 2, 3, 0])
    logits = network(images).detach()
    lowered = logits.clone()
    lowered[range(5), labels] -= 0.3
    expected = nn.functional.cross_entropy(7 * lowered, labels)
    objective = margin.objective(None, margin=0.3, temperature=7)
    assert torch.allclose(objective.loss(network, images, labels, 1.0), expected)
    share = (margins(logits, labels) > 0.15).float().mean().item()
    assert objective.score(network, images, labels) == pytest.approx(share)
