"""The options of the loop, each against a hand computation; resume with all of them; what stops a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from pydantic import ValidationError
from safetensors import safe_open
from tiny_models import Linear
from tiny_training import blobs, model, run, spec
from torch import nn

from benchmark.errors import BenchmarkError, explain
from benchmark.recipes import Augmentation, Selection, TrainingSpec, misfit
from benchmark.records import AttackSpec, Submission
from benchmark.stages.context import entry
from benchmark.stages.train import _attack, _watch
from benchmark.training import adversarial, standard, trades
from benchmark.training.augment import Augment
from benchmark.training.objective import accuracy
from benchmark.training.overfitting import Watch, probe
from benchmark.training.schedule import share, strength
from benchmark.training.selection import Scored, exhausted, scored

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
    assert [strength(rules, epoch) for epoch in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    seen: list[float] = []

    def attack(network, images, labels, share_of_radius, loss=None, /):
        seen.append(share_of_radius)
        return images

    run(model(), adversarial.objective(attack), rules, tmp_path / "c", scored=Scored("clean", accuracy))
    assert seen == [0.25, 0.5, 0.75, 1, 1]


def test_schedules() -> None:
    cosine = spec(epochs=10, schedule="cosine", rate_warmup_epochs=2, final_rate=0.1)
    assert [share(cosine, p) for p in (0, 1, 2, 6, 10)] == pytest.approx([0.01, 0.505, 1, 0.55, 0.1])
    constant = spec(epochs=10, schedule="constant", rate_warmup_epochs=2)
    assert [share(constant, p) for p in (0, 2, 9.9)] == pytest.approx([0.01, 1, 1])
    assert [share(spec(epochs=10), p) for p in (0, 3, 10)] == pytest.approx([0.04, 1, 0])
    assert share(spec(epochs=10), 6.5) == pytest.approx(0.5)


def test_sam_takes_the_gradient_at_the_sharpest_point(tmp_path) -> None:
    network, by_hand = Linear(), Linear()
    weights = [p.detach().clone() for p in by_hand.parameters()]
    first = gradient(by_hand)
    with torch.no_grad():
        for p, g in zip(by_hand.parameters(), first, strict=True):
            p += 0.3 * g / size(first)
    second = gradient(by_hand)
    run(network, standard.objective(None), spec(epochs=1, sam=0.3, **ONE), tmp_path / "c")
    for found, w, g, plain in zip(network.parameters(), weights, second, first, strict=True):
        assert torch.allclose(found, w - 0.5 * g, atol=1e-6)
        assert not torch.allclose(found, w - 0.5 * plain, atol=1e-4)


def test_sam_draws_the_same_in_both_steps_and_moves_batchnorm_once(tmp_path) -> None:
    seen, starts = [], []

    class Masked(nn.Module):
        def forward(self, x):
            if self.training:
                seen.append(torch.rand(3))
            return x

    def attack(network, images, labels, share_of_radius, loss=None, /):
        starts.append(torch.rand(3))
        assert not network.training
        return images

    network = nn.Sequential(nn.Flatten(), Masked(), nn.BatchNorm1d(36), nn.Linear(36, 4))
    rules = spec(epochs=1, sam=0.1, **ONE)
    run(network, adversarial.objective(attack), rules, tmp_path / "c", scored=Scored("", accuracy))
    assert len(seen) == len(starts) == 2
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(starts[0], starts[1])
    assert torch.allclose(network[2].running_mean, 0.1 * blobs(0)[0].flatten(1).mean(0), atol=1e-6)
    assert network[2].num_batches_tracked == 1
    assert network[2].track_running_stats


def test_clipping_bounds_the_step(tmp_path) -> None:
    for limit in (0.01, 100.0):
        network, by_hand = Linear(), Linear()
        found = gradient(by_hand)
        run(network, standard.objective(None), spec(epochs=1, clip_norm=limit, **ONE), tmp_path / str(limit))
        factor = min(1.0, limit / size(found).item())
        for p, w, g in zip(network.parameters(), by_hand.parameters(), found, strict=True):
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


def test_averaged_weights_are_judged_and_kept(tmp_path) -> None:
    network, judged, trained = Linear(), [], []
    average = network.weight.detach().clone()

    def score(candidate, images, labels) -> float:
        judged.append(candidate.weight.detach().clone())
        return float(len(judged))

    best, _ = run(
        network, standard.objective(None), spec(epochs=3, ema=0.75, **ONE), tmp_path / "c",
        scored=Scored("", score), on_epoch=lambda _: trained.append(network.weight.detach().clone()),
    )  # fmt: skip
    for weight, found in zip(trained, judged, strict=True):
        average = 0.75 * average + 0.25 * weight
        assert torch.allclose(found, average, atol=1e-6)
    assert torch.equal(best["weight"], judged[-1])
    assert not torch.allclose(best["weight"], trained[-1], atol=1e-3)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_scores_and_kept_weights_are_float32_whatever_training_is(tmp_path, precision) -> None:
    seen: dict[str, set[torch.dtype]] = {"step": set(), "score": set()}

    class Noting(standard.Standard):
        def loss(self, network, images, labels, share_of_radius):
            seen["step"].add(network.module(images.to(next(network.parameters()).dtype))[0].dtype)
            return super().loss(network, images, labels, share_of_radius)

    def score(candidate, images, labels) -> float:
        seen["score"].add(candidate(images).dtype)
        assert not torch.is_autocast_enabled("cpu")
        return accuracy(candidate, images, labels)

    network = Linear()
    best, done = run(network, Noting(), spec(), tmp_path / "c", precision=precision, scored=Scored("", score))
    assert seen["score"] == {torch.float32}
    assert {t.dtype for t in best.values()} == {torch.float32}
    fresh = Linear()
    fresh.load_state_dict(best)
    assert accuracy(fresh, *blobs(1, 40)) == done.best_score > 0.5


EVERYTHING = {
    "objective": "trades", "epochs": 4, "warmup_epochs": 2, "sam": 0.05, "schedule": "cosine", "rate_warmup_epochs": 1,
    "weight_decay": 0.05, "weight_decay_on": "weights", "clip_norm": 1.0, "ema": 0.9, "batch_size": 33,
    "augmentation": {"crop": 1, "flip": True, "jitter": 0.2, "randaugment": 2, "erasing": 0.5, "mixup": 0.8, "cutmix": 1.0},
    "selection": {"by": "robust", "attack": PGD, "patience": 3}, "attack": FGSM,
}  # fmt: skip


def everything(checkpoint: Path, **options):
    rules = spec(**EVERYTHING)
    objective = trades.objective(_attack(FGSM), beta=2, label_smoothing=0.1)
    return run(
        model(3), objective, rules, checkpoint, channels=3, augment=Augment(rules.augmentation, (3, 6, 6), 4),
        scored=scored(rules.selection, objective, _attack(PGD)), watch=_watch(FGSM, _attack(FGSM)), **options,
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_stopped_run_resumes_to_the_same_bytes_with_every_option_on(tmp_path, monkeypatch, optimizer) -> None:
    monkeypatch.setitem(EVERYTHING, "optimizer", optimizer)
    whole, history = everything(tmp_path / "whole")
    again, _ = everything(tmp_path / "again")

    def stop(done) -> None:
        if done.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        everything(tmp_path / "stopped", on_epoch=stop)
    torch.manual_seed(99)
    resumed, resumed_history = everything(tmp_path / "stopped")
    assert resumed_history == history
    assert len(history.watched) == history.epoch == 4
    assert all(torch.equal(whole[name], again[name]) and torch.equal(whole[name], resumed[name]) for name in whole)
    files = [(tmp_path / name).read_bytes() for name in ("whole", "again", "stopped")]
    assert files[0] == files[1] == files[2]


def test_the_scaler_of_half_precision_is_resumed_and_refuses_sam(tmp_path) -> None:
    """As 16-mixed has it on a GPU; a CPU has none."""
    state, fabric = {"scale": 1024.0, "_growth_tracker": 7}, Fabric(accelerator="cpu", devices=1)
    loaded: list[dict] = []
    fabric.strategy.precision.state_dict = lambda: state
    fabric.strategy.precision.load_state_dict = loaded.append

    def stop(done) -> None:
        if done.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model(), standard.objective(None), spec(), tmp_path / "c", fabric=fabric, on_epoch=stop)
    assert not loaded
    run(model(), standard.objective(None), spec(), tmp_path / "c", fabric=fabric)
    assert loaded == [state]
    with pytest.raises(BenchmarkError, match="sam cannot run with 16-mixed"):
        run(model(), standard.objective(None), spec(sam=0.1), tmp_path / "d", fabric=fabric)


def test_augmentations_do_what_they_are_called() -> None:
    images, labels = blobs(0, 64, 3)

    def augmented(**changes) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        found = Augment(Augmentation(**changes), (3, 6, 6), 4)(images, labels)
        assert found[0].shape == images.shape
        assert found[0].dtype == torch.float32
        assert 0 <= found[0].min() <= found[0].max() <= 1
        return found

    before = images.clone()
    flipped, same = augmented(flip=True)
    as_is = (flipped == images).all(-1).all(-1).all(-1)
    assert (as_is | (flipped == images.flip(-1)).all(-1).all(-1).all(-1)).all()
    assert 16 < as_is.sum() < 48
    assert torch.equal(same, labels)
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    shifts = [padded[..., i : i + 6, j : j + 6] for i in range(3) for j in range(3)]
    cropped, _ = augmented(crop=1)
    assert torch.stack([(cropped == s).flatten(1).all(1) for s in shifts]).any(0).all()
    assert not torch.equal(augmented(jitter=0.4)[0], images)
    assert not torch.equal(augmented(randaugment=2)[0], images)
    erased, _ = augmented(erasing=1.0)
    changed = erased != images
    assert changed.any()
    assert (erased[changed] == 0).all()
    mixed, shares = augmented(mixup=1.0)
    assert torch.allclose(shares.sum(1), torch.ones(64))
    weight = shares.gather(1, labels[:, None]).view(-1, 1, 1, 1)  # in blobs no image is mixed with one of its class
    assert torch.allclose(mixed, weight * images + (1 - weight) * images.flip(0), atol=1e-5)
    cut, shares = augmented(cutmix=1.0)
    own = (cut == images).flatten(1).float().mean(1)
    assert torch.allclose(own, shares.gather(1, labels[:, None])[:, 0], atol=1e-5)
    odd = Augment(Augmentation(mixup=1.0), (3, 6, 6), 4)(images[:5], labels[:5])
    assert torch.equal(odd[0][4], images[4])
    assert torch.equal(images, before), "the data itself may not change"


@pytest.mark.parametrize("channels", [1, 3])
def test_the_strongest_augmentations_run_on_grey_and_colour(channels) -> None:
    strong = Augmentation(randaugment=8, magnitude=10, crop=5, erasing=1.0, mixup=0.01, cutmix=100)
    images, labels = blobs(0, 120, channels)
    found, _ = Augment(strong, (channels, 6, 6), 4)(images, labels)
    assert found.shape == images.shape
    assert 0 <= found.min() <= found.max() <= 1


def test_selection_and_patience(tmp_path) -> None:
    scores = iter([0.5, 0.6, 0.55, 0.6, 0.7, 0.7])
    rules = spec(epochs=6, selection={"by": "clean", "patience": 2})
    calls: list[int] = []

    def score(*_) -> float:
        calls.append(1)
        return next(scores)

    best, done = run(model(), standard.objective(None), rules, tmp_path / "c", scored=Scored("", score))
    assert (done.epoch, done.best_epoch) == (4, 2)
    again, done = run(model(), standard.objective(None), rules, tmp_path / "c", scored=Scored("", score))
    assert (done.epoch, len(calls)) == (4, 4), "a run that stopped early does not go on when it is resumed"
    assert all(torch.equal(best[name], again[name]) for name in best)
    assert not exhausted(Selection(patience=2), epoch=9, best_epoch=1, warmup_epochs=8), "a warm-up does not count"
    assert not exhausted(Selection(), epoch=99, best_epoch=1, warmup_epochs=0)


def test_robust_selection_scores_under_its_own_attack() -> None:
    objective = standard.objective(None)
    network, (images, labels) = Linear().eval(), blobs(1, 40)
    labels = network(images).argmax(1)
    chosen = scored(Selection(by="robust", attack=PGD), objective, _attack(PGD))
    assert chosen.selected_by == "validation accuracy under pgd-Linf-0.1 (step_size 0.05, steps 3)"
    inside = (network.radius(images, labels, "Linf") > 0.1).float().mean().item()
    assert chosen.score(network, images, labels) == pytest.approx(inside, abs=0.1)
    assert inside < 0.9
    assert scored(Selection(by="clean"), objective, None).score(network, images, labels) == 1.0


class Dip(nn.Module):
    """Right at the image and at the full radius, wrong half way: what a network does that has overfitted to FGSM."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = 0.5 + torch.cos(2 * math.pi * (x.flatten(1)[:, 0] - 0.5) / self.eps + 0.2)
        return torch.stack([margin, torch.zeros_like(margin)], 1)


