"""Models, labels and habits of real use: each is taken as its owner means it, or refused in one line, and left as it was."""

from __future__ import annotations

import logging
import logging.config
import sys
import threading

import pytest
import torch
from pyautoattack import checks
from tiny_models import Linear, Through
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from benchmark.evaluation import own_model
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.runtime.errors import BenchmarkError
from benchmark.verdicts import ball
from benchmark.verdicts.internals import internals


def nothing(*_: object) -> None: ...


def attacked(model: nn.Module, images, labels, **options):
    return auto_attack(model, images, labels, **({"norm": "Linf", "eps": 0.02} | options))


def test_no_setting_of_logging_hides_a_warning_or_makes_one(model, images, labels) -> None:
    soft = Through(model, after=lambda z, x: (10 * z).softmax(1))
    level = logging.getLogger().level
    for hide in (
        lambda: logging.disable(50),
        lambda: logging.config.dictConfig({"version": 1}),
        lambda: logging.getLogger().setLevel(60),
        lambda: logging.getLogger("auto-attack").setLevel(60),
    ):
        hide()
        try:
            found = attacked(soft, images, labels)
        finally:
            logging.disable(logging.NOTSET)
            logging.getLogger().setLevel(level)
            logging.getLogger("auto-attack").setLevel(logging.NOTSET)
            for logger in logging.root.manager.loggerDict.values():
                logger.disabled = False
        assert any("probability distribution" in words for words in found.warnings)
    talks = Through(model, before=lambda x: logging.getLogger("theirs").warning("resizing 8x8 to 8x8"))
    assert not attacked(talks, images, labels).warnings


@pytest.mark.parametrize(
    "aside",
    [
        lambda: sys.settrace(None),
        lambda: (lambda kept: (sys.settrace(None), sys.settrace(kept)))(sys.gettrace()),
        lambda: checks.funcs.clear(),
    ],
    ids=["put aside", "put aside and back", "its list emptied"],
)
def test_a_model_that_takes_gradients_inside_is_found_whatever_it_does_to_the_tracer(model, images, aside) -> None:
    kept = dict(checks.funcs)

    def hides(x: torch.Tensor) -> None:
        aside()
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            torch.autograd.grad(model(leaf).sum(), leaf)

    try:
        said = internals(Through(model, before=hides), images).dynamic
    finally:
        checks.funcs.update(kept)
    assert len(said) == 1
    assert "dynamic defense" in said[0] or "puts Python's tracing aside" in said[0]
    assert internals(model, images).dynamic == ()


def test_switches_of_a_gpu_are_those_that_models_read() -> None:
    """As far as a machine without one shows it."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    with own_model._in_float32("cuda"):
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)
        with torch.backends.cudnn.flags(enabled=False):
            pass
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


def test_what_the_model_changes_comes_back(model, images, labels) -> None:
    """Statistics that its own `train` keeps moving, weights, modes, the tracer, torch's switches."""

    class Moves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("hidden", torch.zeros(()))
            self.scale, self.shift = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            with torch.no_grad():
                self.scale += 1
            self.shift = nn.Parameter(self.shift + 1)
            self.hidden.data.add_(1)
            torch.set_grad_enabled(torch.is_grad_enabled())
            return model(x)

    def tracer(*_):
        return None

    moves = Moves().train()
    own = dict(moves.named_parameters())
    sys.settrace(tracer)
    try:
        attacked(moves, images, labels)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert (moves.seen, moves.hidden, moves.scale, moves.shift) == (0, 0, 1, 1)
    assert all(parameter is own[name] for name, parameter in moves.named_parameters())
    assert (moves.scale.requires_grad, moves.training, torch.is_grad_enabled()) == (True, True, True)


def test_threads_may_share_a_model(model, images, labels) -> None:
    shared, before = nn.Sequential(model).train(), torch.backends.mkldnn.matmul.fp32_precision
    threads = [threading.Thread(target=attacked, args=(shared, images, labels)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared.training
    assert all(p.requires_grad for p in shared.parameters())
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_clean_images_are_told_and_wrong_labels_warned_of(model, images, labels) -> None:
    found = attacked(model, images, labels)
    assert found.clean.tolist() == [True] * 11 + [False]
    twice = torch.cat([images, images]), torch.cat([labels, labels])
    wrong = attacked(model, twice[0], (twice[1] + 1) % 6)
    assert not wrong.clean.any() or int(wrong.clean.sum()) <= 2
    assert any("no more often than chance" in words for words in wrong.warnings)
    assert not any("chance" in words for words in attacked(model, *twice).warnings)


@pytest.mark.parametrize(
    "doing",
    [
        lambda x: nothing(torch.backends.cudnn.flags(enabled=False).__enter__()),
        lambda x: nothing(torch.backends.cudnn.allow_tf32),
        lambda x: nothing(torch.is_grad_enabled() and torch.autograd.grad((x.detach().requires_grad_() ** 2).sum(), [torch.ones(1, requires_grad=True)], allow_unused=True)),
        lambda x: nothing(1 / (_get_current_dispatch_mode() is None)),
    ],
    ids=["cudnn.flags", "allow_tf32", "a gradient of its own", "operations that cannot be counted"],
)  # fmt: skip
def test_what_a_model_reads_or_computes_beside_stops_no_attack(model, images, labels, doing) -> None:
    with torch.backends.cudnn.flags():
        found = attacked(Through(model, before=doing), images, labels)
    assert torch.equal(found.robust, attacked(model, images, labels).robust)


def test_models_of_other_kinds_are_attacked_as_the_plain_one(model, images, labels) -> None:
    plain = attacked(model, images, labels)
    kinds = {
        "exported": torch.export.export(model.eval(), (images,)).module(),
        "scripted": torch.jit.trace(model, images),
        "sparse buffer": nn.Sequential(model),
        "script": torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(36, 6))),
    }
    kinds["sparse buffer"].register_buffer("mask", torch.eye(3).to_sparse())
    for kind, other in kinds.items():
        if kind == "exported":  # for batches of its own size alone
            with pytest.raises(BenchmarkError, match="the model fails on one image"):
                attacked(other, images, labels)
            continue
        found = attacked(other, images, labels)
        assert kind == "script" or torch.equal(found.robust, plain.robust), kind


