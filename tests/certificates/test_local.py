"""Certificates: one-sided tests against exact references and against attempts to break them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_certified import network, random_perturbations
from tiny_layers import mlp
from tiny_networks import Draw, random_network
from torch import nn

from benchmark.audit.ascent import float64_copy, lower_margins
from benchmark.certificates import local, published
from benchmark.certificates.bounds.attention import AttentionBound
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.dispatch import exact_layer_bound
from benchmark.certificates.bounds.network_bound import NetworkBound, bound_network
from benchmark.certificates.bounds.projection import projection_bound
from benchmark.certificates.local import by_both, certified_at, certify, float32_gap
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_l2_window import L2WindowAttention
from benchmark.layers.derived import cache_weights
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear, SLLBlock, SmoothSLLBlock, almost_orthogonal
from benchmark.layers.residual import Residual
from benchmark.layers.token_convolution import TokenConvolution
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError


@pytest.mark.parametrize("seed", range(5))
def test_bounded_layers_keep_their_norm(seed) -> None:
    torch.manual_seed(seed)
    raw = torch.randn(9, 5, dtype=torch.float64) * 10 ** torch.randint(-3, 3, (1,)).item()
    raw[:, 2] = 0
    assert torch.linalg.matrix_norm(almost_orthogonal(raw), ord=2) <= 1 + 1e-12
    block = SLLBlock(6, 10).double()
    for parameter in block.parameters():
        parameter.data = torch.randn_like(parameter) * 2
    x, y = torch.randn(2, 2000, 6, dtype=torch.float64)
    ratio = (block(x) - block(y)).norm(dim=1) / (x - y).norm(dim=1)
    assert ratio.max() <= 1 + 1e-12


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0.01, 8.0), min_size=1, max_size=4),
    st.floats(0.1, 3.0),
    st.floats(0.001, 10.0),
    st.integers(0, 10**6),
)
def test_projection_bound_is_above_random_moves(norms, ball, radius, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    r = torch.tensor([norms], dtype=torch.float64)
    x = torch.zeros(1, len(norms), 2, dtype=torch.float64)
    x[0, :, 0] = r
    project = LayerProject(ball)
    bound = projection_bound(r, ball, torch.tensor([radius], dtype=torch.float64))
    move = torch.randn(2000, len(norms), 2, generator=generator, dtype=torch.float64)
    move[::2, 1:] = 0  # half of them spend all on the first token
    move *= radius / move.flatten(1).norm(dim=1)[:, None, None]
    moved = (project(x + move) - project(x)).flatten(1).norm(dim=1)
    assert moved.max() <= bound * (1 + 1e-9)
    assert bound <= radius


@pytest.mark.parametrize(("r", "ball", "e", "ratio"), [(6, 1, 1, 0.1673), (1.5, 1, 0.5, 0.6764), (0.5, 1, 0.3, 1)])
def test_projection_bound_is_exact_for_one_token(r, ball, e, ratio) -> None:
    """Values from an exhaustive search over moves in the plane."""
    bound = projection_bound(torch.tensor([[r]]).double(), ball, torch.tensor([e]).double())
    assert float(bound) / e == pytest.approx(ratio, abs=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_no_layer_moves_more_than_its_bound(seed) -> None:
    model = network(seed).double()
    x = torch.rand(4, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed + 1)
    for layer in model[:-1]:
        bound = exact_layer_bound(layer, x).bound
        for radius in (1e-3, 0.1, 1.0):
            limit = bound(torch.full((4,), radius, dtype=torch.float64))
            move = torch.randn(50, *x.shape, generator=generator, dtype=torch.float64)
            move *= radius / move.flatten(2).norm(dim=2).reshape(50, 4, *[1] * (x.ndim - 1))
            moved = torch.stack([(layer(x + m) - layer(x)).flatten(1).norm(dim=1) for m in move]).amax(0)
            assert (moved <= limit * (1 + 1e-9)).all(), type(layer).__name__
        x = layer(x)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("radius", "rest"), [(1e-3, 0.0), (0.05, 0.01), (0.5, 0.1), (2.0, 1.0)])
def test_no_remainder_exceeds_its_bound(seed, radius, rest) -> None:
    """Each layer's nominal Jacobian, its remainder's norm, and what the remainder takes along its own worst direction."""
    model = network(seed).double()
    x = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for layer in model[:-1]:
        layer_bound = exact_layer_bound(layer, x)
        perturbation, moves = random_perturbations(x, radius, rest, seed)
        linear = layer_bound.jvp(moves)
        _, exact = (
            torch.func.jvp(layer, (x,), (moves[0],)) if "Attention" not in type(layer).__name__ else (0, linear[0])
        )
        assert torch.allclose(linear[0], exact, atol=1e-9), type(layer).__name__
        left = torch.stack([layer(x + move) - layer(x) for move in moves]) - linear
        sizes = left.flatten(2).norm(dim=2)
        assert (sizes <= layer_bound.remainder(perturbation) * (1 + 1e-9) + 1e-12).all(), type(layer).__name__
        worst = left[sizes.argmax(0), torch.arange(3)]  # n, *shape
        against = -worst / worst.flatten(1).norm(dim=1).clamp(min=1e-300).reshape(3, *[1] * (worst.ndim - 1))
        a = torch.stack([against, torch.randn_like(against)], dim=1)
        taken = -torch.einsum("snm,nrm->snr", left.flatten(2), a.flatten(2)).amax(0)
        assert (taken <= layer_bound.remainder_along(a, perturbation) * (1 + 1e-9) + 1e-12).all(), type(layer).__name__
        x = layer(x)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("q", [0.0, 1.0])
def test_what_sll_blocks_choose_in_place_of_their_jacobian_is_sound(seed, q) -> None:
    """`choose_relaxation` and `relax_for_rival` at the reach that they are for and at others, against random moves and moves to the kinks."""
    torch.manual_seed(seed)
    layer = SLLBlock(8, 16).double().requires_grad_(False)
    layer.weight += 0.3 * torch.randn(8, 16)
    layer.bias += 0.5 * torch.randn(16)
    layer.log_q += q * torch.randn(16)
    x, a = torch.randn(3, 4, 8).double(), torch.randn(3, 5, 4, 8).double()
    for settled, radius, rest in ((0.3, 0.3, 0.1), (0.3, 1.0, 0.0), (1.0, 0.1, 0.05), (0.0, 0.5, 0.5), (2.0, 3.0, 0.3)):
        layer_bound = exact_layer_bound(layer, x)
        layer_bound.choose_relaxation(random_perturbations(x, settled, rest, seed)[0])
        perturbation, moves = random_perturbations(x, radius, rest, seed + 1)
        moved = torch.stack([layer(x + move) - layer(x) for move in moves])
        assert (
            (moved - layer_bound.jvp(moves)).flatten(2).norm(dim=2) <= layer_bound.remainder(perturbation) * (1 + 1e-9)
        ).all()
        taken, b = layer_bound.relax_for_rival(a, perturbation)
        changes = torch.einsum("nrm,snm->snr", a.flatten(2), moved.flatten(2))
        straight = torch.einsum("nrm,snm->snr", b.flatten(2), moves.flatten(2))
        assert (changes >= straight - taken * (1 + 1e-9) - 1e-12).all()
        for most in (0.1, 1.0, 5.0):  # one neuron: all moves up to `most`
            ratio = layer_bound._ratio(torch.full_like(layer_bound.z, most))
            for share in torch.linspace(-1, 1, 101).tolist():
                d = torch.full_like(layer_bound.z, share * most)
                missed = torch.relu(layer_bound.z + d) - torch.relu(layer_bound.z) - layer_bound.chosen_slopes * d
                assert (missed.abs() <= ratio * d.abs() * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("seed", range(4))
def test_no_margin_falls_further_than_its_bound(seed) -> None:
    """The network-level bound against random and gradient moves of the image, for every rival and both passes."""
    single = network(seed)
    model = copy.deepcopy(single).double()
    images = torch.rand(4, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    labels = model(images).argmax(1)
    for radius, around in ((1e-3, 0.0), (0.03, 0.0), (0.03, 0.03), (0.3, 0.1), (0.3, 0.3), (1.0, 2.0)):
        radii = torch.full((4,), radius, dtype=torch.float64)
        bounded = bound_network(checked_copy(single), images, labels)
        bounded.relaxation_radius = torch.full_like(radii, around)
        both, composed, quick = bounded.margin_drop(radii), bounded.composed(radii), bounded.composed(radii, quick=True)
        assert (both <= composed * (1 + 1e-9)).all()
        assert (composed <= quick * (1 + 1e-9)).all()
        moves = torch.randn(100, *images.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        moves[:4] = -bounded.gradients[0].transpose(0, 1)  # straight down each rival's margin
        moves *= radius / moves.flatten(2).norm(dim=2).clamp(min=1e-300)[..., None, None, None]
        logits = model((images + moves).flatten(0, 1)).unflatten(0, (100, 4))
        margins = logits.gather(2, labels.expand(100, 4)[..., None]) - logits
        assert (bounded.margins - margins <= both * (1 + 1e-9) + 1e-12).all()


def test_the_margin_gradient_certifies_more_at_small_radii() -> None:
    """To first order it pays the gradient's norm alone, where composing pays the product of all layers."""
    model = network(1)
    images = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    bounded = bound_network(checked_copy(model), images, model(images).argmax(1), float32=False)
    radii = torch.full((20,), 1e-4, dtype=torch.float64)
    rivals = bounded.difference_norms > 0
    both, composed = bounded.margin_drop(radii)[rivals], bounded.composed(radii)[rivals]
    first = (bounded.gradients[0].flatten(2).norm(dim=2) * 1e-4)[rivals]
    assert both.mean() < 1.1 * first.mean()
    assert both.mean() < 0.9 * composed.mean()


