"""No layer, remainder or margin of a network moves further than its bound, and the margin gradient is worth its while."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_certified import assert_no_margin_falls_further, network, random_perturbations
from torch import nn

from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.dispatch import exact_layer_bound
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.bounds.projection import projection_bound
from benchmark.layers.lipschitz import SLLBlock, almost_orthogonal
from benchmark.layers.tokens import LayerProject


def moves_of(layer: nn.Module, x: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """What each move of x (n, *shape) does to the output, all in one call: like moves (count, n, *shape)."""
    return layer((x + moves).flatten(0, 1)).unflatten(0, moves.shape[:2]) - layer(x)


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
            moved = moves_of(layer, x, move).flatten(2).norm(dim=2)
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
        left = moves_of(layer, x, moves) - linear
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
        moved = moves_of(layer, x, moves)
        assert (
            (moved - layer_bound.jvp(moves)).flatten(2).norm(dim=2) <= layer_bound.remainder(perturbation) * (1 + 1e-9)
        ).all()
        taken, b = layer_bound.relax_for_rival(a, perturbation)
        changes = torch.einsum("nrm,snm->snr", a.flatten(2), moved.flatten(2))
        straight = torch.einsum("nrm,snm->snr", b.flatten(2), moves.flatten(2))
        assert (changes >= straight - taken * (1 + 1e-9) - 1e-12).all()
        for most in (0.1, 1.0, 5.0):  # one neuron: all moves up to `most`
            ratio = layer_bound._ratio(torch.full_like(layer_bound.z, most))
            d = most * torch.linspace(-1, 1, 101).double().reshape(-1, *[1] * layer_bound.z.ndim)
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
        bounded = bound_network(checked_copy(single), images, labels)
        bounded.relaxation_radius = torch.full((4,), around, dtype=torch.float64)
        assert_no_margin_falls_further(model, bounded, images, labels, radius)


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