def test_catastrophic_overfitting_is_found() -> None:
    one_step = AttackSpec(attack="fgsm", norm="Linf", eps=0.2)
    watch = _watch(one_step, _attack(one_step))
    images, labels = torch.full((40, 1, 1, 1), 0.5), torch.zeros(40, dtype=torch.int64)
    torch.manual_seed(0)
    seen = watch(Dip(0.2).eval(), images, labels)
    assert seen[0] == 1.0
    assert seen[1] < 0.5  # from some starts PGD climbs out of the ball, where the network is right again
    assert watch.verdict([seen], selected=1, warmup_epochs=0, validation=40).found
    assert watch(nn.Flatten(), images.repeat(1, 2, 1, 1) + torch.tensor([0.3, 0]).view(1, 2, 1, 1), labels) == (
        0.0,
        0.0,
    )
    robust = images.repeat(1, 2, 1, 1) + torch.tensor([0.5, 0]).view(1, 2, 1, 1)
    assert watch(nn.Flatten(), robust, labels) == (1.0, 1.0)


def test_overfitting_counts_after_the_warmup_and_is_said() -> None:
    watch = Watch(_attack(FGSM), _attack(probe(FGSM)), probe(FGSM))
    seen = [(0.5, 0.0), (0.8, 0.7), (0.95, 0.05), (0.8, 0.7)]
    verdict = watch.verdict(seen, selected=3, warmup_epochs=1, validation=200)
    assert (verdict.found, verdict.epochs, verdict.trained, verdict.pgd, verdict.images) == (
        True,
        (3,),
        0.95,
        0.05,
        100,
    )
    assert verdict.words.startswith("CATASTROPHIC OVERFITTING in epochs 3: at the selected epoch 0.95 right")
    fine = watch.verdict(seen[:2], selected=2, warmup_epochs=1, validation=40)
    assert (fine.found, fine.images) == (False, 40)
    assert fine.words.startswith("no catastrophic overfitting")


