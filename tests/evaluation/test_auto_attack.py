"""The public call `auto_attack`: what it returns, and what it leaves alone."""

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


@pytest.mark.sweep
@pytest.mark.parametrize(("engine", "norm"), few([("fast", "Linf"), ("fast", "L2")], [("reference", "Linf")]))
def test_robust_is_right_when_clean_and_beyond_the_exact_radius(model, images, labels, norm, engine) -> None:
    """Whether or not the caller's torch is in inference mode."""
    radius = model.radius(images, labels, norm)
    eps = float(radius[:11].median()) * 1.0001
    with torch.inference_mode():
        result = auto_attack(model, images.clone(), labels, norm=norm, eps=eps, engine=engine)
    assert result.clean.tolist() == [True] * 11 + [False]
    assert result.robust.tolist() == (radius > eps).tolist()
    assert 0 < int(result.robust.sum()) < 11
    broken = ~result.robust & result.clean
    moved = distances(result.adversarial, images)[norm]
    assert (moved <= eps + 1e-12).all()
    assert ((moved > 0) == broken).all()
    assert (model(result.adversarial).argmax(1)[broken] != labels[broken]).all()
    assert list(result.remaining) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert (result.engine, result.remaining["square"]) == (engine, int(result.robust.sum()))
    assert not result.warnings


def test_eps_0_gives_the_clean_accuracy_and_no_image_an_empty_result(model, images, labels) -> None:
    kept = images.clone()
    for eps in (0.1, 0):
        result = auto_attack(model, images, labels, norm="L2", eps=eps)
        assert eps or torch.equal(result.adversarial, images)
        result.adversarial.zero_()
    assert result.robust.tolist() == [True] * 11 + [False]
    assert torch.equal(images, kept), "the result is the caller's to write to"
    nothing = auto_attack(model, images[:0], labels[:0], norm="L2", eps=0.5)
    assert (nothing.adversarial.shape, nothing.robust.shape, nothing.robust.dtype) == ((0, 1, 6, 6), (0,), torch.bool)


@pytest.mark.parametrize(("fails", "precision"), [(False, "highest"), (False, "medium"), (True, "medium")])
def test_the_model_and_torch_are_left_as_they_were(model, images, labels, fails, precision) -> None:
    """The attack runs in evaluation mode and in float32, whatever the model's mode and torch's settings."""
    asked = []

    def asking(x: torch.Tensor) -> None:
        asked.extend([getattr(switch, name) for switch, name, _ in PRODUCTS["cpu"]])
        asked.append(torch.is_autocast_enabled("cpu"))

    linear = Linear(classes=6)
    dropping = nn.Sequential(nn.Dropout(0.9), Through(linear, asking), nn.Dropout(0.5)).train()
    dropping[0].eval()
    linear.bias.requires_grad_(False)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in dropping.state_dict().items()}
    plain = auto_attack(model, images, labels, norm="Linf", eps=0.02)
    usual = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        products = [getattr(switch, name) for switch, name, _ in PRODUCTS["cpu"]]
        with torch.autocast("cpu", torch.bfloat16):
            for engine in ("fast", "reference"):
                if fails:
                    with pytest.raises(BenchmarkError):
                        auto_attack(dropping, images, labels + 7, norm="Linf", eps=0.02, engine=engine)
                else:
                    result = auto_attack(dropping, images, labels, norm="Linf", eps=0.02, engine=engine)
                    assert torch.equal(result.robust, plain.robust)
        assert torch.get_float32_matmul_precision() == precision
        assert [getattr(switch, name) for switch, name, _ in PRODUCTS["cpu"]] == products
    finally:
        torch.set_float32_matmul_precision(usual)
    assert {*asked} == {"ieee", False}
    assert [module.training for module in dropping] == [False, True, True]
    assert (linear.weight.requires_grad, linear.bias.requires_grad, linear.weight.grad) == (True, False, None)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in dropping.state_dict().items())


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_of_a_random_model_robust_images_are_those_that_remain(model, images, labels, engine) -> None:
    torch.manual_seed(0)
    random = Through(model, after=lambda z, x: z + torch.randn(len(x), 6))
    result = auto_attack(random, images, labels, norm="Linf", eps=0.02, engine=engine)
    assert int(result.robust.sum()) == result.remaining["square"]
    passes = [text for text in result.warnings if "images the model is right in one pass and wrong in another" in text]
    assert int(passes[0].split()[1]) > 0, "otherwise this test compares two equal verdicts"
    assert any("randomized defense" in text for text in result.warnings)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "shown"),
    [
        (StringIO, None, ""),
        (StringIO, True, "autoattack-Linf-0.5: attacking 8 of 12 images with apgd-ce, batch 1 of 2\n"),
        (Terminal, None, "0:00:0"),  # how long it has run
        (Terminal, False, ""),
    ],
)
def test_progress_is_shown_on_a_terminal_or_on_request(
    model, images, labels, stream, progress, shown, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())
    auto_attack(model, images, labels, norm="Linf", eps=0.5, batch_size=8, progress=progress)
    text = sys.stderr.getvalue()
    assert shown in text
    assert ("attacking 3 of 12 images with apgd-ce, batch 2 of 2" in text) == bool(text) == bool(shown)
    assert ("\x1b" in text) == (bool(shown) and stream is Terminal), "no control codes in a log"
    assert not capsys.readouterr().out


@pytest.mark.slow
def test_an_image_fares_the_same_in_any_batch(model, images, labels) -> None:
    eps = float(model.radius(images, labels, "L2")[:11].median())
    whole, small = (auto_attack(model, images, labels, norm="L2", eps=eps, batch_size=size) for size in (128, 5))
    assert torch.equal(whole.robust, small.robust)
    assert torch.equal(whole.adversarial, small.adversarial)
