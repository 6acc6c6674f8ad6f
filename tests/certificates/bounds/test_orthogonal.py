"""What machines may make of one ill-conditioned raw matrix, against arithmetic of 60 digits and other algorithms."""

from __future__ import annotations

import copy
from decimal import Decimal, localcontext

import pytest
import torch
from torch import nn

from benchmark.certificates import lipschitz, local
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.bounds.orthogonal import NEGLIGIBLE, derived_spread
from benchmark.layers.lipschitz import SHIFT, NormalisedHead, OrthogonalLinear, orthonormal
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError


def raw_of(gap: float, rows: int = 4, columns: int = 6) -> torch.Tensor:
    """A float32 matrix whose last row is another one but for `gap`."""
    raw = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    raw[-1] = raw[0] + gap * raw[-1]
    return raw


def exact(raw: torch.Tensor) -> torch.Tensor:
    """L^-1 M in 60 digits, rounded to float64 at the end."""
    with localcontext() as context:
        context.prec = 60
        M = [[Decimal(v) for v in row] for row in raw.double().tolist()]
        count = len(M)
        G = [[sum(a * b for a, b in zip(M[i], M[j], strict=True)) for j in range(count)] for i in range(count)]
        shift = Decimal(SHIFT) * sum(G[i][i] for i in range(count)) / count
        for i in range(count):
            G[i][i] += shift
        L = [[Decimal(0)] * count for _ in range(count)]
        W: list[list[Decimal]] = []
        for i in range(count):
            for j in range(i + 1):
                rest = G[i][j] - sum(L[i][k] * L[j][k] for k in range(j))
                L[i][j] = rest.sqrt() if i == j else rest / L[j][j]
            W.append([(M[i][c] - sum(L[i][k] * W[k][c] for k in range(i))) / L[i][i] for c in range(len(M[0]))])
        return torch.tensor([[float(v) for v in row] for row in W], dtype=torch.float64)


def by_another_machine(raw: torch.Tensor) -> torch.Tensor:
    """The same with sums in another order, and a factorisation row by row in plain loops."""
    order = torch.randperm(raw.shape[1], generator=torch.Generator().manual_seed(1))
    shuffled = orthonormal(raw.double()[:, order])
    return shuffled[:, order.argsort()]


@pytest.mark.parametrize("gap", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0])
def test_what_machines_derive_is_within_the_spread(gap) -> None:
    raw = raw_of(gap)
    spread, true = derived_spread(raw), exact(raw)
    for found in (orthonormal(raw.double()), by_another_machine(raw)):
        assert torch.linalg.matrix_norm(found - true) <= spread / 2
    assert torch.linalg.matrix_norm(orthonormal(raw.double()) - by_another_machine(raw)) <= spread
    assert derived_spread(raw.mT) == derived_spread(raw)


def test_a_well_conditioned_matrix_is_known_to_far_below_floats_unit_and_dependent_rows_are_not() -> None:
    assert derived_spread(OrthogonalLinear(768, 128).raw) < 1e-10
    assert derived_spread(raw_of(0.0)) > 1e-6
    assert torch.linalg.matrix_norm(orthonormal(raw_of(1e-6).double()) - exact(raw_of(1e-6))) > 1e-13
    with pytest.raises(BenchmarkError, match="rows so close to dependent"):
        derived_spread(torch.ones(300, 3000))


def test_the_bound_counts_the_spread_where_it_is_not_negligible() -> None:
    x = torch.rand(3, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    still = torch.zeros(3, dtype=torch.float64)
    layer = OrthogonalLinear(6, 4).requires_grad_(False).eval()
    sound = exact_layer_bound(copy.deepcopy(layer).double(), x).rounding(still)
    layer.raw.copy_(raw_of(1e-6))
    assert derived_spread(layer.raw) > NEGLIGIBLE
    counted = exact_layer_bound(copy.deepcopy(layer).double(), x).rounding(still)
    moved = x @ (exact(layer.raw) - layer.weight).mT
    assert (moved.flatten(1).norm(dim=1) <= counted).all()
    assert (counted > 10 * sound).all()


@pytest.mark.parametrize("certificate", [local, lipschitz])
def test_dependent_rows_cost_radius_and_take_no_certificate_from_the_others(certificate) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Patchify(2), OrthogonalLinear(4, 4), MeanPool(), NormalisedHead(4, 3)).eval()
    model.requires_grad_(False)
    images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    model[-1].bias.copy_(-model(images).mean(0))
    radii = certificate.certify(model, images, model(images).argmax(1))
    assert (radii > 0).all()
    model[1].raw[3] = model[1].raw[0]
    model[-1].bias.zero_()
    model[-1].bias.copy_(-model(images).mean(0))
    labels = model(images).argmax(1)
    with_spread = certificate.certify(model, images, labels)
    assert (with_spread > 0).any()
    certificate.float32_gap(model, images, labels)
