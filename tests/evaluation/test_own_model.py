"""A user's model, images, labels, radii and habits: each is taken as meant, or refused in one line, and left as it was."""

from __future__ import annotations

import logging
import logging.config
import math
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from pyautoattack import checks
from tiny_models import Linear, Through, grey_images
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from benchmark.attacks import ball
from benchmark.attacks.internals import internals
from benchmark.evaluation import own_model
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.evaluation.evaluate import evaluate
from benchmark.records.accuracy import chance_warnings
from benchmark.runtime.errors import BenchmarkError


def attacked(model: nn.Module, images, labels, **options):
    return auto_attack(model, images, labels, **({"norm": "Linf", "eps": 0.02} | options))


def altered(change, before=lambda x: None) -> nn.Module:
    return Through(Linear(classes=6), before, after=lambda z, x: change(z))


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("change", [lambda x: x.sub_(0.5).div_(0.25), lambda x: x.clamp_(0, 1), lambda x: x.data.mul_(2)])
def test_a_model_that_changes_its_input_is_refused_and_the_images_stay(model, images, labels, change, engine) -> None:
    """By value, by an operation that changes nothing here, and behind autograd's back."""
    kept = images.clone()
    for eps in (0, 0.1):
        with pytest.raises(BenchmarkError, match="the model changes its input in place"):
            attacked(Through(model, change), images, labels, eps=eps, engine=engine)
    assert torch.equal(images, kept)


GREY = grey_images(12)
BAD = [
    ("images", GREY * 3, r"images run from .* give pixels in \[0, 1\]"),
    ("images", GREY * math.nan, r"give pixels in \[0, 1\]"),
    ("images", torch.ones(12, 1, 6, 6, dtype=torch.uint8), r"torch\.uint8 .* give floats"),
    ("images", GREY[0], r"give floats \(n, c, h, w\)"),
    ("images", GREY.numpy(), r"images are a ndarray; give a torch\.Tensor"),
    ("images", torch.zeros(12, 1, 0, 6), r"give floats \(n, c, h, w\)"),
    ("labels", torch.full((12,), 6), "label 6 is outside 0 to 5"),
    ("labels", torch.full((12,), -1), "label -1 is outside 0 to 5"),
    ("labels", torch.zeros(11, dtype=torch.long), r"labels are torch\.int64 \(11,\) for 12 images"),
    ("labels", torch.zeros(12), "give one integer an image"),
    ("labels", [0] * 12, r"labels are a list; give a torch\.Tensor"),
    ("eps", 8, "Linf eps 8 is above 1; radii are in pixels"),
    ("eps", torch.full((12, 1), 0.1), r"eps has shape \(12, 1\); give one number"),
    *(("eps", eps, f"eps {eps!r} is no radius") for eps in (-0.1, math.nan, math.inf, 1j, True, "8 of 255")),
    *(("eps", eps, "is no radius") for eps in (np.bool_(True), torch.tensor(True), np.float32("nan"))),
    ("norm", "L1", "unknown norm 'L1'; give one of Linf and L2"),
    ("norm", None, "unknown norm None"),
    ("engine", "fsat", "unknown engine 'fsat'; did you mean 'fast'"),
    ("device", "cuda", r"the model is on cpu, not on cuda; move it with model\.to\('cuda'\)"),
    ("device", "gpu", "unknown device 'gpu'"),
    ("batch_size", 0, "batch_size must be a whole number from 1 on, not 0"),
    ("batch_size", 2.5, r"batch_size must be a whole number from 1 on, not 2\.5"),
    ("batch_size", True, "batch_size must be a whole number from 1 on, not True"),
    ("seed", -1, "seed must be a whole number from 0 to .*, not -1"),
    ("seed", None, "seed must be a whole number .*, not None"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_bad_input_is_refused_in_one_line(model, images, labels, name, value, message) -> None:
    options = {"images": images, "labels": labels} | {name: value}
    with pytest.raises(BenchmarkError, match=message):
        attacked(model, options.pop("images"), options.pop("labels"), **options)
    with pytest.raises(BenchmarkError, match="L2 eps 128 is above 6, the diameter of"):
        attacked(model, images, labels, norm="L2", eps=128)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.head = nn.MultiheadAttention(36, 4), nn.Linear(36, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(2)  # (n, 1, 36), of which it takes the first for tokens
        return self.head(self.attention(x, x, x)[0][:, 0])


def fails(error: Exception) -> nn.Module:
    def throw(x: torch.Tensor) -> None:
        raise error

    return Through(Linear(classes=6), throw)


FAILS = "^the model fails on one image of float32 on cpu: "
LATER = r"the model, or the evaluation of it, fails: RuntimeError: Can't call numpy"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Identity(), r"returns \(1, 1, 6, 6\) for one image; it must return logits"),
        *(
            (Linear(classes=6).to(dtype), rf"{FAILS}.*its weights are {dtype}: call model.float\(\)")
            for dtype in (torch.float16, torch.bfloat16, torch.float64)
        ),
        (Linear(classes=6).to("meta"), "the model is on meta, where it has no weights"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(6)), "lazy layers without weights"),
        (lambda x: x, r"the model is a function; give a torch\.nn\.Module"),
        (altered(lambda z: (z, z)), "returns a tuple for one image"),
        (altered(torch.Tensor.detach), "logits have no gradient by its input"),
        (altered(lambda z: z.detach() + 0 * z.sum(1, keepdim=True).detach()), "logits have no gradient by its input"),
        (altered(lambda z: z * math.nan), "not finite"),
        (altered(lambda z: (200 * z).softmax(1)), "^the model returns probabilities; let it return logits"),
        (Attends(), "the model mixes the images of a batch"),
        (nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), Linear(classes=6)), "mixes the images of a batch"),
        (fails(AssertionError("8 heads")), f"{FAILS}AssertionError: 8 heads"),
        (fails(KeyError("width")), f"{FAILS}KeyError: 'width'"),
        (fails(ValueError()), f"{FAILS}ValueError"),
        (fails(IndexError()), f"{FAILS}IndexError"),
        (fails(RuntimeError("two\nlines")), f"{FAILS}two"),
        (Through(Linear(classes=6), before=lambda x: torch.from_numpy(x.numpy())), LATER),  # without gradients it runs
    ],
)
def test_models_that_cannot_be_evaluated_are_refused_in_one_line(images, labels, other, message) -> None:
    with pytest.raises(BenchmarkError, match=message):
        attacked(other, images, labels, eps=0.05)


