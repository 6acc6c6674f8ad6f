"""Convolutions over tokens and residuals around them: norms between those of dense matrices and slightly more."""

from __future__ import annotations

import pytest
import torch
from ball_search import jacobian_norm
from searched import few
from tiny_layers import built, draw
from torch import nn

from benchmark.certificates import lipschitz
from benchmark.certificates.bounds import token_convolution
from benchmark.certificates.bounds.composite import ResidualBound
from benchmark.certificates.bounds.layer_bound import LayerBound, exact_layer_bound
from benchmark.certificates.bounds.token_convolution import token_convolution_norm_upper
from benchmark.layers.lipschitz import OrthogonalLinear
from benchmark.layers.residual import Residual
from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution

RESIDUALS = {
    "one": lambda d: Residual(TokenConvolution(d, (3,))),
    "slices": lambda d: Residual(TokenConvolution(d, (3, 5))),
    "bounded": lambda d: Residual(BoundedTokenConvolution(d, (3,), norm=0.5)),
    "projected": lambda d: Residual(nn.Sequential(TokenConvolution(d, (5, 3)), nn.Linear(d, d))),
    "twice": lambda d: Residual(nn.Sequential(TokenConvolution(d, (3,)), nn.Linear(d, d), OrthogonalLinear(d, d))),
    "alone in a sequence": lambda d: Residual(nn.Sequential(BoundedTokenConvolution(d, (1, 3)))),
}


@pytest.mark.parametrize("tokens", [1, 4, 17])
@pytest.mark.parametrize("kernels", [(1,), (5, 5), (3, 3, 1, 5)])
def test_the_norm_is_that_of_the_dense_matrix_to_a_hundredth(tokens, kernels) -> None:
    layer, x = built(TokenConvolution(8, kernels), tokens), draw(2, tokens, 8)
    bound, exact = exact_layer_bound(layer, x), jacobian_norm(layer, x[:1])
    assert type(bound) is LayerBound
    slack = 1.01 if tokens <= 5 or tokens > 2 * max(kernels) else 1.03
    assert exact <= bound.jacobian_norm <= slack * exact


@pytest.mark.parametrize("tokens", few([1, 5, 17], [3, 33]))
@pytest.mark.parametrize("name", RESIDUALS)
def test_a_residual_s_norm_is_that_of_the_dense_matrix_to_a_hundredth(tokens, name) -> None:
    layer, x = built(RESIDUALS[name](8)), draw(2, tokens, 8)
    bound, exact = exact_layer_bound(layer, x), jacobian_norm(layer, x[:1])
    assert type(bound) is LayerBound
    assert exact <= bound.jacobian_norm <= 1.01 * exact
    assert exact <= lipschitz.lipschitz_constant(layer, x) <= 1.01 * exact


def test_fourier_blocks_bound_what_is_too_large_to_form(monkeypatch) -> None:
    monkeypatch.setattr(token_convolution, "FORMED", 0)
    for seed, (taps, tokens) in enumerate([(1, 1), (3, 1), (7, 3), (3, 5), (5, 17), (3, 40), (9, 40)]):
        layer = built(TokenConvolution(6, (taps,)), seed)
        exact, bound = (
            jacobian_norm(layer, draw(1, tokens, 6)),
            token_convolution_norm_upper(layer.slices[0].weight, tokens),
        )
        assert exact <= bound
        if tokens > 8 * taps:
            assert bound <= 1.01 * exact
    assert token_convolution_norm_upper(torch.full((2, 2, 3), float("nan")), 4) == float("inf")


def test_the_identity_of_a_residual_is_not_counted_apart() -> None:
    """The known example: 9.2 where 1 + ||convolution|| gives 10.3, and near 0 where the two cancel."""
    layer, x = built(Residual(TokenConvolution(8, (3,)))), draw(1, 17, 8)
    apart = 1 + exact_layer_bound(layer.body, x).jacobian_norm
    assert exact_layer_bound(layer, x).jacobian_norm < 0.95 * apart
    layer.body.slices[0].weight.data = -torch.eye(8, dtype=torch.float64)[:, :, None] * torch.tensor([0.0, 1.0, 0.0])
    assert exact_layer_bound(layer, x).jacobian_norm <= 1e-9
    both = built(Residual(nn.Sequential(TokenConvolution(8, (3,)), nn.Linear(8, 8))))
    both.body[1].weight.data = torch.linalg.qr(draw(8, 8)).Q * 100
    both.body[0].slices[0].weight.data = torch.zeros(8, 8, 3, dtype=torch.float64)
    both.body[0].slices[0].weight.data[:, :, 1] = -both.body[1].weight.mT / 1e4
    assert jacobian_norm(both, x) <= exact_layer_bound(both, x).jacobian_norm <= 1e-6


@pytest.mark.parametrize(
    "body",
    [
        nn.Sequential(TokenConvolution(4, (3,)), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), TokenConvolution(4, (3,))),
        nn.Sequential(TokenConvolution(4, (3,)), nn.Linear(4, 6), nn.Linear(6, 4)),
        nn.Linear(4, 4),
    ],
)
def test_other_residuals_keep_their_bound(body) -> None:
    assert type(exact_layer_bound(built(Residual(body)), draw(2, 5, 4))) is ResidualBound
