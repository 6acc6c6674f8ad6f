"""The module `autoattack` with its authors' interface, and robustbench through it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from tiny_models import Linear, Through, grey_images
from tiny_sources import LABELS, PIXELS, write_cifar
from torch import nn

import autoattack
from benchmark.attacks.engine import square
from benchmark.evaluation.run_attack import run_attack
from benchmark.specs.threat import AttackSpec


def test_signature_is_the_authors() -> None:
    names = list(inspect.signature(autoattack.AutoAttack.__init__).parameters)[1:]
    assert names == [
        "model", "norm", "eps", "seed", "verbose", "attacks_to_run", "version", "is_tf_model", "device", "log_path",
    ]  # fmt: skip
    run = inspect.signature(autoattack.AutoAttack.run_standard_evaluation)
    assert list(run.parameters)[1:] == ["x_orig", "y_orig", "bs", "return_labels", "state_path"]


@pytest.mark.slow
def test_results_have_the_authors_shapes_and_progress_is_printed_and_logged(tmp_path, capsys) -> None:
    model, images, log = Linear().eval().requires_grad_(False), grey_images(6), tmp_path / "log.txt"
    labels = model(images).argmax(1)
    attacker = autoattack.AutoAttack(
        model, norm="Linf", eps=float(model.radius(images, labels, "Linf").median()), seed=0, verbose=True,
        attacks_to_run=["apgd-ce", "apgd-t"], version="custom", device="cpu", log_path=log,
    )  # fmt: skip
    attacker.apgd_targeted.n_target_classes, attacker.apgd.n_iter, attacker.apgd_targeted.n_iter = 1, 30, 30
    adversarial = attacker.run_standard_evaluation(images, labels, bs=4)
    assert adversarial.shape == images.shape
    again, predicted = attacker.run_standard_evaluation(images, labels, bs=4, return_labels=True)
    assert torch.equal(again, adversarial)
    assert torch.equal(predicted, model(again).argmax(1))
    each = attacker.run_standard_evaluation_individual(images, labels, bs=4)
    assert set(each) == {"apgd-ce", "apgd-t"}
    assert attacker.attacks_to_run == ["apgd-ce", "apgd-t"]
    assert "robust accuracy after APGD-CE" in log.read_text()
    assert "robust accuracy after APGD-CE" in capsys.readouterr().err


def test_tensorflow_models_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="PyTorch"):
        autoattack.AutoAttack(Linear(), is_tf_model=True, device="cpu")


@pytest.mark.slow
def test_robustbench_benchmark_runs_and_agrees_with_our_call(tmp_path, monkeypatch) -> None:
    """`robustbench.eval.benchmark` itself, on a tiny CIFAR-10 archive, against our own harness on the same images."""
    from robustbench.eval import benchmark

    monkeypatch.setattr(square, "QUERIES", 50)
    torch.manual_seed(0)
    layers = nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 10)
    model = Through(nn.Sequential(*layers), lambda x: x - 0.5).eval()
    images = torch.from_numpy(PIXELS[14:].astype(np.float32) / 255)
    # the archive's labels are the model's predictions but for one image, so that clean accuracy is 5 of 6
    labels = model(images).argmax(1)
    labels[0] = (labels[0] + 1) % 10
    write_cifar(tmp_path, monkeypatch, "cifar10", np.concatenate([LABELS[:14], labels.numpy()]))
    eps = 2.5 / 255  # two of the five images stand, far from the edge, whatever the seed
    options = {"dataset": "cifar10", "threat_model": "Linf", "data_dir": str(tmp_path)}
    clean, robust = benchmark(model, n_examples=6, eps=eps, batch_size=6, **options)
    model.requires_grad_(False)
    spec = AttackSpec(attack="autoattack", norm="Linf", eps=eps)
    _, after = run_attack(model, images, labels, spec, batch_size=6, checkpoint=tmp_path / "state")
    assert clean == pytest.approx(5 / 6)
    assert robust == pytest.approx(float(after.correct.float().mean()))
    assert 0 < robust < clean