def heads() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    large, small, plain = nn.Linear(9, 4), nn.Linear(9, 4, bias=False), nn.Linear(9, 4)
    large.weight.data += 1e3 * torch.rand(9)  # rows so alike that only the logits' own rounding counts
    small.weight.data *= 1e-3
    return {"normalised": NormalisedHead(9, 4), "plain": plain, "large rows": large, "small rows, no bias": small}


@pytest.mark.parametrize("name", ["normalised", "plain", "large rows", "small rows, no bias"])
def test_certificate_of_a_linear_network_is_margin_over_row_distance(name) -> None:
    """Patchify and pooling of one token are isometries, so the certificate is exact up to the float32 allowance."""
    head = heads()[name]
    torch.manual_seed(0)
    model = nn.Sequential(Patchify(3), MeanPool(), head).requires_grad_(False)
    images = torch.rand(20, 1, 3, 3)
    logits, weight = model(images).double(), head.weight.double()
    labels = logits.argmax(1)
    margin = logits.gather(1, labels[:, None]) - logits
    apart = (weight[labels][:, None] - weight[None]).norm(dim=-1)
    exact = (margin / apart).scatter(1, labels[:, None], math.inf).amin(1)
    found, allowed = float32_gap(model, images, labels)  # which raises where rounding is above what it allows
    assert 0 < found <= allowed
    radii = certify(model, images, labels)
    assert (radii <= exact).all()
    rounding = 2e-4 * weight.norm(dim=1).max()
    assert (radii >= exact * (1 - 1e-4) - rounding / apart.scatter(1, labels[:, None], math.inf).amin(1)).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_plain_linear_head_of_any_size_is_certified_soundly(seed) -> None:
    """Random networks whose rows differ in size: float32 stays within its allowance, and no ball holds what breaks it."""
    model, images, _ = random_network(seed)
    draw = Draw(seed)
    width, classes = model[-1].weight.shape[1], len(model[-1].bias)
    model[-1] = nn.Linear(width, classes, bias=seed % 3 > 0).requires_grad_(False)
    model[-1].weight.data = draw.normal(classes, width) * 10 ** (2 * draw.normal(classes, 1))
    labels = model(images).argmax(1)
    found, allowed = float32_gap(model, images, labels)
    assert found <= allowed
    radii, logits = certify(model, images, labels), float64_copy(model)(images.double())
    assert (radii > 0).any()
    for shift in range(1, classes):
        rivals = (labels + shift) % classes
        drop, _ = lower_margins(
            float64_copy(model), images.double(), labels, rivals, radii, steps=40, seed=seed, box=False
        )
        margins = logits.gather(1, labels[:, None]) - logits.gather(1, rivals[:, None])
        assert (drop < margins[:, 0])[radii > 0].all()


