"""The proximal projection's mathematics: optimality conditions, brute force, finite differences and a solver."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import brentq, minimize
from searched import few

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.methods import module

proximal = module("Gupta2023CertViT", "proximal")
TOLERANCE, AccuracySet, Rows = proximal.TOLERANCE, proximal.AccuracySet, proximal.Rows
soft_threshold, spectral_prox, residual = proximal.soft_threshold, proximal.spectral_prox, proximal.residual

SHAPES = [(6, 5), (3, 8), (8, 3), (1, 4), (4, 1)]
BOUNDS = [(-math.inf, math.inf), (0.0, math.inf), (0.0, 0.7)]


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(seed: int, *, batches: int = 1, bounds: tuple[float, float] = BOUNDS[1], eta: float = 0.3):
    """A trained weight (3, 4), its accuracy set, and the rows that made it."""
    trained, bias = random(seed, 3, 4), 0.3 * random(seed + 100, 3)
    inputs = [random(seed + 200 + index, 12, 4) for index in range(batches)]
    rows = [Rows(x, (x @ trained.mT + bias).clamp(*bounds), *bounds) for x in inputs]
    return trained, AccuracySet([lambda kept=kept: kept for kept in rows], bias, eta), rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [1e-3, 0.3, 100.0])
def test_the_soft_threshold_is_optimal(shape, gamma) -> None:
    """w = prox(z) if and only if (z - w) / gamma is a subgradient of the sum of |W| at w."""
    z = random(0, *shape)
    w = soft_threshold(z, gamma)
    subgradient = (z - w) / gamma
    assert subgradient.abs().max() <= 1 + 1e-12
    assert torch.allclose(subgradient[w != 0], w[w != 0].sign())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [1e-3, 0.3, 2.0, 100.0])
def test_the_spectral_prox_is_optimal(shape, gamma) -> None:
    """(z - w) / gamma is a subgradient of the spectral norm: of nuclear norm at most 1, and <., w> = ||w||_2."""
    z = random(1, *shape)
    w = spectral_prox(z, gamma)
    subgradient = (z - w) / gamma
    assert torch.linalg.matrix_norm(subgradient, ord="nuc") <= 1 + 1e-10
    assert float((subgradient * w).sum()) == pytest.approx(float(torch.linalg.matrix_norm(w, ord=2)), abs=1e-10)
    assert w.any() == (torch.linalg.matrix_norm(z, ord="nuc") > gamma)


@pytest.mark.parametrize("radius", [0.01, 1.0, 3.0, 50.0])
def test_no_point_of_the_l1_ball_is_nearer(radius) -> None:
    """The projection p of v onto a convex set is the point where <v - p, q - p> <= 0 for all q in it."""
    values = torch.tensor([4.0, 2.5, 2.5, 0.3, 0.0], dtype=torch.float64)
    nearest = proximal.onto_l1_ball(values, radius)
    assert nearest.sum() <= radius + 1e-12
    for seed in range(200):
        other = random(seed, 5).abs()
        other *= radius * min(1.0, seed / 100) / other.sum()
        assert float((values - nearest) @ (other - nearest)) <= 1e-12


def test_the_released_threshold_is_the_quantile_of_what_is_left() -> None:
    z = random(3, 7, 9) * (random(4, 7, 9) > 0)
    for gamma in (0.1, 0.35):
        expected = float(torch.quantile(z[z != 0].abs(), gamma))
        assert torch.allclose(proximal.quantile_threshold(z, gamma), soft_threshold(z, expected), atol=1e-15)
    assert not proximal.quantile_threshold(torch.zeros(2, 2), 0.1).any()


@pytest.mark.parametrize("bounds", [*BOUNDS, (0.0, 0.0)])
def test_the_distance_to_the_subdifferential_by_brute_force(bounds) -> None:
    """v is a subgradient at y of the interval's indicator where v (u - y) <= 0 for every u of the interval."""
    low, high = bounds
    grid = torch.arange(-400, 401, dtype=torch.float64) / 100
    inside = grid[(grid >= low) & (grid <= high)]
    for y in [value for value in (0.0, 0.35, 0.7) if value <= high]:
        subgradients = grid[(grid[:, None] * (inside - y) <= 0).all(1)]
        for e in (-1.5, -0.2, 0.0, 0.4, 2.0):
            rows = Rows(torch.zeros(1, 1), torch.full((1, 1), y, dtype=torch.float64), low, high)
            distance = residual(torch.full((1, 1), y + e, dtype=torch.float64), rows).abs()
            assert float(distance) == pytest.approx(float((e - subgradients).abs().min()), abs=1e-9)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("seed", few([0], range(1, 4)))
