"""The public call `benchmark.evaluation.auto_attack.auto_attack`: what it returns, what it leaves alone, and what it refuses."""

from __future__ import annotations

import sys
from fractions import Fraction
from io import StringIO

import numpy as np
import pytest
import torch
from tiny_models import Linear, grey_images
from torch import nn

import benchmark.attacks
from benchmark.attacks.engine import square as square_module
from benchmark.evaluation.auto_attack import PRODUCTS, auto_attack
from benchmark.runtime.errors import BenchmarkError
from benchmark.verdicts.ball import distances


@pytest.fixture
def linear() -> tuple[Linear, torch.Tensor, torch.Tensor]:
    """A linear model, twelve images near grey and their labels, of which the last is wrong."""
    model, images = Linear(classes=6), grey_images(12)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[11] = (labels[11] + 1) % 6
    return model, images, labels


@pytest.mark.parametrize(("engine", "norm"), [("fast", "Linf"), ("fast", "L2"), ("reference", "Linf")])
def test_robust_is_right_when_clean_and_beyond_the_exact_radius(linear, norm, engine, monkeypatch) -> None:
    monkeypatch.setattr(square_module, "QUERIES", 200)
    model, images, labels = linear
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


def test_an_image_fares_the_same_in_any_batch(linear, monkeypatch) -> None:
    monkeypatch.setattr(square_module, "QUERIES", 200)
    model, images, labels = linear
    eps = float(model.radius(images, labels, "L2")[:11].median())
    whole = auto_attack(model, images, labels, norm="L2", eps=eps)
    small = auto_attack(model, images, labels, norm="L2", eps=eps, batch_size=5)
    assert torch.equal(whole.robust, small.robust)
    assert torch.equal(whole.adversarial, small.adversarial)


def test_eps_0_gives_the_clean_accuracy_and_no_image_an_empty_result(linear) -> None:
    model, images, labels = linear
    found = auto_attack(model, images, labels, norm="Linf", eps=0)
    assert found.robust.tolist() == [True] * 11 + [False]
    assert torch.equal(found.adversarial, images)
    nothing = auto_attack(model, images[:0], labels[:0], norm="L2", eps=0.5)
    assert nothing.adversarial.shape == (0, 1, 6, 6)
    assert nothing.robust.shape == (0,)
    assert nothing.robust.dtype == torch.bool


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_torch_are_left_as_they_were(linear, fails) -> None:
    _, images, labels = linear
    model = nn.Sequential(nn.Dropout(0.5), Linear(classes=6)).train()
    model[0].eval()
    model[1].bias.requires_grad_(False)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    products = [getattr(place, part).fp32_precision for place, part in PRODUCTS]
    if fails:
        with pytest.raises(BenchmarkError):
            auto_attack(model, images, labels + 7, norm="Linf", eps=0.01)
    else:
        for engine in ("fast", "reference"):
            auto_attack(model, images, labels, norm="Linf", eps=0.5, engine=engine)
    assert [getattr(place, part).fp32_precision for place, part in PRODUCTS] == products
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    assert model[1].weight.requires_grad
    assert not model[1].bias.requires_grad
    assert model[1].weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("precision", ["medium", "highest"])
def test_torch_set_to_another_precision_stays_so_and_the_attack_is_in_float32(linear, precision) -> None:
    model, images, labels = linear
    asked = []

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            asked.extend([getattr(place, part).fp32_precision for place, part in PRODUCTS])
            asked.append(torch.is_autocast_enabled("cpu"))
            return model(x)

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with torch.autocast("cpu", torch.bfloat16):
            auto_attack(Asking(), images, labels, norm="Linf", eps=0.5)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(asked) == {"ieee", False}


CHANGES = {
    "its value": lambda x: x.sub_(0.5).div_(0.25),
    "nothing, on these images": lambda x: x.clamp_(0, 1),
    "its data": lambda x: x.data.mul_(2),
}


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_its_input_is_told_so_and_the_images_stay(linear, change, engine) -> None:
    model, images, labels = linear
    kept = images.clone()

    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            CHANGES[change](x)
            return model(x)

    for eps in (0, 0.1):
        with pytest.raises(BenchmarkError, match="the model changes its input in place"):
            auto_attack(InPlace(), images, labels, norm="L2", eps=eps, engine=engine)
    assert torch.equal(images, kept)


