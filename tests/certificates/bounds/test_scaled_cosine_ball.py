"""The coefficients of a scaled cosine head's derivatives, one by one, against the exact derivatives: one-sided, and attained.

W_Q, W_K and W_V read three blocks of the input's width, so that each coefficient bounds one block of the first derivative or
of the second, and no other term can hide that it is too small.
"""

from __future__ import annotations

import pytest
import torch
from searched import draws
from torch.func import jacfwd, jacrev, vmap

from benchmark.certificates.bounds.scaled_cosine import ScaledCosineBound
from benchmark.layers.scaled_cosine import ScaledCosineAttention

SIZES = [(1, 1), (2, 1), (3, 1), (2, 2), (4, 2)]  # tokens, width of a block
COUNT = 24


def case(seed: int) -> tuple[ScaledCosineAttention, torch.Tensor]:
    """A head of three blocks with tau of 0.1 to 10 and either sign, and inputs whose blocks' sizes are 0.1 to 10."""
    tokens, block = SIZES[seed % len(SIZES)]
    generator = torch.Generator().manual_seed(seed)
    tau = (-1) ** seed * 10 ** (2 * torch.rand(1, generator=generator).item() - 1)
    layer = ScaledCosineAttention(3 * block, 1, eps=1.0, tau=tau).double().requires_grad_(False)
    for place, linear in enumerate((layer.query, layer.key, layer.value)):
        linear.weight.zero_()
        linear.weight[:block, place * block : (place + 1) * block] = torch.eye(block)
    layer.output.weight.copy_(torch.eye(3 * block))
    x = torch.randn(COUNT, tokens, 3 * block, dtype=torch.float64, generator=generator)
    x *= 10 ** (2 * torch.rand(COUNT, 1, 3 * block, dtype=torch.float64, generator=generator) - 1)
    x[:8] = x[:8].abs() * torch.tensor([1.0, -1.0, 1.0, -1.0])[:tokens, None]  # two groups of tokens, opposite
    return layer, x


def largest_form(tensor: torch.Tensor) -> torch.Tensor:
    """A lower bound of sup <u, T[v, w]> over unit u, v, w, for T (n, outputs, a, b), by turns: (n,)."""
    generator = torch.Generator().manual_seed(0)
    v, w = (torch.randn(len(tensor), size, dtype=torch.float64, generator=generator) for size in tensor.shape[2:])
    size = tensor.new_zeros(len(tensor))
    for _ in range(12):
        u = torch.nn.functional.normalize(torch.einsum("noab,na,nb->no", tensor, v, w), dim=1)
        v = torch.nn.functional.normalize(torch.einsum("noab,no,nb->na", tensor, u, w), dim=1)
        w = torch.einsum("noab,no,na->nb", tensor, u, v)
        size, w = w.norm(dim=1), torch.nn.functional.normalize(w, dim=1)
    return size


def worst_ratios(seed: int, radius: float) -> dict[tuple[int, ...], float]:
    """Each block of the exact derivatives at points `radius` away, over its coefficient; by the places of its letters in qkv."""
    layer, x = case(seed)
    block, outputs = x.shape[2] // 3, x[0].numel()
    move = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    moved = x + move * radius / move.flatten(1).norm(dim=1)[:, None, None]

    def head(z: torch.Tensor) -> torch.Tensor:
        return layer(z[None])[0]

    first = vmap(jacrev(head))(moved).reshape(COUNT, outputs, *x.shape[1:])
    second = vmap(jacfwd(jacrev(head)))(moved).reshape(COUNT, outputs, *x.shape[1:], *x.shape[1:])
    ball = ScaledCosineBound(layer, x)._ball(torch.full((COUNT,), radius, dtype=torch.float64))
    parts = [slice(place * block, (place + 1) * block) for place in range(3)]
    worst: dict[tuple[int, ...], float] = {}
    for place, bound in enumerate(ball.first()):
        norms = torch.linalg.matrix_norm(first[..., parts[place]].flatten(2), ord=2)
        worst[(place,)] = float((norms / bound[:, 0]).max())
    for (left, right), bound in ball.second().items():
        tensor = second[:, :, :, parts[left]][..., parts[right]].flatten(4).flatten(2, 3)
        sizes = largest_form(tensor) * (1 if left == right else 2)  # a cross term stands twice in D^2 F[d, d]
        worst[(left, right)] = float((sizes / bound[:, 0]).max())
    return worst


def test_every_coefficient_bounds_its_derivative_and_is_nearly_attained() -> None:
    found = [worst_ratios(seed, 0.0) for seed in range(10)]
    for name in found[0]:
        ratios = [ratio[name] for ratio in found]
        assert max(ratios) <= 1 + 1e-9, name
        assert max(ratios) > 0.7, name


@pytest.mark.parametrize("radius", [0.03, 0.5])
def test_no_derivative_in_the_ball_exceeds_its_coefficient(radius) -> None:
    for seed in range(2, 5):
        assert max(worst_ratios(seed, radius).values()) <= 1 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("seeds", draws([range(10, 40)], [range(40, 110)]), ids=str)
@pytest.mark.parametrize("radius", [0.0, 0.01, 0.1, 1.0, 10.0])
def test_no_derivative_of_many_heads_exceeds_its_coefficient(radius, seeds) -> None:
    for seed in seeds:
        assert max(worst_ratios(seed, radius).values()) <= 1 + 1e-9
