"""On a CUDA device: training, attacks and certificates run there and agree with the CPU but for rounding."""

from __future__ import annotations

import json

import pytest
import torch
from components import ATTACKED, EVERY, built, recipe
from tiny_project import edit
from tiny_training import blobs

from benchmark.attacks import pgd
from benchmark.attacks.engine import square
from benchmark.attacks.pieces import room
from benchmark.attacks.prediction import predict
from benchmark.certificates.local import certify
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.evaluation.run_attack import run_attack
from benchmark.runtime.torch_setup import start
from benchmark.specs import methods, submissions, tracks
from benchmark.specs.run_settings import TrainRun
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.training import Augmentation
from benchmark.training.augment import Augment
from benchmark.training.capture import CudaRecorder
from benchmark.training.fitting import fabric_of
from benchmark.training.ranks import seed_draws
from benchmark.training.steps import Steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")]


def model(device: str, row: tuple[str, str] = ("Havens2024LoFAST", "mean_pool")) -> torch.nn.Module:
    torch.manual_seed(0)
    built = methods.build(submissions.load(row[0]), row[1], tracks.load("digits"))
    return built.to(device).eval().requires_grad_(False)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_certified_radii_agree_with_the_cpu(images) -> None:
    labels = model("cpu")(images).argmax(1)
    here = certify(model("cpu"), images, labels)
    there = certify(model("cuda"), images.cuda(), labels.cuda())
    assert torch.allclose(here, there.cpu(), rtol=1e-6, atol=1e-9)


