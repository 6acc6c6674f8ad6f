"""Each loss compared with a hand computation; attacks in training leave the model as it was."""

from __future__ import annotations

import pytest
import torch
from timm.layers import DropPath
from tiny_models import Linear, grey_images
from tiny_training import blobs
from torch import nn

from benchmark.attacks import fgsm, pgd
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.training import TrainingSpec
from benchmark.training import adversarial, standard, trades
from benchmark.training.fitting import training_attack, training_objective
from benchmark.training.objective import frozen, perturb

EPS = ThreatModel(norm="Linf", eps=0.1)
FGSM = AttackSpec(attack="fgsm", norm="Linf", eps=0.1, parameters={"step": 1.25, "random_start": True})


def shifting(model, images, labels, eps_factor, loss=None, /):
    """A known perturbation."""
    return images + 0.03 * eps_factor


def by_hand(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean of -sum_k t_k log p_k."""
    return -(targets * (logits - logits.logsumexp(1, keepdim=True))).sum(1).mean()


def test_label_smoothing_moves_a_share_of_the_target_to_all_classes() -> None:
    network, images, labels = Linear(), grey_images(), torch.arange(16) % 4
    targets = 0.8 * nn.functional.one_hot(labels, 4) + 0.2 / 4
    clean = standard.objective(None, label_smoothing=0.2).loss(network, images, labels, 1.0)
    assert torch.allclose(clean, by_hand(network(images), targets), atol=1e-6)
    attacked = adversarial.objective(shifting, label_smoothing=0.2).loss(network, images, labels, 0.5)
    assert torch.allclose(attacked, by_hand(network(images + 0.015), targets), atol=1e-6)


def test_mixed_labels_weigh_classes() -> None:
    network, images, shares = Linear(), grey_images(), torch.rand(16, 4).softmax(1)
    assert torch.allclose(standard.objective(None).loss(network, images, shares, 1.0), by_hand(network(images), shares))


def test_trades_by_hand() -> None:
    network, images, labels = Linear(), grey_images(), torch.arange(16) % 4
    p, q = network(images).softmax(1), network(images + 0.03).softmax(1)
    expected = by_hand(network(images), nn.functional.one_hot(labels, 4)) + 6 * (p * (p / q).log()).sum(1).mean()
    objective = trades.objective(shifting, beta=6)
    loss = objective.loss(network, images, labels, 1.0)
    assert torch.allclose(loss, expected, atol=1e-6)
    slopes = [torch.autograd.grad(value, network.weight)[0] for value in (loss, expected)]
    assert torch.allclose(*slopes, atol=1e-5)  # both sides of the KL are differentiated
    clean = standard.objective(None).loss(network, images, labels, 0.0)
    assert torch.equal(objective.loss(network, images, labels, 0.0), clean)


def test_trades_attack_climbs_the_divergence_and_not_the_cross_entropy() -> None:
    network, images = Linear().eval(), grey_images()
    clean = network(images).detach()
    labels = clean.argmin(1)  # wrong labels, which the inner problem must not look at
    attack = training_attack(AttackSpec(attack="pgd", norm="Linf", eps=0.1, parameters={"steps": 20, "step_size": 0.02}))
    torch.manual_seed(0)
    moved = trades.objective(attack, beta=1)._moved(network, images, labels, 1.0)
    torch.manual_seed(0)
    other = perturb(attack, network, images, labels, 1.0)
    random = images + 0.1 * torch.randn_like(images).sign()
    far = [trades.divergence(clean, network(x)).item() for x in (moved, other, random)]
    assert far[0] > 1.2 * max(far[1:])
    assert (moved - images).abs().max() <= 0.1 + 1e-6


def test_objectives_refuse_attacks_that_they_cannot_use() -> None:
    rules = {"objective": "trades", "parameters": {"beta": 6}, "epochs": 1, "batch_size": 1, "learning_rate": 1.0}
    still = AttackSpec(attack="fgsm", norm="Linf", eps=0.1)
    with pytest.raises(BenchmarkError, match="needs `random_start: true`"):
        training_objective(TrainingSpec(**rules, attack=still), training_attack(still))
    assert isinstance(training_objective(TrainingSpec(**rules, attack=FGSM), training_attack(FGSM)), trades.Trades)
    for kind, more in ((trades.Trades, {"beta": 6}), (adversarial.Adversarial, {})):
        with pytest.raises(BenchmarkError, match=rf"{kind.__name__.lower()} objective needs `training\.attack`"):
            kind(None, **more)


@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_attacks_climb_a_loss_that_they_are_handed(attack) -> None:
    network, images, labels = Linear().eval(), grey_images(), torch.zeros(16, dtype=torch.int64)
    steps = {"step": 1.0} if attack is fgsm else {"steps": 1, "step_size": 0.1}
    moved = attack.attack(
        network, images, labels, EPS, seed=0, random_start=False, loss=lambda logits: logits[:, 2].sum(), **steps
    )
    expected = images + 0.1 * network.weight[2].detach().sign().view(1, 1, 6, 6)
    assert torch.allclose(moved, expected, atol=1e-6)


def test_mixed_labels_are_attacked_by_their_shares() -> None:
    network, images = Linear(), grey_images()
    shares = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).repeat(16, 1)
    moved = perturb(training_attack(AttackSpec(attack="fgsm", norm="Linf", eps=0.1)), network, images, shares, 1.0)
    gradient = (network(images).softmax(1) - shares) @ network.weight
    assert torch.allclose(moved, images + 0.1 * gradient.detach().sign().view_as(images), atol=1e-6)


def test_two_step_fgsm_and_the_ramp_scale_the_step_with_the_radius() -> None:
    network, images, labels = Linear().eval(), grey_images(), torch.zeros(16, dtype=torch.int64)
    two = AttackSpec(attack="fgsm", norm="Linf", eps=0.2, parameters={"step": 1.5, "steps": 2, "random_start": True})
    long = AttackSpec(attack="pgd", norm="Linf", eps=0.2, parameters={"steps": 2, "step_size": 0.15})
    for eps_factor in (1.0, 0.5):
        torch.manual_seed(0)
        a = training_attack(two)(network, images, labels, eps_factor)
        torch.manual_seed(0)
        assert torch.equal(a, training_attack(long)(network, images, labels, eps_factor))
    short = AttackSpec(attack="pgd", norm="Linf", eps=0.2, parameters={"steps": 1, "step_size": 0.1, "random_start": False})
    moved = (training_attack(short)(network, images, labels, 0.5) - images).abs()
    assert moved.amax().item() == pytest.approx(0.05, abs=1e-6)


def test_drop_path_is_active_in_the_step_and_off_in_the_attack() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), DropPath(0.5), nn.Dropout(0.5), nn.Linear(64, 4)
    model, modes, (images, labels) = nn.Sequential(*layers).train(), [], blobs(0, 16)
    hook = model[3].register_forward_hook(lambda part, *_: modes.append(part.training))
    attack = training_attack(FGSM)
    adversarial.objective(attack).loss(model, images, labels, 1.0)
    assert modes == [False, True]
    hook.remove()
    assert (perturb(attack, model, images, labels, 1.0) - images).abs().max() <= 0.1 + 1e-6
    assert torch.equal(perturb(attack, model, images, labels, 0.0), images)
    assert not torch.equal(model(images), model(images))
    with frozen(model):
        assert torch.equal(model(images), model(images))


def test_parameters_of_a_training_attack_are_checked() -> None:
    with pytest.raises(BenchmarkError, match="step_size"):
        training_attack(AttackSpec(attack="pgd", norm="Linf", eps=0.1, parameters={"steps": 2, "stepsize": 0.1}))
    own = training_attack(AttackSpec(attack="cw", norm="L2", eps=0.1, parameters={"steps": 1, "step_size": 0.1, "c": 1}))
    with pytest.raises(BenchmarkError, match="need fgsm or pgd"):
        own(Linear(), grey_images(), torch.zeros(16, dtype=torch.int64), 1.0, lambda logits: logits.sum())
