"""Spectral norms: never below dense singular values, and close to them."""

from __future__ import annotations

import pytest
import torch
from ball_search import jacobian_norm
from tiny_layers import draw
from torch import nn

from benchmark.certificates.bounds import spectral
from benchmark.certificates.bounds.linear import conv2d_norm_upper
from benchmark.certificates.bounds.spectral import product_norm_upper, psd_norm_upper, spectral_norm_upper
from benchmark.layers import convolution_matrices


def exact(matrix: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_norm(matrix, ord=2)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (7, 3), (2, 40, 40), (500, 400)])
@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1.0, 1e12])
def test_upper_and_close(shape, scale) -> None:
    matrix = draw(*shape) * scale
    bound = spectral_norm_upper(matrix)
    assert (bound >= exact(matrix)).all()
    assert (bound <= exact(matrix) * (1 + (1e-9 if min(shape[-2:]) <= 384 else 1e-3))).all()


def test_known_and_bad_matrices() -> None:
    assert spectral_norm_upper(torch.zeros(3, 4)) == spectral_norm_upper(torch.zeros(3, 0)) == 0
    assert spectral_norm_upper(torch.diag(torch.tensor([3.0, -7.0]))) >= 7
    both = torch.stack([torch.full((2, 3), float("nan")), torch.eye(2, 3), torch.full((2, 3), float("inf"))])
    for bound in (
        spectral_norm_upper(both),
        product_norm_upper(torch.eye(2), both),
        product_norm_upper(both.mT, torch.eye(2)),
        psd_norm_upper(both[..., :2]),
    ):
        assert bound.tolist() == pytest.approx([float("inf"), 1.0, float("inf")])


@pytest.mark.parametrize("shape", [(6, 6), (30, 9), (9, 30), (3, 12, 12)])
@pytest.mark.parametrize("kind", ["random", "low rank", "equal", "zero"])
def test_the_proof_by_factorisation_is_upper_and_close(shape, kind, monkeypatch) -> None:
    monkeypatch.setattr(spectral, "EXACT_SIDE", 0)
    matrix = draw(*shape)
    if kind == "low rank":
        matrix = matrix[..., :1] @ draw(*shape[:-2], 1, shape[-1], seed=1)
    elif kind == "equal":  # all singular values the same: the worst case for a proof by factorisation
        matrix = torch.linalg.qr(matrix if shape[-2] >= shape[-1] else matrix.mT).Q
    elif kind == "zero":
        matrix = matrix * 0
    bound = spectral_norm_upper(matrix)
    assert (bound >= exact(matrix)).all()
    assert (bound <= exact(matrix) * (1 + 1e-3) + 1e-290).all()


@pytest.mark.parametrize("formed", [True, False], ids=["by its matrix", "by frequencies"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "groups", "mode", "most"),
    [
        *((*sizes, "zeros", 1.35) for sizes in ((4, 2, 1, 1), (3, 2, 1, 2), (3, 1, 1, 1), (5, 3, 2, 1), (2, 1, 1, 1))),
        *((*sizes, "circular", 1 + 1e-8) for sizes in ((3, 1, 1, 1), (5, 1, 2, 2), (1, 1, 0, 1))),
        (2, 2, 0, 2, "zeros", 1 + 1e-8),
        (3, 2, 1, 1, "circular", 2.0),
    ],
)
def test_a_convolution_is_bounded_as_it_runs(monkeypatch, formed, kernel, stride, padding, groups, mode, most) -> None:
    if not formed:
        monkeypatch.setattr(convolution_matrices, "SIDE", 0)
    torch.manual_seed(0)
    options = {"stride": stride, "padding": padding, "groups": groups, "padding_mode": mode, "bias": False}
    layer = nn.Conv2d(4, 6, kernel, **options).double().requires_grad_(False)
    dense = jacobian_norm(layer, draw(1, 4, 9, 8))
    assert dense <= conv2d_norm_upper(layer, layer.weight, 9, 8) <= dense * (1 + 1e-8 if formed else most)
    layer.weight[0, 0, 0, 0] = float("nan")
    assert conv2d_norm_upper(layer, layer.weight, 9, 8) == float("inf")


@pytest.mark.parametrize("inner", [1, 3, 9, 20])
@pytest.mark.parametrize("kind", ["random", "orthogonal factors"])
def test_norm_of_a_product_is_upper_and_close(inner, kind) -> None:
    left, right = draw(4, 12, inner), draw(4, inner, 9, seed=1)
    if kind == "orthogonal factors" and inner > 1:  # the product is all rounding
        left[..., 1:], right[..., :1, :] = 0, 0
    bound = product_norm_upper(left, right)
    assert (bound >= exact(left @ right)).all()
    assert (bound <= exact(left @ right) * (1 + 1e-9) + 1e-8).all()