def test_a_layer_without_a_bound_is_refused_by_name() -> None:
    model = nn.Sequential(Patchify(2), nn.Softmax(-1), MeanPool(), NormalisedHead(4, 3))
    with pytest.raises(BenchmarkError, match="Softmax"):
        bound_network(checked_copy(model), torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(BenchmarkError, match="NormalisedHead"):
        certify(nn.Sequential(nn.Flatten()), torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.long))


class Sum(MeanPool):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


class Detour(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)


def with_bias() -> nn.Sequential:
    model = network(0)
    model[5].query.bias = nn.Parameter(torch.ones(8))
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(*list(network(0))[:-2], Sum(), network(0)[-1]), "the layer Sum at 10 is none"),
        (Detour(*network(0)), "plain nn.Sequential"),
        (with_bias(), r"ResidualAttention at 5 has a query\.bias"),
        (nn.Sequential(Patchify(4), Positions(16, 16), MeanPool(), NormalisedHead(16, 4)), "positions .* do not fit"),
        (nn.Sequential(Patchify(2), NormalisedHead(4, 4)), "one vector an image"),
    ],
)
def test_what_could_hide_behind_a_declared_layer_is_refused(model, reason) -> None:
    with pytest.raises(BenchmarkError, match=reason):
        certify(model.eval(), torch.rand(3, 1, 4, 4), torch.zeros(3, dtype=torch.long))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cascade_gives_the_verdicts_of_its_last_step(seed) -> None:
    model = network(seed)
    images = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    labels = model(images).argmax(1)
    labels[:5] = (labels[:5] + 1) % 4
    radii = certify(model, images, labels)
    for radius in (0.0, 1e-3, float(radii.median()), 0.1, 0.5):
        bounded = bound_network(checked_copy(model), images, labels)
        bounded.relaxation_radius = torch.full((60,), radius, dtype=torch.float64)  # as the cascade settles
        full = (bounded.rival_margins > bounded.margin_drop(bounded.relaxation_radius)).all(1)
        cascade = certified_at(model, images, labels, radius)
        assert torch.equal(cascade, full)
        assert cascade[radii > radius * 1.01].all()
    with pytest.raises(ValueError, match="negative"):
        certified_at(model, images, labels, -0.1)