@pytest.mark.slow
def test_other_dtypes_are_taken_and_pixels_that_rounding_put_outside_put_back(model, images, labels) -> None:
    eps = float(model.radius(images, labels, "Linf")[:11].median())
    plain = attacked(model, images, labels, eps=eps)
    turned = images.double().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    other = attacked(altered(torch.Tensor.double), turned, labels.int(), eps=eps, device="cpu:0")
    assert other.adversarial.dtype == torch.float32
    assert not other.adversarial.requires_grad
    assert torch.equal(plain.robust, other.robust)
    images[0, 0, 0, 0], images[1, 0, 0, 0] = 1.0000001, -3e-8
    adversarial = attacked(model, images, labels).adversarial
    assert 0 <= adversarial.min() <= adversarial.max() <= 1


def test_any_real_number_is_a_radius_and_norms_have_their_usual_names(images) -> None:
    radii = {"linf": np.float32(0.25), "L∞": torch.tensor(0.25), "LINF": Fraction(1, 4), "Linf": "2/8", "∞": np.array(0.25)}
    for norm, eps in radii.items():
        spec = own_model.autoattack_spec(norm, eps, np.int64(3), images)
        assert (spec.norm, spec.eps, spec.seed) == ("Linf", 0.25, 3)
    assert own_model.whole("batch_size", torch.tensor(12), range(1, 99), "from 1 on") == 12


def test_no_setting_of_logging_hides_a_warning_or_makes_one(model, images, labels) -> None:
    random = Through(model, after=lambda z, x: z + torch.randn(len(x), 6))
    level = logging.getLogger().level
    for hide in (
        lambda: logging.disable(50),
        lambda: logging.config.dictConfig({"version": 1}),
        lambda: logging.getLogger().setLevel(60),
        lambda: logging.getLogger("auto-attack").setLevel(60),
    ):
        hide()
        try:
            warnings = attacked(random, images, labels).warnings
        finally:
            logging.disable(logging.NOTSET)
            logging.getLogger().setLevel(level)
            logging.getLogger("auto-attack").setLevel(logging.NOTSET)
            for logger in logging.root.manager.loggerDict.values():
                logger.disabled = False
        assert "it seems to be a randomized defense!" in warnings  # less the authors' advice, which means nothing here
    talks = Through(model, before=lambda x: logging.getLogger("theirs").warning("resizing 8x8 to 8x8"))
    assert not attacked(talks, images, labels).warnings


@pytest.mark.parametrize(
    "hide",
    [
        lambda: sys.settrace(None),
        lambda: (lambda kept: (sys.settrace(None), sys.settrace(kept)))(sys.gettrace()),
        lambda: checks.funcs.clear(),
    ],
    ids=["put aside", "put aside and back", "its list emptied"],
)
def test_a_model_that_takes_gradients_inside_is_found_whatever_it_does_to_the_tracer(model, images, hide) -> None:
    kept = dict(checks.funcs)

    def search(x: torch.Tensor) -> None:
        hide()
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            torch.autograd.grad(model(leaf).sum(), leaf)

    try:
        (warning,) = internals(Through(model, before=search), images).dynamic
    finally:
        checks.funcs.update(kept)
    assert "dynamic defense" in warning or "puts Python's tracing aside" in warning
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


