"""The options of the loop, each compared with a hand computation; resume with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from tiny_models import Linear
from tiny_training import blobs, model, run, spec, stopping_after
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec
from benchmark.training import adversarial, standard, trades
from benchmark.training.augment import Augment
from benchmark.training.fitting import overfitting_monitor, training_attack
from benchmark.training.loop import selection_metric
from benchmark.training.objective import accuracy
from benchmark.training.steps import eps_factor

FGSM = AttackSpec(attack="fgsm", norm="Linf", eps=0.1, parameters={"step": 1.25, "random_start": True})
PGD = AttackSpec(attack="pgd", norm="Linf", eps=0.1, parameters={"steps": 3, "step_size": 0.05})
ONE = {"batch_size": 120, "optimizer": "sgd", "schedule": "constant", "learning_rate": 0.5}  # one step of SGD an epoch


def gradient(network: nn.Module) -> list[torch.Tensor]:
    loss = nn.functional.cross_entropy(network(blobs(0)[0]), blobs(0)[1])
    return list(torch.autograd.grad(loss, list(network.parameters())))


def size(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors]).norm()


def test_the_radius_grows_linearly_from_a_clean_first_epoch(tmp_path) -> None:
    rules = spec(epochs=6, warmup_epochs=4, batch_size=120)
    assert [eps_factor(rules, epoch) for epoch in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    seen: list[float] = []

    def attack(network, images, labels, share_of_radius, loss=None, /):
        seen.append(share_of_radius)
        return images

    run(model(), adversarial.objective(attack), rules, tmp_path / "c", metric=accuracy)
    assert seen == [0.25, 0.5, 0.75, 1, 1]


def test_sam_takes_the_gradient_at_the_sharpest_point(tmp_path) -> None:
    network, by_hand = Linear(), Linear()
    weights = [p.detach().clone() for p in by_hand.parameters()]
    first = gradient(by_hand)
    with torch.no_grad():
        for p, g in zip(by_hand.parameters(), first, strict=True):
            p += 0.3 * g / size(first)
    second = gradient(by_hand)
    run(network, standard.objective(None), spec(epochs=1, sam=0.3, **ONE), tmp_path / "c")
    for p, w, g, plain in zip(network.parameters(), weights, second, first, strict=True):
        assert torch.allclose(p, w - 0.5 * g, atol=1e-6)
        assert not torch.allclose(p, w - 0.5 * plain, atol=1e-4)


def test_sam_draws_the_same_in_both_steps_and_moves_batchnorm_once(tmp_path) -> None:
    masks, starts = [], []

    def attack(network, images, labels, share_of_radius, loss=None, /):
        starts.append(torch.rand(3))
        assert not network.training
        return images

    network = nn.Sequential(nn.Flatten(), nn.Identity(), nn.BatchNorm1d(36), nn.Linear(36, 4))
    network[1].register_forward_hook(lambda part, *_: masks.append(torch.rand(3)) if part.training else None)
    run(network, adversarial.objective(attack), spec(epochs=1, sam=0.1, **ONE), tmp_path / "c", metric=accuracy)
    for first, second in (masks, starts):
        assert torch.equal(first, second)
    assert torch.allclose(network[2].running_mean, 0.1 * blobs(0)[0].flatten(1).mean(0), atol=1e-6)
    assert network[2].num_batches_tracked == 1
    assert network[2].track_running_stats


@pytest.mark.parametrize("options", [{}, {"sam": 0.3, "clip_norm": 0.2, "ema": 0.9}])
def test_batches_gathered_to_one_step_are_one_large_batch(tmp_path, options) -> None:
    """k batches of b give the weights of batches of k b, also where the last are fewer: 120 = 3 x 32 + 16 + 8."""

    def attack(network, images, labels, share_of_radius, loss=None, /):
        return (images + 0.1 * share_of_radius * (labels[:, None, None, None] - 1.5).sign()).clamp(0, 1)

    trained = []
    for sizes in ({"batch_size": 96}, {"batch_size": 32, "accumulation": 3}, {"batch_size": 32}):
        network = Linear()
        rules = spec(epochs=3, optimizer="sgd", learning_rate=0.3, **sizes, **options)
        _, done = run(network, adversarial.objective(attack), rules, tmp_path / f"{len(trained)}", metric=accuracy)
        trained.append(([p.detach() for p in network.parameters()], done.losses))
    (whole, losses), (gathered, gathered_losses), (small, _) = trained
    # sums over other batches, rounded in another order in each of six steps; smaller batches differ by a hundred times that
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(whole, gathered, strict=True))
    assert losses == pytest.approx(gathered_losses, rel=1e-5)
    assert not all(torch.allclose(a, b, atol=1e-3) for a, b in zip(whole, small, strict=True))


def test_clipping_bounds_the_step(tmp_path) -> None:
    for limit in (0.01, 100.0):
        network, by_hand = Linear(), Linear()
        slopes = gradient(by_hand)
        run(network, standard.objective(None), spec(epochs=1, clip_norm=limit, **ONE), tmp_path / str(limit))
        factor = min(1.0, limit / size(slopes).item())
        for p, w, g in zip(network.parameters(), by_hand.parameters(), slopes, strict=True):
            assert torch.allclose(p, w - 0.5 * factor * g, atol=1e-6)


def test_weight_decay_can_spare_biases_and_norms(tmp_path) -> None:
    class Nothing(standard.Standard):
        def loss(self, network, images, labels, share_of_radius):
            return 0 * network(images).sum()

    for where, spared in (("weights", 1.0), ("all", 0.95)):
        network = nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 4))
        nn.init.ones_(network[2].bias)
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        rules = spec(epochs=1, weight_decay=0.1, weight_decay_on=where, **{**ONE, "optimizer": "adamw"})
        run(network, Nothing(), rules, tmp_path / where)
        for name, p in network.named_parameters():
            assert torch.allclose(p, before[name] * (0.95 if name == "2.weight" else spared), atol=1e-6), (where, name)


def test_averaged_weights_are_scored_and_kept(tmp_path) -> None:
    network, scored, trained = Linear(), [], []
    average = network.weight.detach().clone()

    def score(candidate, images, labels) -> float:
        scored.append(candidate.weight.detach().clone())
        return float(len(scored))

    options = {"metric": score, "on_epoch": lambda _: trained.append(network.weight.detach().clone())}
    best, _ = run(network, standard.objective(None), spec(epochs=3, ema=0.75, **ONE), tmp_path / "c", **options)
    for weight, kept in zip(trained, scored, strict=True):
        average = 0.75 * average + 0.25 * weight
        assert torch.allclose(kept, average, atol=1e-6)
    assert torch.equal(best["weight"], scored[-1])
    assert not torch.allclose(best["weight"], trained[-1], atol=1e-3)


EVERYTHING = {
    "objective": "trades", "epochs": 4, "warmup_epochs": 2, "sam": 0.05, "schedule": "cosine", "rate_warmup_epochs": 1,
    "weight_decay": 0.05, "weight_decay_on": "weights", "clip_norm": 1.0, "ema": 0.9, "batch_size": 33,
    "augmentation": {"crop": 1, "flip": True, "jitter": 0.2, "randaugment": 2, "erasing": 0.5, "mixup": 0.8, "cutmix": 1.0},
    "closing": {"epochs": 2, "augmentation": {"crop": 2}},
    "selection": {"by": "robust", "attack": PGD, "patience": 3}, "attack": FGSM,
}  # fmt: skip


def everything(checkpoint: Path, **options):
    rules = spec(**EVERYTHING)
    objective = trades.objective(training_attack(FGSM), beta=2, label_smoothing=0.1)
    return run(
        model(3), objective, rules, checkpoint, channels=3,
        augment=Augment(rules.augmentation, (3, 6, 6), 4), closing=Augment(rules.closing.augmentation, (3, 6, 6), 4),
        metric=selection_metric(rules.selection, objective, training_attack(PGD))[1], monitor=overfitting_monitor(FGSM, training_attack(FGSM)), **options,
    )  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_stopped_run_resumes_to_the_same_bytes_with_every_option_on(tmp_path, monkeypatch, optimizer) -> None:
    monkeypatch.setitem(EVERYTHING, "optimizer", optimizer)
    whole, history = everything(tmp_path / "whole")
    again, _ = everything(tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        everything(tmp_path / "stopped", on_epoch=stopping_after(2))
    torch.manual_seed(99)
    resumed, resumed_history = everything(tmp_path / "stopped")
    assert resumed_history == history
    assert len(history.watched) == history.epoch == 4
    assert all(torch.equal(whole[name], again[name]) and torch.equal(whole[name], resumed[name]) for name in whole)
    files = [(tmp_path / name).read_bytes() for name in ("whole", "again", "stopped")]
    assert files[0] == files[1] == files[2]


def test_the_last_epochs_have_an_augmentation_of_their_own_or_none(tmp_path) -> None:
    calls: list[str] = []
    both = {name: lambda x, y, n=name: calls.append(n) or (x, y) for name in ("augment", "closing")}
    usual = {"augment": both["augment"]}
    cases = (({"epochs": 2}, both, 2), ({"epochs": 2}, usual, 0), (None, both, 0), ({"epochs": 0}, both, 0))
    for number, (closing, given, closed) in enumerate(cases):
        calls.clear()
        run(model(), standard.objective(None), spec(closing=closing, batch_size=120), tmp_path / str(number), **given)
        assert calls == ["augment"] * (4 if closing == {"epochs": 2} else 6) + ["closing"] * closed


def test_the_scaler_of_half_precision_is_resumed_and_refuses_sam(tmp_path) -> None:
    """As 16-mixed has it on a GPU; a CPU has none."""
    state, fabric = {"scale": 1024.0, "_growth_tracker": 7}, Fabric(accelerator="cpu", devices=1)
    loaded: list[dict] = []
    fabric.strategy.precision.state_dict = lambda: state
    fabric.strategy.precision.load_state_dict = loaded.append
    with pytest.raises(KeyboardInterrupt):
        run(model(), standard.objective(None), spec(), tmp_path / "c", fabric=fabric, on_epoch=stopping_after(1))
    assert not loaded
    run(model(), standard.objective(None), spec(), tmp_path / "c", fabric=fabric)
    assert loaded == [state]
    with pytest.raises(BenchmarkError, match="sam cannot run with 16-mixed"):
        run(model(), standard.objective(None), spec(sam=0.1), tmp_path / "d", fabric=fabric)