def test_a_rival_with_the_label_s_own_row_is_a_tie() -> None:
    model = network(0)
    images = torch.rand(10, 1, 4, 4)
    labels = torch.zeros(10, dtype=torch.long)
    model[-1].bias.data[0] = 5.0
    assert (certify(model, images, labels) > 0).all()
    model[-1].raw.data[2], model[-1].bias.data[2] = model[-1].raw.data[0], 5.0
    assert (certify(model, images, labels) == 0).all()


def test_held_weights_follow_their_parameters() -> None:
    model = network(0)
    with pytest.raises(ValueError, match="learns"):
        cache_weights(network(0).requires_grad_(True))
    fresh, images = [layer.weight for layer in (model[2], model[-1])], torch.rand(3, 1, 4, 4)
    cache_weights(model)
    assert model[2].weight is model[2].weight
    assert torch.equal(model[2].weight, fresh[0])
    assert torch.equal(model[-1].weight, fresh[1])
    assert torch.equal(copy.deepcopy(model).double()[6].scale, network(0).double()[6].scale)
    model.load_state_dict(network(1).state_dict())
    assert torch.equal(model(images), network(1)(images))
    cache_weights(model)
    model[2].raw.data[0, 0] += 1  # behind torch's back
    edited = network(1)
    edited[2].raw.data[0, 0] += 1
    assert torch.equal(model(images), edited(images))
    before = model[2].weight
    model[2].norm = edited[2].norm = 0.5
    assert not torch.equal(model[2].weight, before)
    assert torch.equal(model(images), edited(images))
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(model)(images), edited(images))