def test_what_a_caller_writes_to_the_result_leaves_his_images_alone(linear) -> None:
    model, images, labels = linear
    kept = images.clone()
    for eps in (0, 0.1):
        auto_attack(model, images, labels, norm="L2", eps=eps).adversarial.zero_()
    assert torch.equal(images, kept)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_of_a_random_model_robust_images_are_those_that_remain(linear, engine, monkeypatch) -> None:
    monkeypatch.setattr(square_module, "QUERIES", 200)
    model, images, labels = linear

    class Random(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return model(x) + torch.randn(len(x), 6)

    torch.manual_seed(0)
    found = auto_attack(Random(), images, labels, norm="Linf", eps=0.02, engine=engine)
    assert int(found.robust.sum()) == found.remaining["square"]
    doubted = [text for text in found.warnings if "images the model is right in one pass and wrong in another" in text]
    assert doubted, "otherwise this test compares two equal verdicts"
    assert int(doubted[0].split()[1]) > 0


def test_it_works_under_inference_mode(linear) -> None:
    model, images, labels = linear
    with torch.inference_mode():
        found = auto_attack(model, images.clone(), labels, norm="Linf", eps=0.5)
    assert not found.robust.any()


@pytest.mark.parametrize(
    ("forward", "warning"),
    [
        (lambda z: z.softmax(1), "output is a probability distribution"),
        (lambda z: z + 1e-2 * torch.randn_like(z), "randomized defense"),
    ],
)
def test_autoattacks_own_flags_are_passed_on(linear, forward, warning) -> None:
    model, images, labels = linear

    class Wrapped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(10 * model(x))

    found = auto_attack(Wrapped(), images, labels, norm="Linf", eps=0.5)
    assert any(warning in text for text in found.warnings)


def test_a_model_in_training_mode_is_attacked_in_evaluation_mode(linear) -> None:
    model, images, labels = linear
    eps = float(model.radius(images, labels, "Linf")[:11].median())
    noisy = nn.Sequential(nn.Dropout(0.9), model).train()
    settled = auto_attack(model, images, labels, norm="Linf", eps=eps)
    assert torch.equal(auto_attack(noisy, images, labels, norm="Linf", eps=eps).robust, settled.robust)


class Wide(nn.Module):
    """Its logits in float64."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).double()


class Altered(nn.Module):
    """A linear model whose logits go through `forward`."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.linear, self.change = Linear(classes=6), forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self.linear(x))


BAD = {
    "images outside [0, 1]": (dict(images=grey_images(12) * 3), r"images run from .* give pixels in \[0, 1\]"),
    "images that are NaN": (dict(images=grey_images(12) * float("nan")), r"give pixels in \[0, 1\]"),
    "images of integers": (dict(images=torch.ones(12, 1, 6, 6, dtype=torch.uint8)), r"torch\.uint8 .* give floats"),
    "one image without a batch": (dict(images=grey_images(12)[0]), r"give floats \(n, c, h, w\)"),
    "labels out of range": (dict(labels=torch.full((12,), 6)), "label 6 is outside 0 to 5"),
    "negative labels": (dict(labels=torch.full((12,), -1)), "label -1 is outside 0 to 5"),
    "too few labels": (
        dict(labels=torch.zeros(11, dtype=torch.long)),
        r"labels are torch\.int64 \(11,\) for 12 images",
    ),
    "labels of floats": (dict(labels=torch.zeros(12)), "give one integer an image"),
    "eps below 0": (dict(eps=-0.1), r"eps -0\.1 is no radius"),
    "eps that is NaN": (dict(eps=float("nan")), "eps nan is no radius"),
    "Linf eps above 1": (dict(eps=8), "Linf eps 8 is above 1; radii are in pixels"),
    "another norm": (dict(norm="L1"), "unknown norm 'L1'; did you mean 'L2'"),
    "another engine": (dict(engine="fsat"), "unknown engine 'fsat'; did you mean 'fast'"),
    "another device": (dict(device="cuda"), r"the model is on cpu, not on cuda; move it with model\.to\('cuda'\)"),
    "no such device": (dict(device="gpu"), "unknown device 'gpu'"),
    "no batch": (dict(batch_size=0), "batch_size 0 is none; give a whole number from 1 on"),
    "half a batch": (dict(batch_size=2.5), r"batch_size 2\.5 is none"),
    "a negative seed": (dict(seed=-1), "seed -1 is none; give a whole number from 0"),
    "no seed": (dict(seed=None), "seed None is none"),
    "eps as text": (dict(eps="8/255"), "eps '8/255' is no radius"),
    "eps a bool": (dict(eps=True), "eps True is no radius"),
    "eps a bool of numpy": (dict(eps=np.bool_(True)), "is no radius"),
    "eps a bool of torch": (dict(eps=torch.tensor(True)), "is no radius"),
    "eps a NaN of numpy": (dict(eps=np.float32("nan")), "is no radius"),
    "eps infinite": (dict(eps=float("inf")), "eps inf is no radius"),
    "eps complex": (dict(eps=1j), "eps 1j is no radius"),
    "eps for each image": (dict(eps=torch.full((12, 1), 0.1)), r"eps has shape \(12, 1\); give one number"),
    "a bool for a batch": (dict(batch_size=True), "batch_size True is none"),
    "norm None": (dict(norm=None), "unknown norm None"),
    "images of numpy": (dict(images=grey_images(12).numpy()), r"images are a ndarray; give a torch\.Tensor"),
    "labels in a list": (dict(labels=[0] * 12), r"labels are a list; give a torch\.Tensor"),
    "images without pixels": (dict(images=torch.zeros(12, 1, 0, 6)), r"give floats \(n, c, h, w\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line(linear, case) -> None:
    model, images, labels = linear
    changes, message = BAD[case]
    options = {"images": images, "labels": labels, "norm": "Linf", "eps": 0.05, **changes}
    with pytest.raises(BenchmarkError, match=message) as error:
        auto_attack(model, options.pop("images"), options.pop("labels"), **options)
    assert "\n" not in str(error.value)


def test_models_that_cannot_be_judged_are_refused(linear) -> None:
    _, images, labels = linear
    with pytest.raises(BenchmarkError, match=r"returns \(1, 1, 6, 6\) for one image; it must return logits"):
        auto_attack(nn.Identity(), images, labels, norm="Linf", eps=0.05)
    with pytest.raises(BenchmarkError, match="needs 4 classes or more; this model has 3"):
        auto_attack(Linear(classes=3), images, labels.clamp(max=2), norm="Linf", eps=0.05)
    with pytest.raises(BenchmarkError, match=r"the model fails on one image of float32 on cpu: "):
        auto_attack(Linear(classes=6).double(), images, labels, norm="Linf", eps=0.05)
    with pytest.raises(BenchmarkError, match="the model is on meta, where it has no weights"):
        auto_attack(Linear(classes=6).to("meta"), images, labels, norm="Linf", eps=0.05)
    with pytest.raises(BenchmarkError, match=r"the model is a function; give a torch\.nn\.Module"):
        auto_attack(lambda x: x, images, labels, norm="Linf", eps=0.05)
    with pytest.raises(BenchmarkError, match="returns a tuple for one image"):
        auto_attack(Altered(lambda z: (z, z)), images, labels, norm="Linf", eps=0.05)
    for forward in (torch.Tensor.detach, lambda z: z.detach() + 0 * z.sum(1, keepdim=True).detach()):
        with pytest.raises(BenchmarkError, match="logits have no gradient by its input"):
            auto_attack(Altered(forward), images, labels, norm="Linf", eps=0.05)
    broken = Linear(classes=6)
    broken.bias.data.fill_(float("nan"))
    with pytest.raises(BenchmarkError, match="not finite"):
        auto_attack(broken, images, labels, norm="Linf", eps=0.05)


def test_other_dtypes_of_images_and_labels_are_taken(linear) -> None:
    model, images, labels = linear
    eps = float(model.radius(images, labels, "Linf")[:11].median())
    plain = auto_attack(model, images, labels, norm="Linf", eps=eps)
    turned = images.double().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    other = auto_attack(Wide(model), turned, labels.int(), norm="Linf", eps=eps, device="cpu:0")
    assert other.adversarial.dtype == torch.float32
    assert not other.adversarial.requires_grad
    assert torch.equal(plain.robust, other.robust)


@pytest.mark.parametrize(
    "eps", [np.float32(8 / 255), np.float64(8 / 255), np.array(0.05), torch.tensor(8 / 255), Fraction(8, 255)]
)
def test_any_real_number_is_a_radius(linear, eps) -> None:
    model, images, labels = linear
    found = auto_attack(model, images, labels, norm="Linf", eps=eps, seed=np.int64(3), batch_size=torch.tensor(12))
    plain = auto_attack(model, images, labels, norm="Linf", eps=float(eps), seed=3, batch_size=12)
    assert torch.equal(found.adversarial, plain.adversarial)
    assert (found.adversarial != images).any()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "shown"),
    [(StringIO, None, False), (StringIO, True, True), (Terminal, None, True), (Terminal, False, False)],
)
def test_progress_is_shown_on_a_terminal_or_where_it_is_asked_for(
    linear, stream, progress, shown, monkeypatch, capsys
) -> None:
    model, images, labels = linear
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


def test_the_package_names_only_what_it_has() -> None:
    assert benchmark.evaluation.auto_attack.auto_attack is auto_attack
    with pytest.raises(AttributeError, match="no attribute 'auto_atack'"):
        benchmark.attacks.auto_atack  # noqa: B018
