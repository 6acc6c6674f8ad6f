"""The public call `auto_attack`: which models, images, labels and radii it takes, and what it refuses in one line."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from tiny_models import Linear, Through, grey_images
from torch import nn

from benchmark.evaluation.auto_attack import auto_attack
from benchmark.runtime.errors import BenchmarkError

CHANGES = {
    "its value": lambda x: x.sub_(0.5).div_(0.25),
    "nothing, on these images": lambda x: x.clamp_(0, 1),
    "its data": lambda x: x.data.mul_(2),
}


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_its_input_is_told_so_and_the_images_stay(model, images, labels, change, engine) -> None:
    kept = images.clone()
    for eps in (0, 0.1):
        with pytest.raises(BenchmarkError, match="the model changes its input in place"):
            auto_attack(Through(model, CHANGES[change]), images, labels, norm="L2", eps=eps, engine=engine)
    assert torch.equal(images, kept)


def altered(change) -> nn.Module:
    return Through(Linear(classes=6), after=lambda z, x: change(z))


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
    "another norm": (dict(norm="L1"), "unknown norm 'L1'; give one of Linf and L2"),
    "another engine": (dict(engine="fsat"), "unknown engine 'fsat'; did you mean 'fast'"),
    "another device": (dict(device="cuda"), r"the model is on cpu, not on cuda; move it with model\.to\('cuda'\)"),
    "no such device": (dict(device="gpu"), "unknown device 'gpu'"),
    "no batch": (dict(batch_size=0), "batch_size 0 is none; give a whole number from 1 on"),
    "half a batch": (dict(batch_size=2.5), r"batch_size 2\.5 is none"),
    "a negative seed": (dict(seed=-1), "seed -1 is none; give a whole number from 0"),
    "no seed": (dict(seed=None), "seed None is none"),
    "eps as other text": (dict(eps="8 of 255"), "eps '8 of 255' is no radius"),
    "L2 eps of pixels up to 255": (dict(norm="L2", eps=128), "L2 eps 128 is above 6, the distance of a black image"),
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
def test_bad_input_is_refused_in_one_line(model, images, labels, case) -> None:
    changes, message = BAD[case]
    options = {"images": images, "labels": labels, "norm": "Linf", "eps": 0.05, **changes}
    with pytest.raises(BenchmarkError, match=message) as error:
        auto_attack(model, options.pop("images"), options.pop("labels"), **options)
    assert "\n" not in str(error.value)


def without_numbers() -> nn.Module:
    broken = Linear(classes=6)
    broken.bias.data.fill_(float("nan"))
    return broken


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


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Identity(), r"returns \(1, 1, 6, 6\) for one image; it must return logits"),
        (Linear(classes=6).half(), rf"{FAILS}.*its weights are torch.float16: call model.float\(\)"),
        (Linear(classes=6).bfloat16(), rf"{FAILS}.*its weights are torch.bfloat16: call model.float\(\)"),
        (Linear(classes=6).double(), rf"{FAILS}.*its weights are torch.float64: call model.float\(\)"),
        (Linear(classes=6).to("meta"), "the model is on meta, where it has no weights"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(6)), "lazy layers without weights"),
        (lambda x: x, r"the model is a function; give a torch\.nn\.Module"),
        (altered(lambda z: (z, z)), "returns a tuple for one image"),
        (altered(torch.Tensor.detach), "logits have no gradient by its input"),
        (altered(lambda z: z.detach() + 0 * z.sum(1, keepdim=True).detach()), "logits have no gradient by its input"),
        (without_numbers(), "not finite"),
        (Attends(), "the model mixes the images of a batch"),
        (nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), Linear(classes=6)), "mixes the images of a batch"),
        (fails(AssertionError("8 heads")), f"{FAILS}AssertionError: 8 heads"),
        (fails(KeyError("width")), f"{FAILS}KeyError: 'width'"),
        (fails(ValueError()), f"{FAILS}ValueError"),
        (fails(IndexError()), f"{FAILS}IndexError"),
        (fails(RuntimeError("two\nlines")), f"{FAILS}two"),
    ],
)
def test_models_that_cannot_be_judged_are_refused_in_one_line(images, labels, other, message) -> None:
    with pytest.raises(BenchmarkError, match=message) as raised:
        auto_attack(other, images, labels, norm="Linf", eps=0.05)
    assert "\n" not in str(raised.value)


def test_other_dtypes_of_images_and_labels_are_taken(model, images, labels) -> None:
    eps = float(model.radius(images, labels, "Linf")[:11].median())
    plain = auto_attack(model, images, labels, norm="Linf", eps=eps)
    turned = images.double().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    other = auto_attack(altered(torch.Tensor.double), turned, labels.int(), norm="Linf", eps=eps, device="cpu:0")
    assert other.adversarial.dtype == torch.float32
    assert not other.adversarial.requires_grad
    assert torch.equal(plain.robust, other.robust)


@pytest.mark.parametrize(
    ("norm", "eps"),
    [
        ("Linf", np.float32(8 / 255)),
        ("linf", np.array(8 / 255)),
        ("L∞", torch.tensor(8 / 255)),
        ("LINF", Fraction(8, 255)),
        ("Linf", "8/255"),
    ],
)
def test_any_real_number_is_a_radius_and_norms_have_their_usual_names(model, images, labels, norm, eps) -> None:
    found = auto_attack(model, images, labels, norm=norm, eps=eps, seed=np.int64(3), batch_size=torch.tensor(12))
    value = 8 / 255 if isinstance(eps, str) else float(eps)
    plain = auto_attack(model, images, labels, norm="Linf", eps=value, seed=3, batch_size=12)
    assert torch.equal(found.adversarial, plain.adversarial)
    assert (found.adversarial != images).any()