def test_augmented_images_stay_on_the_device_and_are_those_of_the_cpu(monkeypatch) -> None:
    """From the same draws."""
    one_by_one = Augment._draws
    monkeypatch.setattr(Augment, "_draws", lambda self, n, device: one_by_one(self, n, torch.device("cpu")).to(device))
    images, labels = torch.rand(30, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 4
    for changes in (
        {"crop": 2, "flip": True},
        {"crop": 1, "erasing": 1.0},
        {"jitter": 0.4},
        {"mixup": 1.0},
        {"randaugment": 2},
    ):
        found = []
        for device in ("cpu", "cuda"):
            seed_draws(0, 0)
            found.append(Augment(Augmentation(**changes), (3, 8, 8), 4)(images.to(device), labels.to(device)))
        (here, own), (there, theirs) = found
        assert (there.device.type, theirs.device.type) == ("cuda", "cuda"), changes
        assert torch.allclose(here, there.cpu(), atol=1e-6), changes
        assert torch.allclose(own.double(), theirs.cpu().double()), changes


def test_crops_and_flips_are_drawn_all_at_once_there() -> None:
    drawn = Augment(Augmentation(crop=2, flip=True), (3, 8, 8), 4)._draws(4000, torch.device("cuda"))[..., 0].cpu()
    assert [sorted(set(column.tolist())) for column in drawn.T] == [[0, 1, 2, 3, 4]] * 2 + [[0, 1]]
    assert 0.45 < float(drawn[:, 2].double().mean()) < 0.55


def test_a_radius_that_grows_is_captured_anew(monkeypatch, capsys) -> None:
    """With draws, and batches that come out even: the step before the radius changes ran from a graph."""
    monkeypatch.setattr("benchmark.training.steps.compiled", lambda network: network)
    steps = steps_of("adversarial", "fgsm", "32-true", captured=True, epochs=6, warmup_epochs=4)
    images, labels = (t.cuda() for t in blobs(0, 96))
    losses = [steps.epoch(images, labels, epoch, 0) for epoch in range(6)]
    assert all(torch.isfinite(torch.tensor(losses)))
    assert "is not captured" not in capsys.readouterr().out


def test_a_step_that_waits_for_the_device_is_not_captured_and_training_goes_on(monkeypatch, capsys) -> None:
    monkeypatch.setattr("benchmark.training.steps.compiled", lambda network: network)

    class Waits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(36, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x * float(x.max()))

    rules = recipe("standard", "")
    device, fabric = torch.device("cuda", 0), fabric_of(TrainRun(device="cuda:0"))
    steps = Steps(Waits(), built(rules)[1], rules, fabric, blobs(0, 16)[0], recorder=CudaRecorder(device))
    images, labels = (t.cuda() for t in blobs(0, 96))
    assert all(torch.isfinite(torch.tensor(steps.epoch(images, labels, epoch, 0))) for epoch in range(2))
    assert "it waits for the device" in capsys.readouterr().out


def test_attacks_run_and_their_verdicts_hold_on_the_cpu(images, tmp_path) -> None:
    labels = model("cpu")(images).argmax(1)
    spec = AttackSpec(attack="pgd", norm="L2", eps=0.5, parameters={"steps": 20, "step_size": 0.1})
    state, after = run_attack(model("cuda"), images.cuda(), labels.cuda(), spec, batch_size=20, checkpoint=tmp_path / "state")
    again = predict(model("cpu"), state.adversarial.cpu(), labels, 20)
    assert torch.allclose(again.margin, after.margin.cpu(), atol=1e-4)


@pytest.mark.parametrize("row", [("Havens2024LoFAST", "mean_pool"), ("Dosovitskiy2021ViT", "standard")])
@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_the_fast_engine_breaks_the_same_images_as_on_the_cpu(images, norm, row, monkeypatch) -> None:
    """The random streams are the same; rounding may move an image that is broken or not by a hair: one of 20 at most."""
    monkeypatch.setattr(square, "QUERIES", 300)
    labels = model("cpu", row)(images).argmax(1)
    here = auto_attack(model("cpu", row), images, labels, norm=norm, eps=0.05)
    there = auto_attack(model("cuda", row), images, labels, norm=norm, eps=0.05)
    assert there.adversarial.device.type == "cpu"
    assert int((here.robust != there.robust).sum()) <= 1
    again = predict(model("cpu", row), there.adversarial, labels, 20)
    assert (again.margin[~there.robust] <= 1e-4).all()


def steps_of(objective: str, attack: str, precision: str, captured: bool, **changes) -> Steps:
    rules = recipe(objective, attack, **changes)
    network, loss = built(rules)
    for part in network.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0  # so that a run depends on its starts alone
    device = torch.device("cuda", 0)
    start(device)
    fabric = fabric_of(TrainRun(device="cuda:0", precision=precision))
    recorder = CudaRecorder(device) if captured else None
    return Steps(network, loss, rules, fabric, blobs(0, 16)[0], recorder=recorder)


@pytest.mark.parametrize(("objective", "attack"), EVERY)
def test_every_objective_trains_in_mixed_precision(objective, attack) -> None:
    steps = steps_of(objective, attack, "bf16-mixed", captured=False)
    images, labels = (t.cuda() for t in blobs(0, 64))
    losses = [steps.epoch(images, labels, epoch, 0) for epoch in range(2)]
    assert all(torch.isfinite(torch.tensor(losses)))


@pytest.mark.parametrize(("objective", "attack"), EVERY)
@pytest.mark.parametrize("changes", [{}, {"sam": 0.05, "optimizer": "sgd"}], ids=["adamw", "sam"])
def test_a_captured_step_is_the_step(objective, attack, changes, monkeypatch, capsys) -> None:
    """The same weights but for rounding, from the same draws; what cannot be captured says so and runs as it is."""
    monkeypatch.setattr("benchmark.training.steps.compiled", lambda network: network)
    images, labels = (t.cuda() for t in blobs(0, 104))  # six batches of 16 and one of 8
    weights = {}
    for captured in (False, True):
        steps = steps_of(objective, attack, "32-true", captured, **changes)
        for epoch in range(2):
            steps.epoch(images, labels, epoch, 0)
        weights[captured] = [p.detach().cpu() for p in steps.model.parameters()]
    repeats = bool(changes) and objective in ATTACKED  # starts drawn at random, twice the same
    assert ("is not captured" in capsys.readouterr().out) == (objective == "projected" or repeats)
    for one, other in zip(*weights.values(), strict=True):
        assert torch.allclose(one, other, atol=2e-3), (one - other).abs().max()


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_pgd_takes_the_steps_that_it_takes_on_the_cpu(norm, images) -> None:
    network = model("cpu")
    labels, threat = network(images).argmax(1), ThreatModel(norm=norm, eps=0.1)
    options = {"seed": 0, "steps": 5, "step_size": 0.02, "random_start": False}
    here = pgd.attack(network, images, labels, threat, **options)
    there = pgd.attack(model("cuda"), images.cuda(), labels.cuda(), threat, **options)
    assert float((here - there.cpu()).abs().mean()) < 1e-3


def test_memory_is_found_by_trial(images) -> None:
    assert room(model("cuda"), images.cuda(), 100) == 80


def test_a_row_trains_and_is_attacked_on_the_device_in_the_sandbox(project) -> None:
    """By the stages themselves, which need no DVC."""
    project.add("Tiny2026Net", epochs=2)
    (project.root / "params.yaml").write_text(
        "arithmetic: native\nwall: full\ntrain: {device: cuda, compile: true}\nevaluate: {device: cuda}\n"
    )
    project.run("benchmark.pipeline.inputs", "tiny")
    project.run("benchmark.protocol", "data", "tiny")
    for stage in ("train", "evaluate"):
        project.run("benchmark.protocol", stage, "tiny", "Tiny2026Net-small")
    row = project.root / "work/tiny/Tiny2026Net-small"
    training = json.loads((row / "train/fields.json").read_text())
    assert training["wall"] == "landlock, seccomp, namespaces, limits"
    assert training["training"]["device"] == "cuda"
    for stage in ("train", "evaluate"):
        cost = json.loads((row / f"times/{stage}.json").read_text())
        assert cost["device_seconds"] > 0
        assert cost["device_memory"] > 2**20


@pytest.mark.slow
def test_the_pipeline_trains_on_the_device(project) -> None:
    project.add("Tiny2026Net", epochs=2)
    edit(project.root / "params.yaml", "device: cpu", "device: cuda")
    project.rvb("repro", "--track", "tiny")
    assert (project.root / "work/tiny/Tiny2026Net-small/record/record.json").exists()
