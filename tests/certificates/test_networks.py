"""Networks of every kind of layer: certified, audited and unbroken; no layer, remainder or margin exceeds its bound."""

from __future__ import annotations

import pytest
import torch
from searched import few
from tiny_certified import assert_no_margin_falls_further, assert_unbroken, network, random_perturbations
from tiny_layers import vit
from torch import nn

from benchmark.certificates import lipschitz
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.layer_bound import LayerBound, exact_layer_bound
from benchmark.certificates.bounds.network_bound import NetworkBound, bound_network
from benchmark.certificates.bounds.projection import projection_bound
from benchmark.certificates.local import certified_at, certify, float32_gap
from benchmark.evaluation.audit_layers import Effort, audit_layers
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.layers.competitive_attention import CompetitiveAttention, ConeAttention, MaxMinTokens
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock, almost_orthogonal
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions


def lipsformer() -> list[nn.Module]:
    layers: list[nn.Module] = [Normalise(), Patchify(2), nn.Linear(4, 8), Positions(4, 8)]
    for _ in range(2):
        mlp = nn.Sequential(CenterNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        attention = nn.Sequential(CenterNorm(8), ScaledCosineAttention(8, 2, eps=0.1, tau=2.0))
        layers += [WeightedResidual(attention, 8), WeightedResidual(mlp, 8, initial=0.1)]
    return [*layers, CenterNorm(8), MeanPool(), NormalisedHead(8, 4)]


def windows() -> list[nn.Module]:
    attention = L2WindowAttention(4, 2, side=4, window=2, shift=1)
    nn.init.normal_(attention.bias_table, std=3.0)
    mixer = Residual(nn.Sequential(LayerProject(1.0), attention))
    return [Normalise(), Patchify(1), BoundedLinear(1, 4), mixer, MeanPool(), NormalisedHead(4, 3)]


def grid() -> list[nn.Module]:
    attention = GridAttention(8, 2, inner=2, side=2, content=1.0)
    mixers = [Absolute(4), attention, Absolute(4), ShiftTokens(2, 1), OrthogonalLinear(8, 8), Absolute(8)]
    return [Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 8), Positions(4, 8), *mixers, nn.Flatten(1), NormalisedHead(32, 3)]  # fmt: skip


def competition() -> list[nn.Module]:
    attention = [CompetitiveAttention(8, 1, side=2, window=3, budget=0.3), ConeAttention(8, 1, side=2, window=4)]
    mixers = [attention[0], OrthogonalLinear(8, 8), attention[1], OrthogonalLinear(8, 8), MaxMinTokens(2, 3)]
    return [Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 8), *mixers, nn.Flatten(1), NormalisedHead(32, 3)]


def convolutions() -> list[nn.Module]:
    first = [Resize(8), Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 8), Positions(16, 8)]
    mixers = [Residual(BoundedTokenConvolution(8, (3, 5), norm=2.0)), SLLBlock(8, 12)]
    dense = Residual(nn.Sequential(BoundedTokenConvolution(8, (3,), norm=2.0), BoundedLinear(8, 8)))
    return [*first, *mixers, dense, TokenConvolution(8, (3, 1)), nn.GELU(), MeanPool(), NormalisedHead(8, 4)]


NETWORKS = {
    "dot products": lambda: network(0),
    "vit": lambda: vit(0, nn.LayerNorm(8)),
    "vit of projections": lambda: vit(0, LayerProject(1.0)),
    "lipsformer": lipsformer,
    "windows": windows,
    "grid": grid,
    "competition": competition,
    "convolutions": convolutions,
}
NO_GLOBAL_CONSTANT = ("dot products", "grid")


def made(name: str, seed: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """A network, images (2, 1, 4, 4) and its predictions."""
    torch.manual_seed(seed)
    model = nn.Sequential(*NETWORKS[name]()).eval().requires_grad_(False)
    for parameter in model.parameters() if seed else ():
        parameter *= 1 + 0.3 * torch.randn(parameter.shape)
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    model[-1].bias -= 0.7 * model(images).mean(0)
    return model, images, model(images).argmax(1)


FAST = ("windows", "grid", "competition", "convolutions")


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS if name not in FAST)])  # fmt: skip
@pytest.mark.parametrize("seed", few([0], [1, 2]))
def test_a_network_is_certified_audited_and_not_broken(name, seed) -> None:
    model, images, labels = made(name, seed)
    radii = certify(model, images, labels, precision=0.05)
    assert (radii > 0).any()
    assert certified_at(model, images, labels, 0.95 * float(radii.max())).any()
    if name not in NO_GLOBAL_CONSTANT:
        assert (radii >= lipschitz.certify(model, images, labels) * (1 - 6e-2)).all()
    measured, allowed = float32_gap(model, images, labels)
    assert 0 < measured <= allowed < 0.1
    tally = audit_layers(model, images[:1], [0], "row", effort=Effort(radii=(0.1,), starts=2, steps=3))
    assert tally.layers == len(model) - 1
    assert 0.9 < tally.worst <= 1 + 1e-9
    assert_unbroken(model, images, labels, radii)


