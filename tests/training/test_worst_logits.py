"""BCP and Local-Lip: no point of a ball beats their worst logits. GloRo: its loss by hand, its score by the certificate."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from searched import examples
from tiny_clipped import climbed, convolutional
from tiny_models import grey_images
from tiny_training import blobs, run, spec
from torch import nn

from benchmark.certificates import lipschitz
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError
from benchmark.training import bcp, gloro, local_lip, standard
from benchmark.training.ball_and_box import Region, ball, propagate, restricted_norm
from benchmark.training.gloro import further_logit
from benchmark.training.layer_norms import LayerNorms, sequence
from benchmark.training.worst_logits import largest_product, worst_logits

LABELS = torch.arange(16) % 4


def exact_norms(layers, image):
    """Of the rows and columns that count, by dense singular values, whatever a power iteration would give."""
    formed, x = {}, image
    for index, layer in enumerate(layers):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            jacobian = torch.autograd.functional.jacobian(layer, x)
            formed[index] = jacobian.reshape(-1, x.numel())
        x = layer(x)

    def norm(index, columns, rows):
        left = rows.flatten(1)[:, :, None] * formed[index] * columns.flatten(1)[:, None]
        return torch.linalg.matrix_norm(left, ord=2) * (1 + 1e-6)

    return norm


def global_norms(layers, image):
    upper = LayerNorms(layers, image, 1).upper()
    return lambda index, columns, rows: upper[index].float().expand(len(columns))


def normalised(seed: int) -> nn.Sequential:
    return nn.Sequential(Normalise(0.4, 0.25), *convolutional(seed, clipped=True), nn.Identity(), nn.Linear(4, 4))


NETWORKS = {"relu": convolutional, "clipped": partial(convolutional, clipped=True, theta=0.1), "normalised": normalised}


@pytest.mark.sweep
@pytest.mark.parametrize("norms", [exact_norms, global_norms])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("seed", "radius"), [(0, 0.05), (2, 1.0)])
def test_no_point_of_the_ball_is_outside_the_region(norms, network, seed, radius) -> None:
    model = NETWORKS[network](seed).requires_grad_(False)
    images = grey_images(seed=seed)
    layers, head = sequence(model, "own")
    norm = norms(layers, images[:1])
    regions = [propagate(layers[:depth], ball(images, radius), norm) for depth in range(1, len(layers) + 1)]
    worst = worst_logits(head, regions[-1], LABELS)
    assert torch.equal(worst.gather(1, LABELS[:, None]), torch.zeros(16, 1))
    closest = torch.full_like(worst, torch.inf)
    for rival in range(4):
        moved = climbed(model, images, LABELS, rival, radius)
        logits = model(moved)
        closest = torch.minimum(closest, worst - (logits - logits.gather(1, LABELS[:, None])))
        for layer, region in zip(layers, regions, strict=True):
            moved = layer(moved)
            move = moved - region.z
            assert (move <= region.above + 1e-5).all()
            assert (-move <= region.below + 1e-5).all()
            assert (move.flatten(1).norm(dim=1) <= region.rho + 1e-5).all()
    assert (closest >= -1e-5).all()
    others = closest.scatter(1, LABELS[:, None], torch.inf)
    if radius == 0.05:  # the bound is not loose: ascent reaches a good part of what it adds
        logits = model(images)
        added = worst - (logits - logits.gather(1, LABELS[:, None]))
        assert (others < (0.8 if norms is exact_norms else 0.95) * added).any()


@pytest.mark.parametrize("network", NETWORKS)
def test_local_bounds_are_within_box_constrained_ones_and_those_within_the_global_one(network) -> None:
    model, images, radius = NETWORKS[network](3).requires_grad_(False), grey_images(), 0.3
    layers, head = sequence(model, "own")
    regions = (propagate(layers, ball(images, radius), norms(layers, images[:1])) for norms in (exact_norms, global_norms))
    local, boxed = (worst_logits(head, region, LABELS) for region in regions)
    constant = torch.stack(LayerNorms(layers, images[:1], 1).upper()).prod()
    logits, rows = model(images), head.weight[None] - head.weight[LABELS][:, None]
    plain = logits - logits.gather(1, LABELS[:, None]) + radius * constant * rows.norm(dim=2)
    assert (local <= boxed + 1e-5).all()
    assert (boxed <= plain + 1e-5).all()
    assert (local < plain - 1e-3).any()


def primal(w: torch.Tensor, rho: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    """<w, D> of a move D within ball and box, close to the largest: D_i = sign(w_i) min(s |w_i|, r_i)."""
    low, high = torch.zeros_like(rho), torch.full_like(rho, 1e12)
    for _ in range(200):
        s = (low + high) / 2
        inside = torch.minimum(s[..., None] * w.abs(), reach).norm(dim=-1) <= rho
        low, high = torch.where(inside, s, low), torch.where(inside, high, s)
    move = torch.minimum(low[..., None] * w.abs(), reach)
    assert (move.norm(dim=-1) <= rho * (1 + 1e-12)).all()
    return (w.abs() * move).sum(-1)


@settings(deadline=None, max_examples=examples(60), derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
def test_the_split_is_exact(seed, width, rho) -> None:
    """A move inside the region has the product, so that nothing lower would be a bound."""
    generator = torch.Generator().manual_seed(seed)
    w, below, above = (torch.randn(4, n, width, generator=generator, dtype=torch.float64) for n in (3, 1, 1))
    w = w * (torch.rand(4, 3, width, generator=generator) > 0.2)
    below, above = below[:, 0].abs(), above[:, 0].clamp(min=0)  # some sides do not move at all
    region = Region(torch.zeros_like(below), torch.full((4,), rho, dtype=torch.float64), below, above)
    bound = largest_product(w, region)
    attained = primal(w, region.rho[:, None].expand(4, 3), torch.where(w > 0, above[:, None], below[:, None]))
    assert (attained <= bound * (1 + 1e-9) + 1e-12).all()
    assert (bound <= attained * (1 + 1e-6) + 1e-9).all()


def test_the_gradient_of_the_split_is_that_of_the_largest_product() -> None:
    generator = torch.Generator().manual_seed(0)
    w, below, above = (torch.randn(2, n, 5, generator=generator, dtype=torch.float64) for n in (3, 1, 1))
    rho = torch.tensor([0.5, 1.2], dtype=torch.float64)

    def product(w, rho, below, above):
        return largest_product(w, Region(torch.zeros_like(below), rho, below, above))

    given = [t.requires_grad_() for t in (w, rho, below[:, 0].abs() + 0.1, above[:, 0].abs() + 0.1)]
    assert torch.autograd.gradcheck(product, given, eps=1e-5, atol=1e-4)


def test_the_norm_of_what_is_left_comes_from_below_and_meets_dense_singular_values() -> None:
    layer = convolutional(0)[2]
    generator = torch.Generator().manual_seed(0)
    columns = (torch.rand(5, 3, 6, 6, generator=generator) > 0.4).float()
    rows = (torch.rand(5, 4, 3, 3, generator=generator) > 0.4).float()
    columns[4], norms = 0, LayerNorms([layer], columns[:1], 5)
    exact = exact_norms([layer], columns[:1])(0, columns, rows)
    few, many = (restricted_norm(layer, columns, rows, norms.vector(0), steps) for steps in (1, 500))
    assert (few <= many + 1e-6).all()
    assert (many <= exact * (1 + 1e-6)).all()
    assert torch.allclose(many, exact, rtol=1e-3)
    assert many[4] == 0
    many.sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


OBJECTIVES, ALL = {"bcp": bcp, "local_lip": local_lip}, {"bcp": bcp, "local_lip": local_lip, "gloro": gloro}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_goes_from_clean_to_worst_logits(name) -> None:
    model, images, radius = convolutional(0), grey_images(), 0.2
    objective = OBJECTIVES[name].objective(None, radius=radius, kappa=0.25, power_steps=60)
    objective.attach(model, images)
    objective.advance()
    layers, head = sequence(model, "own")
    natural = nn.functional.cross_entropy(model(images), LABELS)
    assert torch.equal(objective.loss(model, images, LABELS, 0.0), natural)
    norm = objective.norm(layers, objective.norms)
    for share in (0.5, 1.0):
        worst = worst_logits(head, propagate(layers, ball(images, share * radius), norm), LABELS)
        kappa = 1 - 0.75 * share
        expected = kappa * natural + (1 - kappa) * nn.functional.cross_entropy(worst, LABELS)
        assert torch.allclose(objective.loss(model, images, LABELS, share), expected)
        assert expected > natural


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_score_counts_images_that_no_point_nearby_changes(tmp_path, name) -> None:
    model, objective = convolutional(1), OBJECTIVES[name].objective(None, radius=0.05)
    run(model, standard.objective(None), spec(epochs=8, batch_size=30), tmp_path / "c")
    images, labels = blobs(1, 40)
    correct = torch.stack([model(climbed(model, images, labels, j, 0.05)).argmax(1) == labels for j in range(4)]).all(0)
    assert 0.4 < objective.score(model, images, labels) <= float(correct.float().mean())


@pytest.mark.slow
def test_thresholds_stay_at_zero_or_above(tmp_path) -> None:
    lowest = {}
    for name in ("standard", *OBJECTIVES):
        model = convolutional(0, clipped=True, theta=0.01)
        objective = OBJECTIVES[name].objective(None, radius=0.1) if name in OBJECTIVES else standard.objective(None)
        run(model, objective, spec(epochs=1, learning_rate=0.1), tmp_path / name, precision="64-true")
        lowest[name] = min(part.theta.min().item() for part in model if isinstance(part, ClippedReLU))
    assert lowest["standard"] < 0
    assert lowest["bcp"] == lowest["local_lip"] == 0


@pytest.mark.parametrize(("name", "precision"), [("bcp", "bf16-mixed"), *((name, "bf16-true") for name in ALL)])
def test_other_precisions(tmp_path, name, precision) -> None:
    objective = ALL[name].objective(None, radius=0.1)
    rules, options = spec(epochs=1, batch_size=60), {"clipped": True} if name in OBJECTIVES else {}
    _, done = run(convolutional(0, **options), objective, rules, tmp_path / "c", precision=precision)
    assert all(torch.isfinite(torch.tensor(done.losses)))
    assert all(buffer.dtype == torch.float32 for buffer in objective.norms.buffers())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("layer", [nn.GELU(), nn.LayerNorm(36), nn.Dropout(0.1)])
def test_layers_that_are_refused(name, layer) -> None:
    model = nn.Sequential(nn.Flatten(), layer, nn.Linear(36, 4))
    message = rf"the {name} objective knows Linear, Conv2d, [^\n]+ it has no bounds for {type(layer).__name__}$"
    with pytest.raises(BenchmarkError, match=message):
        OBJECTIVES[name].objective(None, radius=0.1).attach(model, grey_images())


def transformer() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        Normalise(),
        Patchify(3),
        nn.Linear(9, 8),
        Residual(nn.Sequential(LayerProject(1.0), L2Attention(8, 2))),
        Residual(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))),
        MeanPool(),
        NormalisedHead(8, 4),
    )


def by_hand(logits: torch.Tensor, weight: torch.Tensor, move: float, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over classes + 1, image by image."""
    losses = []
    for row, label in zip(logits, labels, strict=True):
        top = int(row.argmax())
        others = [row[i] + move * (weight[top] - weight[i]).norm() for i in range(len(row)) if i != top]
        extended = torch.cat([row, torch.stack(others).max()[None]])
        losses.append(extended.logsumexp(0) - extended[label])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("eps_factor", [0.0, 0.5])