def test_a_neuron_without_weights_and_a_huge_radius_are_certified_as_any_other() -> None:
    model, images = network(0), torch.rand(4, 1, 4, 4)
    model[6].weight.data[:, 0] = 0.0
    labels = model(images).argmax(1)
    assert (certify(model, images, labels) > 0).all()
    assert not certified_at(model, images, labels, 1e200).any()
    steep = network(0, qk_norm=1e9)
    assert (published.certify(steep, images, steep(images).argmax(1)) >= 0).all()
    bounded = bound_network(checked_copy(model), images, labels)
    assert not by_both(bounded, torch.full((4,), 1e100, dtype=torch.float64)).any()


def test_a_number_that_is_no_bound_never_stands_in_for_one(monkeypatch) -> None:
    """NaN from the margin gradient leaves what composing gives; NaN from composing certifies nothing."""
    model, images = network(0), torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    radii = torch.full((4,), 1e-3, dtype=torch.float64)

    def bounded() -> NetworkBound:
        return bound_network(checked_copy(model), images, labels)

    composed = bounded().composed(radii)
    monkeypatch.setattr(
        NetworkBound, "_first_order", lambda _, a, *__: torch.full_like(a.flatten(2)[..., 0], torch.nan)
    )
    assert torch.equal(bounded().margin_drop(radii), composed)
    monkeypatch.undo()
    monkeypatch.setattr(AttentionBound, "quick_bound", lambda _, delta: delta * torch.nan)
    assert bounded().composed(radii, quick=True).isinf().all()
    assert (local.certify(model, images, labels) > 0).all()
    monkeypatch.setattr(AttentionBound, "bound", lambda _, delta: delta * torch.nan)
    assert bounded().composed(radii).isinf().all()
    assert (local.certify(model, images, labels) == 0).all()


def test_a_radius_may_be_any_number_and_a_search_has_to_end() -> None:
    """Weights of 100 once made `certified_at` raise, for one row of a matrix that was not finite."""
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    mixed = (Residual(nn.Sequential(LayerProject(1.0), L2Attention(4, 2))), Residual(TokenConvolution(4, (3,))))
    tokens = (Patchify(2), OrthogonalLinear(4, 4), ClassToken(4), Positions(5, 4))
    steep = nn.Sequential(*tokens, *mixed, SmoothSLLBlock(4, 8, bend=0.1), MeanPool(), NormalisedHead(4, 3))
    steep = steep.eval().requires_grad_(False)
    for parameter in steep.parameters():
        parameter *= 100
    for model in (network(0), steep):
        labels = model(images).argmax(1)
        assert (certify(model, images, labels) >= 0).all()
        for radius in (0, 1, 100, 3000, 1e30, 1e300, True, torch.tensor(0.5)):
            assert certified_at(model, images, labels, radius).shape == (3,)
    for radius in (-1, float("nan"), float("inf"), 10**400):
        with pytest.raises(ValueError, match="is negative or not finite"):
            certified_at(model, images, labels, radius)
    for odd in ({"precision": 0.0}, {"precision": float("nan")}, {"largest": -1.0}, {"largest": float("inf")}):
        with pytest.raises(BenchmarkError, match="should be a radius in pixels, and precision"):
            certify(network(0), images, network(0)(images).argmax(1), **odd)