@pytest.fixture
def real_numbers(monkeypatch):
    """Bounds of the network without float32's rounding."""
    monkeypatch.setattr(LayerBound, "rounding_in_range", lambda self, delta: torch.zeros_like(delta))
    monkeypatch.setattr(NetworkBound, "head_rounding", lambda self, delta: torch.zeros_like(self.margins))


@pytest.mark.sweep
@pytest.mark.usefixtures("real_numbers")
@pytest.mark.parametrize("name", NETWORKS)
def test_no_margin_falls_further_than_its_bound(name) -> None:
    """Against random and gradient moves of the image, for every rival and both passes, whatever radius relaxations suit."""
    model, images, labels = made(name, 3)
    exact = checked_copy(model)
    for radius, around in ((1e-3, 0.0), (0.03, 0.03), (0.3, 0.1), (1.0, 2.0)):
        bounded = bound_network(exact, images.double(), labels)
        bounded.relaxation_radius = torch.full((2,), around, dtype=torch.float64)
        assert_no_margin_falls_further(exact, bounded, images.double(), labels, radius)


def moves_of(layer: nn.Module, x: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """Return the output's change for each move of x (n, *shape): (count, n, *shape) to the same."""
    return layer((x + moves).flatten(0, 1)).unflatten(0, moves.shape[:2]) - layer(x)


@pytest.mark.parametrize("seed", few([0, 1], range(2, 5)))
def test_bounded_layers_keep_their_norm(seed) -> None:
    torch.manual_seed(seed)
    raw = torch.randn(9, 5, dtype=torch.float64) * 10 ** torch.randint(-3, 3, (1,)).item()
    raw[:, 2] = 0
    assert torch.linalg.matrix_norm(almost_orthogonal(raw), ord=2) <= 1 + 1e-12


@pytest.mark.parametrize("seed", few([0], range(1, 4)))
@pytest.mark.parametrize("q", [0.0, 1.0])
def test_relaxations_of_sll_blocks_are_sound(seed, q) -> None:
    """`choose_relaxation` and `relax_for_rival`, at the chosen radius and at others, for random moves and moves to kinks."""
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
        moved = moves_of(layer, x, moves)
        remainder = (moved - layer_bound.jvp(moves)).flatten(2).norm(dim=2)
        assert (remainder <= layer_bound.remainder(perturbation) * (1 + 1e-9)).all()
        taken, b = layer_bound.relax_for_rival(a, perturbation)
        changes = torch.einsum("nrm,snm->snr", a.flatten(2), moved.flatten(2))
        straight = torch.einsum("nrm,snm->snr", b.flatten(2), moves.flatten(2))
        assert (changes >= straight - taken * (1 + 1e-9) - 1e-12).all()
        for most in (0.1, 1.0, 5.0):  # one neuron: all moves up to `most`
            ratio = layer_bound._ratio(torch.full_like(layer_bound.z, most))
            d = most * torch.linspace(-1, 1, 101).double().reshape(-1, *[1] * layer_bound.z.ndim)
            missed = torch.relu(layer_bound.z + d) - torch.relu(layer_bound.z) - layer_bound.chosen_slopes * d
            assert (missed.abs() <= ratio * d.abs() * (1 + 1e-9) + 1e-12).all()


@pytest.mark.usefixtures("real_numbers")
def test_the_margin_gradient_certifies_more_at_small_radii() -> None:
    """To first order it pays the gradient's norm alone, where composing pays the product of all layers."""
    model = network(1)
    images = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    bounded = bound_network(checked_copy(model), images, model(images).argmax(1))
    radii = torch.full((20,), 1e-4, dtype=torch.float64)
    rivals = bounded.difference_norms > 0
    both, composed = bounded.margin_drop(radii)[rivals], bounded.composed(radii)[rivals]
    first = (bounded.gradients[0].flatten(2).norm(dim=2) * 1e-4)[rivals]
    assert both.mean() < 1.1 * first.mean()
    assert both.mean() < 0.9 * composed.mean()


@pytest.mark.parametrize(("r", "ball", "e", "ratio"), [(6, 1, 1, 0.1673), (1.5, 1, 0.5, 0.6764), (0.5, 1, 0.3, 1)])
def test_projection_bound_is_exact_for_one_token(r, ball, e, ratio) -> None:
    """Values from an exhaustive search over moves in the plane."""
    bound = projection_bound(torch.tensor([[r]]).double(), ball, torch.tensor([e]).double())
    assert float(bound) / e == pytest.approx(ratio, abs=1e-4)