def test_gloros_loss_by_hand(eps_factor) -> None:
    model, images = convolutional(0), grey_images()
    objective = gloro.objective(None, radius=0.3, power_steps=100)
    objective.attach(model, images)
    objective.advance()
    norm = exact_norms(model[:-1], images[:1])
    shapes = {0: ((1, 6, 6), (3, 6, 6)), 2: ((3, 6, 6), (4, 3, 3)), 5: ((36,), (8,))}
    constant = math.prod(float(norm(k, *(torch.ones(1, *shape) for shape in ends))) for k, ends in shapes.items())
    expected = by_hand(model(images), model[-1].weight, eps_factor * 0.3 * constant, LABELS)
    assert torch.allclose(objective.loss(model, images, LABELS, eps_factor), expected, rtol=1e-3)


def test_gloros_further_logit_is_passed_where_no_move_changes_the_class() -> None:
    """A linear network: its radius is known exactly."""
    torch.manual_seed(0)
    head, x = nn.Linear(6, 4).requires_grad_(False), torch.randn(200, 6)
    logits, top = head(x), head(x).argmax(1)
    gaps = (head.weight[top][:, None] - head.weight[None]).norm(dim=2)
    distance = ((logits.amax(1, keepdim=True) - logits) / gaps).nan_to_num(torch.inf).amin(1)
    for radius in (0.0, 0.1, 1.0):
        further = further_logit(logits, head.weight, torch.tensor(radius))
        assert torch.equal(logits.amax(1) > further + 1e-5, distance > radius + 1e-5)


@pytest.mark.parametrize("network", [convolutional, transformer])
def test_gloros_score_is_what_the_certificate_certifies(tmp_path, network) -> None:
    model = network()
    run(model, standard.objective(None), spec(epochs=4, batch_size=30), tmp_path / "c")
    model.requires_grad_(False)
    images, labels = blobs(2, 200)
    radii = lipschitz.certify(model, images, labels)
    radius = float(radii[radii > 0].median())
    smallest, largest = (float((radii >= factor * radius).double().mean()) for factor in (1.2, 0.999))
    score = gloro.objective(None, radius=radius).score(model, images, labels)
    assert smallest <= score <= largest  # of attention it takes fewer forms than the certificate
    assert smallest > 0
