"""The public call `benchmark.evaluation.auto_attack.auto_attack`: what it returns, and what it leaves alone."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
import torch
from searched import few
from tiny_models import Linear, Through
from torch import nn

from benchmark.attacks.ball import distances
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.evaluation.own_model import PRODUCTS
from benchmark.runtime.errors import BenchmarkError


@pytest.mark.parametrize(("engine", "norm"), few([("fast", "Linf"), ("fast", "L2")], [("reference", "Linf")]))
def test_robust_is_right_when_clean_and_beyond_the_exact_radius(model, images, labels, norm, engine) -> None:
    radius = model.radius(images, labels, norm)
    eps = float(radius[:11].median())
    found = auto_attack(model, images, labels, norm=norm, eps=eps * 1.0001, engine=engine)
    assert found.robust.tolist() == (radius > eps * 1.0001).tolist()
    assert 0 < int(found.robust.sum()) < 11
    broken = ~found.robust & (torch.arange(12) < 11)
    moved = distances(found.adversarial, images)[norm]
    assert (moved <= eps * 1.0001 + 1e-12).all()
    assert ((moved > 0) == broken).all()
    with torch.no_grad():
        assert (model(found.adversarial).argmax(1)[broken] != labels[broken]).all()
    assert list(found.remaining) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert found.engine == engine
    assert found.remaining["square"] == int(found.robust.sum())
    assert not found.warnings


def test_an_image_fares_the_same_in_any_batch(model, images, labels) -> None:
    eps = float(model.radius(images, labels, "L2")[:11].median())
    whole = auto_attack(model, images, labels, norm="L2", eps=eps)
    small = auto_attack(model, images, labels, norm="L2", eps=eps, batch_size=5)
    assert torch.equal(whole.robust, small.robust)
    assert torch.equal(whole.adversarial, small.adversarial)


def test_eps_0_gives_the_clean_accuracy_and_no_image_an_empty_result(model, images, labels) -> None:
    found = auto_attack(model, images, labels, norm="Linf", eps=0)
    assert found.robust.tolist() == [True] * 11 + [False]
    assert torch.equal(found.adversarial, images)
    nothing = auto_attack(model, images[:0], labels[:0], norm="L2", eps=0.5)
    assert (nothing.adversarial.shape, nothing.robust.shape) == ((0, 1, 6, 6), (0,))
    assert nothing.robust.dtype == torch.bool
    kept = images.clone()
    for eps in (0, 0.1):
        auto_attack(model, images, labels, norm="L2", eps=eps).adversarial.zero_()
    assert torch.equal(images, kept), "the result is the caller's to write to"


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_torch_are_left_as_they_were(images, labels, fails) -> None:
    model = nn.Sequential(nn.Dropout(0.5), Linear(classes=6)).train()
    model[0].eval()
    model[1].bias.requires_grad_(False)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    products = [getattr(switch, name) for switch, name, _ in PRODUCTS["cpu"]]
    if fails:
        with pytest.raises(BenchmarkError):
            auto_attack(model, images, labels + 7, norm="Linf", eps=0.01)
    else:
        for engine in ("fast", "reference"):
            auto_attack(model, images, labels, norm="Linf", eps=0.5, engine=engine)
    assert [getattr(switch, name) for switch, name, _ in PRODUCTS["cpu"]] == products
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    linear = model[1]
    assert (linear.weight.requires_grad, linear.bias.requires_grad, linear.weight.grad) == (True, False, None)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("precision", ["medium", "highest"])
def test_torch_set_to_another_precision_stays_so_and_the_attack_is_in_float32(model, images, labels, precision) -> None:
    asked = []

    def asking(x: torch.Tensor) -> None:
        asked.extend([getattr(switch, name) for switch, name, _ in PRODUCTS["cpu"]])
        asked.append(torch.is_autocast_enabled("cpu"))

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with torch.autocast("cpu", torch.bfloat16):
            auto_attack(Through(model, asking), images, labels, norm="Linf", eps=0.5)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(asked) == {"ieee", False}


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_of_a_random_model_robust_images_are_those_that_remain(model, images, labels, engine) -> None:
    torch.manual_seed(0)
    random = Through(model, after=lambda z, x: z + torch.randn(len(x), 6))
    found = auto_attack(random, images, labels, norm="Linf", eps=0.02, engine=engine)
    assert int(found.robust.sum()) == found.remaining["square"]
    doubted = [text for text in found.warnings if "images the model is right in one pass and wrong in another" in text]
    assert doubted, "otherwise this test compares two equal verdicts"
    assert int(doubted[0].split()[1]) > 0
    assert any("randomized defense" in text for text in found.warnings)


def test_a_model_in_training_mode_is_attacked_as_in_evaluation_mode_and_under_inference_mode(
    model, images, labels
) -> None:
    eps = float(model.radius(images, labels, "Linf")[:11].median())
    noisy = nn.Sequential(nn.Dropout(0.9), model).train()
    with torch.inference_mode():
        settled = auto_attack(model, images.clone(), labels, norm="Linf", eps=eps)
    assert torch.equal(auto_attack(noisy, images, labels, norm="Linf", eps=eps).robust, settled.robust)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "shown"),
    [(StringIO, None, False), (StringIO, True, True), (Terminal, None, True), (Terminal, False, False)],
)
def test_progress_is_shown_on_a_terminal_or_where_it_is_asked_for(
    model, images, labels, stream, progress, shown, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())
    auto_attack(model, images, labels, norm="Linf", eps=0.5, batch_size=8, progress=progress)
    said = sys.stderr.getvalue()
    assert bool(said) == shown
    if shown and stream is StringIO:
        first, second = said.splitlines()[:2]
        assert first == "autoattack-Linf-0.5: attacking 8 of 12 images with apgd-ce, batch 1 of 2"
        assert second.endswith("attacking 3 of 12 images with apgd-ce, batch 2 of 2")
        assert "\x1b" not in said, "no control codes in a log"
    elif shown:
        assert "attacking 3 of 12 images with apgd-ce" in said
        assert "0:00:0" in said, "how long it has run"
    assert not capsys.readouterr().out
