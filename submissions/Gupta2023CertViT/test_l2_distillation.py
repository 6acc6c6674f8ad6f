"""L2 attention that learns from dot products: which parts are fitted, copied, kept and refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from components import assert_out_of_range
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import DotProductWindowAttention, L2WindowAttention
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.scaled_cosine import ScaledCosineAttention
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, Patchify, Positions, TakeToken
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.methods import module
from benchmark.training.preparation import Place

l2_distillation = module("Gupta2023CertViT", "l2_distillation")
LayerFit, prepare = l2_distillation.LayerFit, l2_distillation.prepare
WIDTH = 8
SPLIT = (torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(60, dtype=torch.long))
SHORT = {"layer_epochs": 2, "epochs": 2, "batch_size": 20}


def network(attention, *, norm: bool = True, width: int = WIDTH, blocks: int = 2, token: bool = True, seed: int = 0):
    """A pre-norm transformer on 4x4 images, of which `attention` makes a layer from its width."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [Normalise(), Patchify(2 if token else 1), nn.Linear(4 if token else 1, width)]
    layers += [ClassToken(width), Positions(5, width)] if token else [Positions(16, width)]
    for _ in range(blocks):
        mlp = [nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)]
        norms = [nn.LayerNorm(width) if norm else LayerProject(1.0) for _ in range(2)]
        layers += [Residual(nn.Sequential(norms[0], attention(width))), Residual(nn.Sequential(norms[1], *mlp))]
    layers += [nn.LayerNorm(width)] if norm else []
    return nn.Sequential(*layers, TakeToken() if token else MeanPool(), nn.Linear(width, 3))


dot_product, l2 = partial(SelfAttention, heads=2), partial(L2Attention, heads=2)


