"""The public call `benchmark.attacks.auto_attack`: what it returns, what it leaves alone, and what it refuses."""

from __future__ import annotations

import re

import pytest
import torch
from tiny_models import Linear, grey_images
from tiny_project import ROOT
from torch import nn

import benchmark.attacks
from benchmark.attacks import auto_attack
from benchmark.attacks.engine import square as square_module
from benchmark.auto_attack import Attacked
from benchmark.errors import BenchmarkError
from benchmark.verdicts import distances


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
    torch.backends.cudnn.allow_tf32 = True
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    if fails:
        with pytest.raises(BenchmarkError):
            auto_attack(model, images, labels + 7, norm="Linf", eps=0.01)
    else:
        auto_attack(model, images, labels, norm="Linf", eps=0.5)
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    assert model[1].weight.requires_grad
    assert not model[1].bias.requires_grad
    assert model[1].weight.grad is None
    assert torch.backends.cudnn.allow_tf32
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_model_in_training_mode_is_attacked_in_evaluation_mode(linear) -> None:
    model, images, labels = linear
    eps = float(model.radius(images, labels, "Linf")[:11].median())
    noisy = nn.Sequential(nn.Dropout(0.9), model).train()
    settled = auto_attack(model, images, labels, norm="Linf", eps=eps)
    assert torch.equal(auto_attack(noisy, images, labels, norm="Linf", eps=eps).robust, settled.robust)


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
    "no batch": (dict(batch_size=0), "give a seed from 0 and a batch_size from 1 on"),
    "a negative seed": (dict(seed=-1), "give a seed from 0"),
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
    broken = Linear(classes=6)
    broken.bias.data.fill_(float("nan"))
    with pytest.raises(BenchmarkError, match="not finite"):
        auto_attack(broken, images, labels, norm="Linf", eps=0.05)


def test_other_dtypes_of_images_and_labels_are_taken(linear) -> None:
    model, images, labels = linear
    eps = float(model.radius(images, labels, "Linf")[:11].median())
    plain = auto_attack(model, images, labels, norm="Linf", eps=eps)
    other = auto_attack(model, images.double().requires_grad_(), labels.int(), norm="Linf", eps=eps)
    assert other.adversarial.dtype == torch.float32
    assert not other.adversarial.requires_grad
    assert torch.equal(plain.robust, other.robust)


def test_the_example_in_the_readme_runs(linear) -> None:
    text = (ROOT / "README.md").read_text().partition("## Attack any model")[2]
    example = text.partition("```python\n")[2].partition("```")[0]
    assert re.search(r"auto_attack\(model, images, labels", example)
    model, images, labels = linear
    names: dict = {"model": model, "images": images, "labels": labels, "print": lambda *_: None}
    exec(example, names)
    assert isinstance(names["found"], Attacked)


def test_the_package_names_only_what_it_has() -> None:
    assert benchmark.attacks.auto_attack is auto_attack
    with pytest.raises(AttributeError, match="no attribute 'auto_atack'"):
        benchmark.attacks.auto_atack  # noqa: B018
