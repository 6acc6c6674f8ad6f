"""The paper's measures: Jacobians of blocks whose values are known, and distances of a linear model."""

from __future__ import annotations

import re

import pytest
import torch
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.attacks import cw
from benchmark.layers.residual import Residual
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods, tracks
from benchmark.specs.threat import ThreatModel

NAME = "Wang2022Cauchy"
IMAGES = torch.linspace(0, 1, 12).view(4, 1, 1, 3)  # tokens (4, 1, 3): a pixel each
LABELS = torch.zeros(4, dtype=torch.int64)
CW = {"steps": 400, "step_size": 0.005, "c": 10.0, "radii": [0.01, 0.1, 5.0]}


class Square(nn.Module):
    """x^2 token by token: sigma_max of the branch is twice the largest entry."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**2


@pytest.fixture
def jacobians():
    """The module of Jacobians, which `measure` uses."""
    return methods.module(NAME, "jacobians")


@pytest.fixture
def measure(jacobians, monkeypatch):
    """The measure `jacobian` of a network of two blocks: the first squares its tokens, the last doubles them."""
    network = nn.Sequential(nn.Flatten(1, 2), Residual(Square()), Residual(nn.Dropout(0.5)), nn.Flatten()).eval()
    measures = methods.module(NAME, "measures")
    named = [("first", nn.Sequential(network[1])), ("last", nn.Sequential(network[2]))]

    def measured(images: torch.Tensor = IMAGES, count: int = 2, **options: object) -> dict:
        monkeypatch.setattr(measures, "blocks", lambda model: named[:count])
        return measures.jacobian(network, images, LABELS, seed=0, **options)

    return measured


def test_it_returns_quantiles_means_counts_and_each_image_s_value(measure) -> None:
    measured = measure(quantities=("sigma_max", "encoder"))
    largest = 2 * IMAGES.amax((1, 2, 3)).double()
    torch.testing.assert_close(measured["sigma_max of first"], largest, rtol=1e-6, atol=0)
    assert measured["sigma_max of last"].tolist() == pytest.approx([1.0] * 4)
    assert measured["x"] == pytest.approx([i / 20 for i in range(21)])
    curve = measured["sigma_max: first"]
    assert (len(curve), curve[0], curve[20]) == (21, pytest.approx(float(largest[0])), pytest.approx(2.0))
    assert curve[10] == pytest.approx(float(largest[1:3].mean()))
    every = torch.cat([largest, torch.ones(4)])
    gain = (1 + largest) * 2
    for key, value in {
        "sigma_max: mean": every.mean(), "sigma_max: sd": every.std(), "encoder: norm": gain.median(),
        "encoder: product of residual gains": gain.median(),
        "encoder: exp of sum of sigma_max": (largest + 1).exp().median(),
    }.items():  # fmt: skip
        assert measured[key] == pytest.approx(float(value)), key
    torch.testing.assert_close(measured["encoder's norm"], gain, rtol=1e-6, atol=0)
    assert not [key for key in measured if "not known" in key or "gain:" in key or "lower bound" in key]


def test_by_default_it_takes_all_four_without_the_encoder(measure, jacobians) -> None:
    measured = measure(levels=[i / 30 for i in range(31)])
    assert {key.partition(":")[0] for key in measured if ": " in key} == {*jacobians.QUANTITIES}
    assert all(len(value) == 31 for value in measured.values() if isinstance(value, list))


def test_what_lanczos_gives_is_called_a_lower_bound_and_what_it_does_not_is_counted(
    measure, jacobians, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(jacobians, "DENSE", 0)
    measured = measure(quantities=("sigma_max", "norm_bound", "encoder"))
    assert measured["sigma_max (lower bound): last"][0] == pytest.approx(1.0)
    assert measured["sigma_max (lower bound): mean"] > 0
    assert measured["sigma_max (lower bound): not known"] == measured["norm_bound: not known"] == 0
    assert measured["norm_bound: last"][0] == pytest.approx(1.0)
    assert not [key for key in measured if key.startswith("encoder")]
    assert "so the encoder's norm is not given" in capsys.readouterr().out
    with pytest.raises(BenchmarkError, match="so the encoder's norm is not given"):
        measure(quantities=("encoder",))
    unknown = IMAGES.clone()
    unknown[1] = float("nan")
    measured = measure(unknown, quantities=["log_norm"])
    assert measured["log_norm (lower bound): not known"] == 1.0, "the second block is linear: known anywhere"
    assert measured["log_norm (lower bound) of first"].isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantities": ["sigma"]}, "unknown quantity 'sigma'; did you mean 'sigma_max'?"),
        ({"quantities": "sigma_max"}, "quantities should be a list of sigma_max, residual_gain"),
        ({"quantities": ()}, "quantities should be a list"),
        ({"levels": [0.0, 0.5, 1.0]}, "levels should be 21 or more, ascending from 0 to 1"),
        ({"levels": [i / 20 for i in range(22)]}, "levels should be 21 or more"),
        ({"levels": [1 - i / 20 for i in range(21)]}, "levels should be 21 or more"),
    ],
)  # fmt: skip
def test_bad_parameters_get_one_clear_line(measure, options, message) -> None:
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        measure(**options)


@pytest.mark.parametrize("places", [(), (2, 1), (1, 3), (None,)])
def test_blocks_that_are_not_consecutive_layers_are_refused(places, monkeypatch) -> None:
    """None at all, out of order, with a gap, and of layers that the model does not have at the top."""
    layers = [nn.Flatten(1, 2), *(Residual(nn.Dropout(0.5)) for _ in range(3))]
    measures = methods.module(NAME, "measures")
    named = [("block", nn.Sequential(nn.Identity() if i is None else layers[i])) for i in places]
    monkeypatch.setattr(measures, "blocks", lambda model: named)
    with pytest.raises(BenchmarkError, match=r"blocks\(model\) are not consecutive layers of the model"):
        measures.jacobian(nn.Sequential(*layers).eval(), IMAGES, LABELS, seed=0)


def test_a_quantity_that_is_known_nowhere_is_refused(measure) -> None:
    with pytest.raises(BenchmarkError, match="sigma_max is not known for any block and image; leave it out"):
        measure(IMAGES * float("nan"), count=1)


@pytest.mark.parametrize("options", [{"mixer": "attention"}, {"mixer": "convolution", "certified": True}])
def test_the_blocks_of_a_network_are_measured_at_their_own_inputs(options) -> None:
    torch.manual_seed(0)
    model = methods.method(NAME).build(tracks.load("digits").data, patch_size=4, width=16, depth=2, **options)
    model.eval().requires_grad_(False)
    images, inputs = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), {}
    x = images
    for layer in model:
        inputs[layer] = x
        x = layer(x)
    measured = methods.module(NAME, "measures").jacobian(model, images, LABELS, seed=0, quantities=["residual_gain"])
    for name, block in methods.method(NAME).blocks(model):
        for image, tokens in enumerate(inputs[block[0]]):
            formed = torch.autograd.functional.jacobian(block, tokens[None]).reshape(tokens.numel(), -1)
            expected = float(torch.linalg.matrix_norm(formed, ord=2))
            assert float(measured[f"residual_gain of {name}"][image]) == pytest.approx(expected, rel=1e-4)


@pytest.fixture
def attacked() -> tuple[Linear, torch.Tensor, torch.Tensor]:
    """Twelve images near grey, of which the model is wrong about the last."""
    model, images = Linear(classes=6), grey_images(12)
    labels = model(images).argmax(1)
    labels[11] = (labels[11] + 1) % 6
    return model.eval().requires_grad_(False), images, labels


def cw_distance(*given: object) -> dict:
    return methods.module(NAME, "measures").cw_distance(*given, seed=0, **CW)


def test_distances_are_those_of_a_linear_model(attacked) -> None:
    model, images, labels = attacked
    measured = cw_distance(model, images, labels)
    exact = model.radius(images, labels, "L2")[:11]
    assert measured["broken"] == 1
    assert (measured["l2"][:11] >= exact * (1 - 1e-6)).all(), "no image is nearer than the boundary"
    assert exact.mean() <= measured["mean l2"] < 1.15 * exact.mean(), "and CW comes close"
    assert measured["l2"][11] == 0
    assert measured["x"] == CW["radii"]
    within = [float((measured["l2"] > radius).sum()) / 12 for radius in CW["radii"]]
    assert measured["accuracy within"] == within
    assert within[-1] == 0
    assert measured["median l2"] in measured["l2"].tolist()


@pytest.mark.slow
def test_black_white_and_saturated_images_give_numbers(attacked) -> None:
    """Where a pixel is 0 or 1 the attack's tanh is flat: it hardly moves, but nothing becomes NaN."""
    model, images, _ = attacked
    images = images[:4].clone()
    images[1], images[2], images[3, ..., :3] = 0.0, 1.0, 1.0
    labels = model(images).argmax(1)
    measured = cw_distance(model, images, labels)
    assert measured["l2"][[0, 3]].isfinite().all()
    ball = ThreatModel(norm="L2", eps=6.0)
    moved = cw.attack(model, images, labels, ball, seed=0, steps=400, step_size=0.005, c=10.0)
    assert moved.isfinite().all()
    assert ((moved >= 0) & (moved <= 1)).all()


def test_where_nothing_breaks_no_distance_is_claimed(attacked) -> None:
    _, images, labels = attacked

    class Sure(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 100 * nn.functional.one_hot(labels, 6).float() + 0 * x.flatten(1)[:, :6]

    with pytest.raises(BenchmarkError, match="no image was broken, so no distance is known"):
        cw_distance(Sure().eval(), images, labels)