def nothing(*_: object) -> None: ...


BESIDE = {
    "cudnn.flags": lambda x: nothing(torch.backends.cudnn.flags(enabled=False).__enter__()),
    "allow_tf32": lambda x: nothing(torch.backends.cudnn.allow_tf32),
    "a gradient of its own": lambda x: nothing(torch.is_grad_enabled() and torch.autograd.grad((x.detach().requires_grad_() ** 2).sum(), [torch.ones(1, requires_grad=True)], allow_unused=True)),
    "operations that cannot be counted": lambda x: nothing(1 / (_get_current_dispatch_mode() is None)),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*BESIDE, "traced", "sparse"])
def test_models_of_other_kinds_and_what_they_compute_beside_change_no_verdict(model, images, labels, kind) -> None:
    other = Through(model, before=BESIDE[kind]) if kind in BESIDE else nn.Sequential(model)
    if kind == "traced":
        other = torch.jit.trace(model, images)
    elif kind == "sparse":
        other.register_buffer("mask", torch.eye(3).to_sparse())
    with torch.backends.cudnn.flags():
        result = attacked(other, images, labels)
    assert torch.equal(result.robust, attacked(model, images, labels).robust)


def test_a_scripted_model_is_attacked_and_one_that_was_exported_for_one_size_is_refused(model, images, labels) -> None:
    attacked(torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(36, 6))), images, labels)
    exported = torch.export.export(model.eval(), (images,)).module()
    with pytest.raises(BenchmarkError, match="the model fails on one image"):
        attacked(exported, images, labels)


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


def test_labels_that_are_right_no_more_often_than_chance_are_warned_of(model, images, labels) -> None:
    for classes, right, warned in ((2, 24, 0), (2, 13, 1), (3, 16, 0), (10, 20, 0), (10, 3, 1)):
        assert len(chance_warnings(right, 24, classes)) == warned
    images, labels = torch.cat([images, images]), torch.cat([labels, labels])
    for shift, warned in ((0, False), (1, True)):
        warnings = attacked(model, images, (labels + shift) % 6).warnings
        assert any("no more often than chance" in words for words in warnings) == warned


def test_a_device_without_float64_gives_the_same_verdicts(model, images, labels, monkeypatch) -> None:
    plain = {norm: attacked(model, images, labels, norm=norm, eps=0.05) for norm in ("Linf", "L2")}

    def refuse(self):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    monkeypatch.setattr(torch.Tensor, "double", refuse)
    monkeypatch.setattr(ball, "NO_FLOAT64", ("cpu",))
    for norm, before in plain.items():
        assert torch.equal(attacked(model, images, labels, norm=norm, eps=0.05).adversarial, before.adversarial)


def test_one_image_without_a_finite_gradient_costs_no_other_its_verdict(model, images, labels) -> None:
    images[3] = 0
    odd = Through(model, after=lambda z, x: z + 0 * x.flatten(1).pow(2).sum(1, keepdim=True).sqrt())
    result, plain, others = attacked(odd, images, labels), attacked(model, images, labels), torch.arange(12) != 3
    assert torch.equal(result.robust[others], plain.robust[others])
    for warnings in (result.warnings, evaluate(odd, images, labels, attacks=[]).warnings):
        assert any("not finite at images 3" in words for words in warnings)


@pytest.mark.sweep
@pytest.mark.parametrize("everywhere", [True, False], ids=["everywhere", "away from the clean images"])
def test_a_model_whose_gradients_are_not_finite_is_not_evaluated(model, images, labels, everywhere) -> None:
    """Its logits are the plain model's; only where they are asked for is every gradient NaN."""

    def blinds(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        clean = (x[:, None].detach() == images).flatten(2).all(2).any(1)
        hidden = (x.flatten(1) - x.flatten(1).detach()).pow(2).sum(1, keepdim=True).sqrt()  # 0, of gradient NaN
        return z + hidden * (torch.ones_like(clean) if everywhere else ~clean)[:, None]

    with pytest.raises(BenchmarkError, match=r"input gradient is not finite \(NaN or infinity\) at \d+% of the points"):
        attacked(Through(model, after=blinds), images, labels, eps=0.004)


@pytest.mark.sweep
@pytest.mark.parametrize("classes", [2, 3])
def test_two_and_three_classes_are_attacked_without_the_part_that_is_not_defined(images, classes) -> None:
    few = Linear(classes=classes)
    labels = few(images).argmax(1)
    radius = few.radius(images, labels, "Linf")
    eps = float(radius.median())
    result = attacked(few, images, labels, eps=eps)
    assert result.robust[radius > eps].all()
    assert not result.robust[radius < 0.95 * eps].any()
    assert any(f"this model has {classes}: AutoAttack ran without it" in words for words in result.warnings)