def test_gradients_by_finite_differences(bounds, seed) -> None:
    _, accuracy, rows = layer(seed, bounds=bounds)
    weight, step = random(seed + 10, 3, 4), 1e-6
    _, gradient = accuracy.distance(weight, rows[0])
    for index in range(12):
        change = torch.zeros(12, dtype=torch.float64)
        change[index] = step
        ends = [accuracy.distance(weight + sign * change.view(3, 4), rows[0])[0] for sign in (1, -1)]
        assert float(gradient.flatten()[index]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_weights_with_the_same_outputs_have_no_distance(bounds) -> None:
    trained, accuracy, rows = layer(0, bounds=bounds, batches=2)
    assert max(accuracy.distances(trained)) < 1e-28
    dead = [Rows(-kept.x.abs(), torch.zeros_like(kept.y), 0.0) for kept in rows]
    off = AccuracySet([lambda kept=kept: kept for kept in dead], None, 0.1)
    assert max(off.distances(trained.abs())) == 0  # other pre-activations below 0, the same outputs
    assert min(off.distances(-trained.abs())) > 0


def solved(accuracy: AccuracySet, rows: list[Rows], objective, start: torch.Tensor, of=lambda vector: vector, **more):
    """SLSQP's weight: the minimum of objective(vector) -> value, gradient, over weights of(vector) in the set."""

    def weight(vector) -> torch.Tensor:
        return of(torch.as_tensor(vector)).view(3, 4)

    def slack(vector, kept: Rows) -> float:
        return accuracy.eta - accuracy.distance(weight(vector), kept)[0]

    def slope(vector, kept: Rows):
        gradient = -accuracy.distance(weight(vector), kept)[1].flatten()
        return (gradient if len(vector) == 12 else torch.cat([gradient, -gradient])).numpy()

    limits = [{"type": "ineq", "fun": slack, "jac": slope, "args": (kept,)} for kept in rows]
    options = {"ftol": 1e-15, "maxiter": 1000}
    result = minimize(objective, start.numpy(), jac=True, constraints=limits, method="SLSQP", options=options, **more)
    return weight(result.x)


def nearest_to(point: torch.Tensor):
    flat = point.flatten().numpy()
    return lambda vector: (0.5 * ((vector - flat) ** 2).sum(), vector - flat)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("seed", few([0], [1, 2]))
def test_the_projection_onto_one_batch_is_the_solvers(bounds, seed) -> None:
    trained, accuracy, rows = layer(seed, bounds=bounds)
    point = 2 * random(seed + 50, 3, 4)
    result, sweeps = accuracy.project(point, sweeps=2000)
    expected = solved(accuracy, rows, nearest_to(point), trained.flatten())
    assert torch.dist(result, expected) < 1e-6
    assert max(accuracy.distances(result)) <= accuracy.eta * (1 + 1e-9)
    assert sweeps < 2000 or max(accuracy.distances(result)) > accuracy.eta


@pytest.mark.parametrize("seed", few([0], [1, 2]))
def test_the_projection_onto_several_batches_comes_near_from_outside(seed) -> None:
    trained, accuracy, rows = layer(seed, batches=3)
    point = 2 * random(seed + 50, 3, 4)
    expected = solved(accuracy, rows, nearest_to(point), trained.flatten())
    errors = [float(torch.dist(accuracy.project(point, sweeps=sweeps)[0], expected)) for sweeps in (30, 300)]
    assert errors[1] < errors[0] / 5  # the error falls about as 1 / sweeps
    last, _ = accuracy.project(point, sweeps=800)
    assert accuracy.eta < max(accuracy.distances(last)) < accuracy.eta * (1 + TOLERANCE)
    assert torch.dist(last, point) <= torch.dist(expected, point) + 1e-9  # no further than the nearest point of the set


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_parallel_half_spaces_are_told_at_any_scale(size) -> None:
    """With one weight all normals are parallel: each step is Newton's on the root's square, down to sqrt(eta)."""
    x = torch.ones(1, 1, dtype=torch.float64)
    accuracy = AccuracySet([lambda: Rows(x, torch.zeros_like(x))], None, size**2)
    result, _ = accuracy.project(x * 5 * size, sweeps=30)
    assert float(result) == pytest.approx(size, rel=1e-12)


def test_a_point_of_the_set_stays() -> None:
    trained, accuracy, _ = layer(0, batches=2)
    result, sweeps = accuracy.project(trained, sweeps=9)
    assert torch.equal(result, trained)
    assert sweeps == 1
    assert torch.equal(accuracy.pulled_inside(trained, random(0, 3, 4)), trained)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("seed", few([0, 1], range(2, 10)))
def test_what_is_pulled_inside_is_inside_and_between(bounds, seed) -> None:
    trained, accuracy, _ = layer(seed, batches=3, bounds=bounds)
    centre = trained + 0.01 * random(seed + 60, 3, 4)
    assert max(accuracy.distances(centre)) <= accuracy.eta
    far = trained + 3 * random(seed + 70, 3, 4)
    result = accuracy.pulled_inside(far, centre)
    assert max(accuracy.distances(result)) <= accuracy.eta * (1 + 1e-12)
    share = float(torch.dist(result, centre) / torch.dist(far, centre))
    assert 0 < share < 1
    assert torch.allclose(result, centre + share * (far - centre))
    if bounds == BOUNDS[0]:  # of a linear layer the most that the way from the trained weights allows
        assert max(accuracy.distances(accuracy.pulled_inside(far, trained))) == pytest.approx(accuracy.eta, rel=1e-9)


def iterate(start: torch.Tensor, prox, project, gamma: float, outer: int = 2000) -> torch.Tensor:
    return proximal.douglas_rachford(start, lambda z: prox(z, gamma), project, relaxation=1.2, outer=outer)


def test_an_iteration_is_the_papers() -> None:
    """With prox(z) = z / 2 and the projection z - 3: V - W = 2 W - Z - 3 - W = -3 - z / 2, times the relaxation."""
    z = random(0, 2, 3)
    for outer in range(3):
        result = proximal.douglas_rachford(random(0, 2, 3), lambda z: z / 2, lambda z: z - 3, relaxation=1.3, outer=outer)
        assert torch.allclose(result, z / 2)
        z = z + 1.3 * (-3 - z / 2)


def onto_frobenius_ball(centre: torch.Tensor, radius: float):
    return lambda z: centre + (z - centre) * min(1.0, radius / max(float(torch.dist(z, centre)), 1e-300))


@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_the_least_spectral_norm_in_a_ball_cuts_singular_values(gamma) -> None:
    centre, radius = random(6, 6, 5), 1.5
    u, s, vh = torch.linalg.svd(centre, full_matrices=False)
    level = brentq(lambda t: float((s - t).clamp(min=0).norm()) - radius, 0.0, float(s[0]), xtol=1e-14)
    result = iterate(centre, spectral_prox, onto_frobenius_ball(centre, radius), gamma)
    assert torch.dist(result, u @ torch.diag(s.clamp(max=level)) @ vh) < 1e-6


@pytest.mark.sweep
@pytest.mark.parametrize("bounds", BOUNDS[:2])
def test_the_least_sum_in_an_accuracy_set_is_the_solvers(bounds) -> None:
    """SLSQP splits W = P - N with P, N >= 0, whose sum it then minimises: a smooth problem."""
    trained, accuracy, rows = layer(7, bounds=bounds)
    flat = trained.flatten()
    split = torch.cat([flat.clamp(min=0), (-flat).clamp(min=0)])
    ones = torch.ones(24, dtype=torch.float64).numpy()
    expected = solved(
        accuracy, rows, lambda vector: (vector.sum(), ones), split, lambda v: v[:12] - v[12:], bounds=[(0, None)] * 24
    )
    result = iterate(trained, soft_threshold, lambda z: accuracy.project(z, sweeps=2000)[0], 0.1, outer=200)
    assert torch.dist(result, expected) < 1e-6
    assert (result == 0).any()


def test_an_empty_set_is_refused() -> None:
    x, y = random(0, 5, 2), random(1, 5, 2)
    contradicting = AccuracySet([lambda: Rows(x, y), lambda: Rows(x, -y)], None, 1e-3)
    unreachable = AccuracySet([lambda: Rows(torch.zeros_like(x), y)], None, 1e-3)
    for accuracy, sweeps in ((contradicting, 2000), (unreachable, 1)):
        with pytest.raises(BenchmarkError, match="no weights keep the layer's outputs to this eta"):
            accuracy.project(random(2, 2, 2), sweeps=sweeps)
