"""The public call `benchmark.evaluation.auto_attack.auto_attack`: what it returns, what it leaves alone, and what it refuses."""

from __future__ import annotations

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


def test_a_model_that_changes_its_input_changes_nobodys_images(linear) -> None:
    model, images, labels = linear
    kept, eps = images.clone(), float(model.radius(images, labels, "L2")[:11].median())

    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return model(x.mul_(1.0).add_(0.25).sub_(0.25))

    for radius in (0, eps):
        for engine in ("fast", "reference") if radius == 0 else ("fast",):
            found = auto_attack(InPlace(), images, labels, norm="L2", eps=radius, engine=engine)
            assert torch.equal(images, kept)
            assert (distances(found.adversarial, images)["L2"] <= radius + 1e-12).all()
    found.adversarial.zero_()
    assert torch.equal(images, kept)


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


def test_the_package_names_only_what_it_has() -> None:
    assert benchmark.evaluation.auto_attack.auto_attack is auto_attack
    with pytest.raises(AttributeError, match="no attribute 'auto_atack'"):
        benchmark.attacks.auto_atack  # noqa: B018