def trained(model: nn.Module) -> nn.Module:
    """Weights with some effect, frozen, as a preparation is handed them."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.eval().requires_grad_(False)


def timm_vit() -> nn.Sequential:
    vit = VisionTransformer(
        img_size=4, patch_size=2, in_chans=1, num_classes=3, embed_dim=WIDTH, depth=2, num_heads=2, mlp_ratio=2
    )
    return nn.Sequential(Normalise(), vit)


def place(folder: Path, say=lambda _: None) -> Place:
    return Place(folder, 3, torch.device("cpu"), say)


def distilled(folder: Path, model: nn.Module, start: nn.Module, **options):
    return prepare(model, start, SPLIT, place(folder), **{**SHORT, **options})


@pytest.mark.parametrize("teacher", [lambda: network(dot_product), timm_vit], ids=["sequence", "timm"])
def test_errors_fall_and_the_networks_come_to_agree(teacher, tmp_path) -> None:
    start, model = trained(teacher()), network(l2, seed=1)
    history = distilled(tmp_path, model, start, layer_epochs=5, epochs=10, learning_rate=6e-3)
    for layer in history["layers"]:
        assert layer["after"] < layer["before"] < 1
    agreed = history["network"]
    assert agreed["divergence_after"] < 0.5 * agreed["divergence_before"]
    assert agreed["agreement_after"] > max(agreed["agreement_before"], 0.8)
    agreement = (model(SPLIT[0]).argmax(1) == start(SPLIT[0]).argmax(1)).double().mean()
    assert agreed["agreement_after"] == agreement
    assert history["left_out"] == []


def test_errors_are_what_they_say(tmp_path) -> None:
    start, model = trained(network(dot_product)), network(l2, seed=1)
    history = distilled(tmp_path, model, start, epochs=0)
    x = start[:5](SPLIT[0])
    x = start[5].body[0](x)
    expected, fitted = start[5].body[1](x), model[5].body[1](x)
    assert history["layers"][0]["layer"] == history["layers"][0]["of"] == "5.body.1"
    assert history["layers"][0]["after"] == pytest.approx(((fitted - expected).norm() / expected.norm()).item(), rel=1e-4)


def test_the_start_is_the_least_squares_solution_and_better_than_a_fresh_layer(tmp_path) -> None:
    """No small change of W_O lowers the error, but for the ridge; and scores are the symmetric part of the trained ones."""
    start, x = trained(dot_product(WIDTH)), torch.randn(40, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    layer, fresh = l2(WIDTH), l2(WIDTH)
    error = LayerFit(start, fresh, x, 16)._error()
    fit = LayerFit(start, layer, x, 16)
    errors = fit.run(0, 1e-3, 0)
    assert 0.9 * error > errors["before"] >= errors["after"] == pytest.approx(errors["before"], rel=1e-6)  # solved twice
    output = layer.output.weight.detach().clone()
    for seed in range(5):
        torch.manual_seed(seed)
        layer.output.weight.data = output + 0.01 * torch.randn(output.shape)
        assert fit._error() > errors["after"]
    query, key, _, _ = start.head_weights()
    expected = (query @ key.mT + key @ query.mT) / 4
    values, vectors = torch.linalg.eigh(expected)
    best = (vectors * values.clamp(min=0)[:, None]) @ vectors.mT  # at most 4 of 8 are positive, as there are 4 columns
    assert torch.allclose(layer.head_weights()[0] @ layer.head_weights()[0].mT, best, atol=1e-5)


@pytest.mark.parametrize("teacher", [lambda: network(dot_product), timm_vit], ids=["sequence", "timm"])
def test_all_other_weights_are_copied_to_the_byte(teacher, tmp_path) -> None:
    """With the trained attention put back, the network gives the trained logits."""
    start, model = trained(teacher()), network(l2, seed=1)
    distilled(tmp_path, model, start, epochs=0)
    attention = [block.attn for block in start[1].blocks] if len(start) == 2 else [start[5].body[1], start[7].body[1]]
    before = {name: tensor.clone() for name, tensor in start.state_dict().items()}
    for residual, layer in zip((model[5], model[7]), attention, strict=True):
        residual.body[1] = layer
    for norm in (model[5].body[0], model[6].body[0], model[7].body[0], model[8].body[0], model[9]):
        norm.eps = 1e-6 if len(start) == 2 else 1e-5  # timm's
    assert torch.allclose(model(SPLIT[0]), start(SPLIT[0]), atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in start.state_dict().items())


def test_norms_that_the_network_lacks_are_named(tmp_path) -> None:
    start, model = trained(network(dot_product)), network(l2, norm=False, seed=1)
    history = distilled(tmp_path, model, start)
    norms = [*(f"{block}.body.0" for block in (5, 6, 7, 8)), "9"]
    assert history["left_out"] == [f"{norm}.{name}" for norm in norms for name in ("weight", "bias")]


def test_layers_of_the_trained_kind_are_copied_and_others_than_l2_start_afresh(tmp_path) -> None:
    kinds = iter([dot_product, lambda width: ScaledCosineAttention(width, 2, eps=0.1)])
    start, model = trained(network(dot_product)), network(lambda width: next(kinds)(width), seed=1)
    history = distilled(tmp_path, model, start, epochs=0, layer_epochs=20, learning_rate=1e-2)
    (layer,) = history["layers"]
    assert layer["layer"] == "7.body.1"
    assert layer["after"] < 0.9 * layer["before"]
    assert all(torch.equal(a, b) for a, b in zip(start[5].parameters(), model[5].parameters(), strict=True))


@pytest.mark.slow
def test_windows_learn_from_windows_and_start_with_their_position_biases(tmp_path) -> None:
    def windows(kind):
        return lambda width: kind(width, 2, side=4, window=2, shift=1)

    start = trained(network(windows(DotProductWindowAttention), token=False))
    model = network(windows(L2WindowAttention), token=False, seed=1)
    distilled(tmp_path / "start", model, start, layer_epochs=0, epochs=0)
    for block in (4, 6):
        assert torch.equal(model[block].body[1].bias_table, start[block].body[1].bias_table)
    history = distilled(tmp_path / "fit", model, start, layer_epochs=5, epochs=0)
    assert not torch.equal(model[4].body[1].bias_table, start[4].body[1].bias_table)
    for layer in history["layers"]:
        assert layer["after"] < layer["before"] < 1
    tokens, layer = start[:4](SPLIT[0]), L2WindowAttention(WIDTH, 2, side=4, window=4)
    before = layer.bias_table.clone()
    LayerFit(start[4].body[1], layer, tokens, 20).run(0, 1e-3, 0)
    assert torch.equal(layer.bias_table, before), "windows of another size have other places"


def test_what_is_frozen_does_not_learn(tmp_path) -> None:
    start, model = trained(network(dot_product)), network(l2, seed=1)
    model[2].requires_grad_(False)
    distilled(tmp_path, model, start)
    assert torch.equal(model[2].weight, start[2].weight)
    assert not torch.equal(model[11].weight, start[11].weight)
    distilled(tmp_path / "all", network(l2).requires_grad_(False), start)


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, monkeypatch) -> None:
    start = trained(network(dot_product))
    whole, resumed = network(l2, seed=1), network(l2, seed=2)  # what it comes with does not matter
    history = distilled(tmp_path / "whole", whole, start)

    def say(text: str) -> None:
        if text.startswith("5."):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(network(l2, seed=3), start, SPLIT, place(tmp_path / "killed", say), **SHORT)
    fitted: list[str] = []
    run = LayerFit.run
    monkeypatch.setattr(LayerFit, "run", lambda self, *given: fitted.append("one") or run(self, *given))
    again = distilled(tmp_path / "killed", resumed, start)
    assert fitted == ["one"], "the first layer was kept"
    assert again == history
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True))
    monkeypatch.setattr(l2_distillation, "_learn", None)
    assert distilled(tmp_path / "killed", network(l2, seed=4), start) == history, "all was kept"


def test_the_seed_decides_and_no_random_numbers_are_drawn(tmp_path) -> None:
    start = trained(network(dot_product))
    models = [network(l2, seed=seed) for seed in range(3)]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for number, model in enumerate(models[:2]):
        distilled(tmp_path / str(number), model, start, samples=30)
    assert torch.equal(torch.rand(3), expected)
    prepare(models[2], start, SPLIT, Place(tmp_path / "2", 4, torch.device("cpu"), lambda _: None), samples=30, **SHORT)
    same, other = (
        [torch.equal(a, b) for a, b in zip(models[0].parameters(), model.parameters(), strict=True)] for model in models[1:]
    )
    assert all(same)
    assert not any(other)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: network(l2, width=4), r"2\.weight is \(8, 4\) in the trained network and 2\.weight is \(4, 4\) here; only"),
        (lambda: network(l2, blocks=1), "the trained network has 2 attention layers, this one 1"),
        (lambda: network(lambda width: nn.Identity()), "Sequential has no attention layer"),
        (
            lambda: network(lambda width: L2Attention(width, 4)),
            r"5\.body\.1, .*queries are 2 heads of 4 by 8 there and 4 heads of 2 by 8 here",
        ),
        (
            lambda: network(lambda width: L2WindowAttention(width, 2, side=4, window=2)),
            r"5\.body\.1, .*tokens \(5, 8\) do not fit it \(ValueError",
        ),
        (
            lambda: network(lambda width: nn.Sequential(L2Attention(width, 2), nn.Linear(width, width))),
            "has 6 of the kind layer, this one 8",
        ),
        (
            lambda: network(l2).append(nn.BatchNorm1d(3)),
            r"5 of the kind norm, this one 6: one has no counterpart of the other's 12\.weight",
        ),
    ],
)
def test_what_does_not_match_is_refused_by_name_in_one_line(make, reason, tmp_path) -> None:
    with pytest.raises(BenchmarkError, match=reason) as refused:
        distilled(tmp_path, make(), trained(network(dot_product)))
    assert "\n" not in str(refused.value)


def test_biases_that_are_new_are_refused_and_those_that_go_are_named(tmp_path) -> None:
    without = network(l2)
    without[-1] = nn.Linear(WIDTH, 3, bias=False)
    start = network(dot_product)
    assert distilled(tmp_path / "a", without, trained(start))["left_out"] == ["11.bias"]
    start[-1] = nn.Linear(WIDTH, 3, bias=False)
    with pytest.raises(BenchmarkError, match=r"11\.bias has no counterpart in the trained network, at 11\.weight"):
        distilled(tmp_path / "b", network(l2), trained(start))


def test_attention_with_its_residual_and_fits_that_are_not_finite_are_refused(tmp_path) -> None:
    start = trained(network(lambda width: ResidualAttention(width, 2, qk_norm=1.0, vo_norm=0.5)))
    with pytest.raises(BenchmarkError, match="ResidualAttention adds its input"):
        distilled(tmp_path / "residual", network(l2), start)
    with pytest.raises(BenchmarkError, match="not finite; lower the learning rate"):
        distilled(tmp_path / "infinite", network(l2), trained(network(dot_product)), learning_rate=1e30)


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "layer_epochs": [-1], "epochs": [-1, 0.5], "batch_size": [-1, 0], "samples": [-1],
        "learning_rate": [0.0, float("nan")],
    }.items(),
)  # fmt: skip
def test_parameters_out_of_their_ranges_are_refused(name, values) -> None:
    for value in values:
        assert_out_of_range(prepare, **{name: value})