def test_what_a_later_pass_raises_is_one_line_too(model, images, labels) -> None:
    """With gradients its conversion to numpy fails; without them, it does not."""
    numpy = Through(model, before=lambda x: torch.from_numpy(x.numpy()))
    with pytest.raises(
        BenchmarkError, match=r"the model, or the evaluation of it, fails: RuntimeError: Can't call numpy"
    ):
        attacked(numpy, images, labels)


def test_a_model_that_does_not_go_into_evaluation_mode_is_left_in_its_own(model, images, labels) -> None:

    class Stays(nn.Sequential):
        def train(self, mode: bool = True):
            if not mode:
                self[0].training = False
                raise KeyError("mode")
            return super().train(mode)

    stays = Stays(nn.Dropout(0.1), model).train()
    with pytest.raises(BenchmarkError, match="does not go into evaluation mode: KeyError"):
        attacked(stays, images, labels)
    assert stays.training
    assert stays[0].training


@pytest.mark.parametrize(
    ("classes", "right", "warned"), [(2, 24, False), (2, 13, True), (3, 16, False), (10, 20, False), (10, 3, True)]
)
def test_labels_are_doubted_where_chance_explains_what_is_right(classes, right, warned) -> None:
    assert bool(own_model.doubts(torch.arange(24) < right, classes)) == warned


def test_a_device_without_float64_gives_the_same_verdicts(model, images, labels, monkeypatch) -> None:
    plain = {norm: attacked(model, images, labels, norm=norm, eps=0.05) for norm in ("Linf", "L2")}

    def refuse(self):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    monkeypatch.setattr(torch.Tensor, "double", refuse)
    monkeypatch.setattr(ball, "NO_FLOAT64", ("cpu",))
    for norm, before in plain.items():
        assert torch.equal(attacked(model, images, labels, norm=norm, eps=0.05).adversarial, before.adversarial)


def test_pixels_that_rounding_put_outside_are_put_back(model, images, labels) -> None:
    images[0, 0, 0, 0], images[1, 0, 0, 0] = 1.0000001, -3e-8
    found = attacked(model, images, labels)
    assert 0 <= found.adversarial.min() <= found.adversarial.max() <= 1


def test_one_image_without_a_finite_gradient_costs_no_other_its_verdict(model, images, labels) -> None:
    images[3] = 0
    odd = Through(model, after=lambda z, x: z + 0 * x.flatten(1).pow(2).sum(1, keepdim=True).sqrt())
    found = attacked(odd, images, labels)
    plain = attacked(model, images, labels)
    others = torch.arange(12) != 3
    assert torch.equal(found.robust[others], plain.robust[others])
    assert any("not finite at images 3" in words for words in found.warnings)


@pytest.mark.parametrize("everywhere", [True, False], ids=["everywhere", "away from the clean images"])
def test_a_model_whose_gradients_are_not_finite_is_not_judged(model, images, labels, everywhere) -> None:
    """Its logits are the plain model's; only where they are asked for is every gradient NaN."""

    def blinds(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        clean = (x[:, None].detach() == images).flatten(2).all(2).any(1)
        hidden = (x.flatten(1) - x.flatten(1).detach()).pow(2).sum(1, keepdim=True).sqrt()  # 0, of gradient NaN
        return z + hidden * (torch.ones_like(clean) if everywhere else ~clean)[:, None]

    with pytest.raises(BenchmarkError, match=r"input gradient is not finite \(NaN or infinity\) at \d+% of the points"):
        attacked(Through(model, after=blinds), images, labels, eps=0.004)


@pytest.mark.parametrize("classes", [2, 3])
def test_two_and_three_classes_are_attacked_without_the_part_that_is_not_defined(model, images, classes) -> None:
    torch.manual_seed(0)
    few = Linear(classes=classes)
    labels = few(images).argmax(1)
    radius = few.radius(images, labels, "Linf")
    eps = float(radius.median())
    found = attacked(few, images, labels, eps=eps)
    assert found.robust[radius > eps].all()
    assert not found.robust[radius < 0.95 * eps].any()
    assert any(f"this model has {classes}: AutoAttack ran without it" in words for words in found.warnings)
