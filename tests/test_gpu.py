"""On a CUDA device: training, attacks and certificates run there and agree with the CPU but for rounding."""

from __future__ import annotations

import pytest
import torch

from benchmark.attacks.engine import square
from benchmark.certificates.local import certify
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.evaluation.run_attack import run_attack
from benchmark.loading import methods, submissions, tracks
from benchmark.specs.threat import AttackSpec
from benchmark.specs.training import Augmentation
from benchmark.training import draws
from benchmark.training.augment import Augment
from benchmark.verdicts.prediction import predict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


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


def test_augmented_images_stay_on_the_device_and_are_those_of_the_cpu() -> None:
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
            draws.seed(0, 0)
            found.append(Augment(Augmentation(**changes), (3, 8, 8), 4)(images.to(device), labels.to(device)))
        (here, own), (there, theirs) = found
        assert (there.device.type, theirs.device.type) == ("cuda", "cuda"), changes
        assert torch.allclose(here, there.cpu(), atol=1e-6), changes
        assert torch.allclose(own.double(), theirs.cpu().double()), changes


def test_attacks_run_and_their_verdicts_hold_on_the_cpu(images, tmp_path) -> None:
    labels = model("cpu")(images).argmax(1)
    spec = AttackSpec(attack="pgd", norm="L2", eps=0.5, parameters={"steps": 20, "step_size": 0.1})
    state, after = run_attack(
        model("cuda"), images.cuda(), labels.cuda(), spec, batch_size=20, checkpoint=tmp_path / "state"
    )
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


@pytest.mark.slow
def test_the_pipeline_trains_on_the_device(project) -> None:
    project.add("Tiny2026Net", epochs=2)
    params = project.root / "params.yaml"
    params.write_text(params.read_text().replace("device: cpu", "device: cuda"))
    project.rvb("repro", "--track", "tiny")
    assert (project.root / "work/tiny/Tiny2026Net-small/record/record.json").exists()
