"""Projections and orthonormal maps against arithmetic of 60 digits and other algorithms."""

from __future__ import annotations

import copy
from decimal import Decimal, localcontext

import pytest
import torch
from searched import few
from torch import nn

from benchmark.certificates import lipschitz, local
from benchmark.certificates.bounds.layer_bound import PerturbationSet, exact_layer_bound
from benchmark.certificates.bounds.orthogonal import NEGLIGIBLE, derived_spread
from benchmark.certificates.bounds.projection import ProjectionBound, projection_bound
from benchmark.layers.lipschitz import SHIFT, NormalisedHead, OrthogonalLinear, orthonormal
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError


def f64(numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def exact_projection(r: float | Decimal, ball: float, e: float) -> Decimal:
    """sup |p(x + D) - p(x)| over |D| <= e for |x| = r, by the proof's two forms."""
    with localcontext() as context:
        context.prec = 60
        r, ball, e = Decimal(r), Decimal(ball), Decimal(e)
        if r <= ball:
            return e
        if e * e <= r * r - ball * ball:
            return min(e, ball * (2 * (1 - (1 - (e / r) ** 2).sqrt())).sqrt())
        chord = (ball / r) * (e * e - (r - ball) ** 2)
        return min(e, 2 * ball, chord.sqrt())


RATIOS = (1e-12, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 0.3, 0.5, 0.7, 1 - 1e-6, 1 - 1e-12, 1 - 2.0**-52)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("r", few([3e-4], [0.7, 1.0, 5e6]))
def test_nothing_cancels_where_the_ball_is_tiny(r, ratio) -> None:
    """Around all places where a form begins or ends: e = r - R, the tangent's sqrt(r^2 - R^2), r and r + R."""
    ball = r * ratio
    meet = float(((Decimal(r) - Decimal(ball)) * (Decimal(r) + Decimal(ball))).sqrt())
    tried = [r * share for share in (1e-9, 1e-4, 0.1, 0.5, 0.99, 2.0, 100.0)]
    for place in (r - ball, meet, r, r + ball):
        tried += [place * (1 + sign * 10.0**power) for power in range(-16, -3) for sign in (-1, 1)] + [place]
        tried += [place + sign * ball * share for share in (1e-6, 1e-3, 0.1, 0.5) for sign in (-1, 1)]
    for e in tried:
        if e > 0:
            bound = Decimal(float(projection_bound(f64([[r]]), ball, f64([e]))))
            true = exact_projection(r, ball, e)
            assert true <= bound <= true * max(Decimal(1 + 1e-10), 1 + Decimal("1e-14") * Decimal(r / ball) ** 2)


def test_the_length_of_a_token_is_not_believed_to_the_last_digit() -> None:
    """A norm that float64 rounds up by a unit moves the bound by r / R units, which the layer's own bound covers."""
    generator = torch.Generator().manual_seed(0)
    for ratio in (1e-7, 1e-5, 1e-3):
        x = torch.randn(20, 1, 12, dtype=torch.float64, generator=generator)
        norms = torch.linalg.vector_norm(x, dim=-1)
        with localcontext() as context:
            context.prec = 60
            true = [sum(Decimal(v) ** 2 for v in row).sqrt() for row in x[:, 0].tolist()]
        ball = ratio * float(norms.min())
        layer = ProjectionBound(LayerProject(ball), x)
        for share in (-0.5, 0.0, 0.5, 0.9):
            delta = norms[:, 0] + share * ball
            for bound, length, e in zip(layer.bound(delta).tolist(), true, delta.tolist(), strict=True):
                assert Decimal(bound) >= exact_projection(length, ball, e)


@pytest.mark.parametrize("share", [1e-9, 1e-7, 1e-5, 1e-3])
def test_a_small_turn_is_not_lost(share) -> None:
    """sqrt(2 - 2 sqrt(1 - q^2)) is q for small q, where the difference is 0 in float64."""
    x, a = f64([[[1.0, 0.0, 0.0]]]), f64([[[[0.0, 1.0, 0.0]]]])  # a lies across the token
    size = f64([share])
    perturbation = PerturbationSet(torch.eye(3, dtype=torch.float64).reshape(3, 1, 1, 3), size, 0 * size, size)
    layer = ProjectionBound(LayerProject(1.0), x)
    square, kink = layer._bends(perturbation)
    assert layer.remainder_along(a, perturbation) >= share * kink + square * share**2


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
    """L^-1 M with sums in another order."""
    order = torch.randperm(raw.shape[1], generator=torch.Generator().manual_seed(1))
    return orthonormal(raw.double()[:, order])[:, order.argsort()]


@pytest.mark.parametrize("gap", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0])
def test_what_machines_derive_is_within_the_spread(gap) -> None:
    raw = raw_of(gap)
    spread, true = derived_spread(raw), exact(raw)
    ours, theirs = orthonormal(raw.double()), by_another_machine(raw)
    for weight, other, most in ((ours, true, spread / 2), (theirs, true, spread / 2), (ours, theirs, spread)):
        assert torch.linalg.matrix_norm(weight - other) <= most
    assert derived_spread(raw.mT) == derived_spread(raw)


def test_a_well_conditioned_matrix_is_known_to_far_below_floats_unit_and_dependent_rows_are_not() -> None:
    assert derived_spread(OrthogonalLinear(768, 128).raw) < 1e-10
    assert derived_spread(raw_of(0.0)) > 1e-6
    assert torch.linalg.matrix_norm(orthonormal(raw_of(1e-6).double()) - exact(raw_of(1e-6))) > 1e-13
    with pytest.raises(BenchmarkError, match="rows so close to dependent"):
        derived_spread(torch.ones(300, 3000))


def test_the_bound_counts_the_spread_where_it_is_not_negligible() -> None:
    x, still = rand(3, 5, 6), torch.zeros(3, dtype=torch.float64)
    layer = OrthogonalLinear(6, 4).requires_grad_(False).eval()
    sound = exact_layer_bound(copy.deepcopy(layer).double(), x).rounding(still)
    layer.raw.copy_(raw_of(1e-6))
    assert derived_spread(layer.raw) > NEGLIGIBLE
    counted = exact_layer_bound(copy.deepcopy(layer).double(), x).rounding(still)
    moved = x @ (exact(layer.raw) - layer.weight).mT
    assert ((moved.flatten(1).norm(dim=1) <= counted) & (counted > 10 * sound)).all()


@pytest.mark.parametrize("certificate", [local, lipschitz])
def test_dependent_rows_cost_radius_and_take_no_certificate_from_the_others(certificate) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Patchify(2), OrthogonalLinear(4, 4), MeanPool(), NormalisedHead(4, 3)).eval()
    model.requires_grad_(False)
    images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    shares = []
    for dependent in (False, True):
        if dependent:
            model[1].raw[3] = model[1].raw[0]
        model[-1].bias.zero_()
        model[-1].bias.copy_(-model(images).mean(0))
        labels = model(images).argmax(1)
        shares.append((certificate.certify(model, images, labels) > 0).double().mean())
        certificate.float32_gap(model, images, labels)
    assert shares[0] == 1
    assert shares[1] > 0
