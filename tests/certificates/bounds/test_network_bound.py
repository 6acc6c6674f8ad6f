"""No layer, remainder or margin of a network moves further than its bound, and the margin gradient is worth its while."""

from __future__ import annotations

import pytest
import torch
from searched import few
from tiny_certified import network, random_perturbations
from torch import nn

from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.bounds.projection import projection_bound
from benchmark.layers.lipschitz import SLLBlock, almost_orthogonal


def moves_of(layer: nn.Module, x: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """What each move of x (n, *shape) does to the output, all in one call: like moves (count, n, *shape)."""
    return layer((x + moves).flatten(0, 1)).unflatten(0, moves.shape[:2]) - layer(x)


@pytest.mark.parametrize("seed", few([0, 1], range(2, 5)))
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


@pytest.mark.parametrize(("r", "ball", "e", "ratio"), [(6, 1, 1, 0.1673), (1.5, 1, 0.5, 0.6764), (0.5, 1, 0.3, 1)])
def test_projection_bound_is_exact_for_one_token(r, ball, e, ratio) -> None:
    """Values from an exhaustive search over moves in the plane."""
    bound = projection_bound(torch.tensor([[r]]).double(), ball, torch.tensor([e]).double())
    assert float(bound) / e == pytest.approx(ratio, abs=1e-4)


@pytest.mark.parametrize("seed", few([0], range(1, 4)))
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