def test_an_embedding_that_sums_in_float64_is_certified_in_evaluation_mode_only() -> None:
    model, images = network(0), torch.rand(2, 1, 4, 4)
    model[2] = OrthogonalLinear(model[2].raw.shape[1], model[2].raw.shape[0]).requires_grad_(False)
    labels = model.eval()(images).argmax(1)
    assert (certify(model, images, labels) > 0).all()
    with pytest.raises(BenchmarkError, match="training mode"):
        certify(model.train(), images, labels)


def test_an_orthonormal_embedding_keeps_lengths_and_rounds_once() -> None:
    torch.manual_seed(0)
    for inputs, outputs in ((9, 4), (4, 9), (4, 4)):
        layer = OrthogonalLinear(inputs, outputs).requires_grad_(False).eval()
        layer.raw.normal_()
        layer.bias.normal_()
        weight = layer.weight if outputs <= inputs else layer.weight.mT
        assert (weight @ weight.mT - torch.eye(len(weight))).abs().max() < 1e-7
        assert torch.linalg.matrix_norm(weight, ord=2) <= 1 + 1e-12
        x = 100 * torch.randn(50, 3, inputs)
        gap = (layer(x).double() - copy.deepcopy(layer).double()(x.double())).flatten(1).norm(dim=1)
        allowed = exact_layer_bound(copy.deepcopy(layer).double(), x.double()).rounding(torch.zeros(50).double())
        assert (gap <= allowed).all()
        assert allowed.max() < 1e-6 * x.norm()
        trained = layer.train()(x)
        assert torch.allclose(trained, layer.eval()(x), atol=1e-3)


def overflowing(blocks: int = 4) -> nn.Sequential:
    """LayerNorm before L2 attention in windows, so many times that float32's rounding has no finite bound."""
    torch.manual_seed(0)
    mixers: list[nn.Module] = []
    for _ in range(blocks):
        attention = L2WindowAttention(4, 2, side=4, window=2, shift=1)
        nn.init.orthogonal_(attention.content.query.weight, gain=3.0)
        mixers += [Residual(nn.Sequential(nn.LayerNorm(4), attention)), Residual(mlp())]
    model = nn.Sequential(Patchify(1), nn.Linear(1, 4), *mixers, MeanPool(), nn.Linear(4, 3))
    return model.eval().requires_grad_(False)


def test_where_not_even_rounding_is_bounded_nothing_is_certified() -> None:
    model, images = overflowing(), torch.rand(3, 1, 4, 4)
    labels = model(images).argmax(1)
    network = checked_copy(model)
    assert not torch.isfinite(bound_network(network, images, labels).composed(torch.zeros(3).double())).all(1).any()
    assert (certify(model, images, labels) == 0).all()
    assert not certified_at(model, images, labels, 1e-6).any()


def test_images_of_which_nothing_is_known_do_not_keep_the_others_from_their_bounds(monkeypatch) -> None:
    model, images = overflowing(1), torch.rand(6, 1, 4, 4)
    labels = model(images).argmax(1)
    alone = certify(model, images, labels)
    assert (alone > 0).all()
    hopeless, composed = images[[0, 3]].double(), NetworkBound.composed

    def patched(self, radius, **options):
        found = composed(self, radius, **options)
        known = torch.stack([(self.activations[0] != one).flatten(1).any(1) for one in hopeless]).all(0)
        return torch.where(known[:, None], found, torch.nan)

    monkeypatch.setattr(NetworkBound, "composed", patched)
    radii = certify(model, images, labels)
    assert (radii[[0, 3]] == 0).all()
    assert torch.allclose(radii[[1, 2, 4, 5]], alone[[1, 2, 4, 5]], rtol=1e-3)
