"""The measures of features, of attention's norms, bounds and use, on networks whose answers are known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmark.layers.attention_weights import AttentionWeights
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods, tracks

NAME = "Hu2024SpecFormer"


def measures():
    return methods.module(NAME, "measures")


def build(**model) -> nn.Sequential:
    torch.manual_seed(0)
    options = {"patch_size": 4, "width": 16, "depth": 2, "heads": 2, "pooling": "mean", **model}
    return methods.method(NAME).build(tracks.load("digits").data, **options).eval().requires_grad_(False)


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 10


class Told(nn.Module):
    """Features that say whether an image was moved off a grid of eighths, or nothing at all."""

    def __init__(self, tells: bool) -> None:
        super().__init__()
        self.tells = tells

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        off = (x * 8 - (x * 8).round()).abs().flatten(1).mean(1, keepdim=True)
        return torch.cat([off * self.tells, x.flatten(1)[:, :3] * 0 + torch.arange(len(x))[:, None] % 7], dim=1)


@pytest.mark.sweep
@pytest.mark.parametrize(("tells", "low", "high"), [(True, 1.9, 2.0), (False, -2.0, 0.1)])
def test_the_a_distance_is_2_where_features_tell_and_about_0_where_they_do_not(tells, low, high) -> None:
    x, y = images(60)
    x = (x * 8).round() / 8
    model = nn.Sequential(Told(tells), nn.Linear(4, 10))
    found = measures().features(model, x, y, seed=0, eps=0.05, steps=2, classes=3)
    assert low <= found["A-distance"] <= high
    assert [*found["t-SNE"]] == [f"{label}, {kind}" for label in range(3) for kind in ("clean", "attacked")]
    assert all(len(points) == 6 for points in found["t-SNE"].values())
    assert found == measures().features(model, x, y, seed=0, eps=0.05, steps=2, classes=3)


@pytest.mark.slow
def test_attention_s_bounds_stand_in_their_order() -> None:
    """Ascent below our bound; the Jacobian below the point form, and that below the ball form; theorem 4.3 far above."""
    x, y = images(4)
    found = measures().attention_bounds(build(), x, y, seed=0, radius=0.01)
    assert found["x"] == [1.0, 2.0]
    for layer in range(2):
        at = {name: values[layer] for name, values in found.items()}
        assert at["ascent"] <= at["bound of this benchmark"]
        assert at["Jacobian"] <= at["point form"] * (1 + 1e-9)
        assert at["point form"] <= at["ball form"] * (1 + 1e-9)
        assert at["bound of this benchmark"] <= 1.5 * at["ascent"]
        assert at["Theorem 4.3"] >= 100 * at["ascent"]
        assert 1 <= at["largest bound over ascent"] <= 1.5


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"attention": "l2"}, "no dot-product attention"),
        ({"backbone": "deit"}, "of queries without biases"),
        ({"backbone": "convit", "gated": 1}, "gated attention has no bound here"),
    ],
)
def test_bounds_are_given_for_what_they_bound_alone(model, message) -> None:
    with pytest.raises(BenchmarkError, match=message):
        measures().attention_bounds(build(**model), *images(2), seed=0, radius=0.01)


@pytest.mark.parametrize("model", [{"attention": "scaled_cosine"}, {"backbone": "convit", "gated": 1}])
def test_the_use_of_other_attention_is_not_told(model) -> None:
    with pytest.raises(BenchmarkError, match="only networks of plain dot-product attention"):
        measures().attention_use(build(**model), *images(2), seed=0)


def test_the_use_of_attention_is_what_its_removal_changes() -> None:
    x, y = images(30)
    model = build(backbone="deit")
    for layer in (model[4].body, model[6].body):  # attention that is uniform, and says nothing
        nn.init.zeros_(layer[1].query.weight), nn.init.zeros_(layer[1].query.bias)
    found = measures().attention_use(model, x, y, seed=0)
    assert found["uniform: predictions changed"] == 0
    model = build(backbone="deit")
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.weight *= 6
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = measures().attention_use(model, x, y, seed=0)
    assert found["uniform: predictions changed"] > 0
    assert found["no branch: predictions changed"] > 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def layer(name: str, sizes: tuple[float, ...], *, key: bool = True, gamma: float | None = None) -> AttentionWeights:
    """Two heads of 3 x 2 with norms `sizes` and twice `sizes`: multiples of the first columns of the identity."""
    heads = torch.eye(3)[:, :2] * torch.tensor([1.0, 2.0])[:, None, None]
    query, of_key, value, output = (size * heads for size in sizes)
    scale = None if gamma is None else torch.tensor([gamma, 1.0, 1.0])
    return AttentionWeights(name, query, of_key if key else None, value, output.mT, scale)


def norms(*layers: AttentionWeights) -> dict:
    return measures().attention_norms(nn.Identity(), *images(0), seed=0, attention=layers)


def test_means_over_heads_layers_and_roles() -> None:
    values = norms(layer("a", (1.0, 2.0, 3.0, 4.0)), layer("b", (3.0, 2.0, 1.0, 0.0)))
    assert values["query: mean"] == pytest.approx(3.0)  # (1 + 2 + 3 + 6) / 4
    assert values["query"] == pytest.approx([1.5, 4.5])
    assert values["output"] == pytest.approx([6.0, 0.0])
    assert values["mean"] == pytest.approx(3.0)  # the projection is not among the penalised roles
    assert values["x"] == [1.0, 2.0]
    assert "scaled mean" not in values


def test_gamma_scales_weights_and_a_role_that_a_layer_lacks_is_left_out() -> None:
    values = norms(layer("a", (1.0, 1.0, 1.0, 1.0), gamma=10.0))
    assert values["mean"] == pytest.approx(1.5)
    assert values["scaled mean"] == pytest.approx(15.0)
    assert "x" not in values
    values = norms(layer("a", (1.0, 9.0, 3.0, 4.0), key=False), layer("b", (1.0, 9.0, 3.0, 4.0)))
    assert "key: mean" not in values
    assert values["mean"] == pytest.approx(3.0)  # (1.5 + 4.5) / 2