def test_a_step_that_ruins_the_weights_stops_before_the_checkpoint(tmp_path) -> None:
    class Breaking(standard.Standard):
        """A finite loss whose gradient is NaN, in the last step of the second epoch."""

        steps = 0

        def loss(self, network, images, labels, share_of_radius):
            Breaking.steps += 1
            value = super().loss(network, images, labels, share_of_radius)
            return value + (0 * next(network.parameters()).sum()).sqrt() if Breaking.steps == 16 else value

    with pytest.raises(BenchmarkError, match=r"weights are not finite in epoch 2; .* after epoch 1, is kept in .*/c"):
        run(model(), Breaking(), spec(), tmp_path / "c")
    with safe_open(tmp_path / "c", "pt") as stored:
        assert json.loads(stored.metadata()["state"])["progress"]["epoch"] == 1
        assert all(torch.isfinite(stored.get_tensor(name)).all() for name in stored.keys())  # noqa: SIM118


def test_a_loss_that_is_nan_at_once_leaves_no_checkpoint(tmp_path) -> None:
    with pytest.raises(BenchmarkError, match=r"training loss is .* in epoch 1; .* No epoch was finished"):
        run(model(), standard.objective(None), spec(learning_rate=1e30, optimizer="sgd"), tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": {"attack": "fgsm", "norm": "Linf", "eps": 8}}, "pixels in [0, 1], so 8/255 is 0.0314"),
        ({"selection": {"by": "robust"}}, "needs an `attack`"),
        ({"selection": {"attack": PGD}}, "has no use for an `attack`"),
        ({"warmup_epochs": 6}, "leaves none of 6 epochs at the full radius"),
        ({"rate_warmup_epochs": 2}, "one_cycle has its own rise"),
        ({"schedule": "constant", "final_rate": 0.1}, "final_rate is where a cosine ends"),
        ({"schedule": "cosine", "rate_warmup_epochs": 6}, "should be below epochs 6"),
        ({"learning_rate": float("inf")}, "finite"),
        ({"ema": 1.0}, "less than 1"),
        (
            {"augmentation": {"mixupp": 1}},
            "unknown key 'variants.v.tracks.digits.training.augmentation.mixupp'; did you mean",
        ),
        ({"selection": {"patiense": 1}}, "did you mean 'patience'?"),
        ({"clip_nrom": 1}, "did you mean 'clip_norm'?"),
    ],
)
def test_bad_recipes_are_refused_in_one_line(changes, message) -> None:
    training = {"objective": "standard", "epochs": 6, "batch_size": 16, "learning_rate": 0.02, **changes}
    paper = {"title": "t", "authors": "a", "year": 2026}
    variants = {"v": {"title": "t", "tracks": {"digits": {"training": training}}}}
    with pytest.raises(ValidationError) as raised:
        Submission.model_validate({"name": "N", "summary": "s", "paper": paper, "variants": variants})
    line = str(explain(raised.value, Submission, "submission.yaml"))
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("changes", "shape", "message"),
    [
        (
            {"attack": {"attack": "pgd", "norm": "L2", "eps": 128}},
            (3, 32, 32),
            "L2 eps 128 is above 55.43, the diameter",
        ),
        ({"selection": {"by": "robust", "attack": {"attack": "pgd", "norm": "L2", "eps": 9}}}, (1, 8, 8), "above 8"),
        ({"augmentation": {"jitter": 0.1}}, (1, 8, 8), "colour images, these are 1x8x8"),
        ({"augmentation": {"randaugment": 2}}, (4, 8, 8), "1 or 3 channels"),
        ({"augmentation": {"crop": 8}}, (1, 8, 8), "out of sight"),
        ({"attack": {"attack": "pgd", "norm": "L2", "eps": 8}}, (1, 8, 8), None),
    ],
)
def test_recipes_that_do_not_fit_the_images_are_refused(changes, shape, message) -> None:
    found = misfit(spec(**changes), shape)
    assert (found is None) if message is None else (message in found)


def test_a_misfit_stops_a_row_with_its_place(monkeypatch) -> None:
    row = entry("digits", "Wong2020Fast", "linf")
    wrong = row.settings.training.model_copy(update={"augmentation": Augmentation(jitter=0.1)})
    settings = row.settings.model_copy(update={"training": wrong})
    monkeypatch.setattr("benchmark.submissions.settings", lambda *_: settings)
    with pytest.raises(BenchmarkError, match=r"submission\.yaml: variant linf on digits: augmentation\.jitter is for"):
        entry("digits", "Wong2020Fast", "linf")


def test_defaults_are_what_they_were() -> None:
    given = TrainingSpec(objective="standard", epochs=2, batch_size=2, learning_rate=0.1)
    assert not given.augmentation.any
    assert (given.sam, given.ema, given.clip_norm, given.schedule, given.weight_decay_on) == (
        0,
        0,
        0,
        "one_cycle",
        "all",
    )
