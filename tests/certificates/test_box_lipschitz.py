"""Certificates of networks with clipped ReLUs, by ball and box and by local bounds: attacks, exact cases, refusals."""

from __future__ import annotations

import math
from functools import cache, partial

import pytest
import torch
from masked_networks import blobs, train
from searched import few
from tiny_clipped import EXTREMES, broken, random_clipped_network
from torch import nn

from benchmark.certificates import box_lipschitz, lipschitz, local
from benchmark.certificates.bounds.box import Matrix
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.box_lipschitz import BoxedNetwork, _linears, certify
from benchmark.certificates.local import above
from benchmark.evaluation.audit import Audit, Plan
from benchmark.evaluation.audit_layers import Effort
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError

PRECISION = 1e-3


@pytest.mark.slow
def test_nothing_breaks_a_network_of_local_bounds_inside_a_certified_ball() -> None:
    model, images, _ = random_clipped_network(1)
    labels = model(images).argmax(1)
    measured, allowed = local.float32_gap(model, images, labels)
    assert measured <= allowed
    assert not broken(model, images, local.certify(model, images, labels), 1)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("extreme", "seed"),
    few([(None, 1), (None, 3), *((extreme, 100) for extreme in EXTREMES)], [(None, seed) for seed in range(1000, 1200)]),
)
def test_nothing_breaks_a_network_and_the_global_constant_certifies_no_more(extreme, seed) -> None:
    model, images, _ = random_clipped_network(seed, extreme)
    labels = model(images).argmax(1)
    measured, allowed = box_lipschitz.float32_gap(model, images, labels)
    assert measured <= allowed
    radii, worldwide = certify(model, images, labels), lipschitz.certify(model, images, labels)
    assert (radii >= worldwide * (1 - 1.1 * PRECISION) - 1e-9).all()
    assert not broken(model, images, radii, seed)
    assert (radii > 0).any() or seed >= 1000


@pytest.mark.parametrize("seed", few([1], [0, 2, 3]))
def test_every_float32_unit_stays_in_its_region(seed) -> None:
    """Images all over the ball, its boundary and the steepest descent among them, run layer by layer in float32."""
    model, images, _ = random_clipped_network(seed)
    labels = model(images).argmax(1)
    network = checked_copy(model)
    bounded = bound_network(network, images, labels)
    boxed = BoxedNetwork(bounded, _linears(bounded))
    for radius in (1e-4, 0.03, 0.5, 3.0):
        radii = torch.full((len(images),), radius, dtype=torch.float64)
        regions, in_range = boxed.regions(radii, restricted=True)
        assert in_range.all()
        moves = torch.randn(40, *images.shape, generator=torch.Generator().manual_seed(seed))
        moves[:20] *= torch.rand(20, *images.shape, generator=torch.Generator().manual_seed(seed)) < 0.2
        moves[0] = -bounded.gradients[0][:, 0].float()
        moves *= radius / moves.flatten(2).norm(dim=2).clamp(min=1e-30)[..., None, None, None] * (1 - 1e-6)
        x = (images + moves).flatten(0, 1)
        inside = (x.double().unflatten(0, (40, -1)) - images.double()).flatten(2).norm(dim=2) <= radius
        place = 0
        for stage, after in zip(boxed.stages, regions[1:], strict=True):
            place += 1 if type(model[place]) in box_lipschitz.CLIPS or stage.theta is None else 2
            y = network[:place](images.double()).flatten(1)
            change = (model[:place](x).double().flatten(1).unflatten(0, (40, -1)) - y)[inside]
            rho, low, high = (end.expand(40, *end.shape)[inside] for end in vars(after).values())
            assert len(change) > 10
            assert (change.norm(dim=1) <= rho).all()
            assert ((low <= change) & (change <= high)).all()


@cache
def trained() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        Normalise(0.5, 0.25),
        nn.Conv2d(1, 6, 3, padding=1),
        ClippedReLU((6, 6, 6), initial=2.0),
        nn.Conv2d(6, 8, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 24),
        ClippedReLU((24,), initial=5.0),
        nn.Linear(24, 4),
    )
    train(model, steps=40, seed=1, weight_decay=1e-3)
    return model


@pytest.mark.slow
def test_a_trained_network_is_certified_far_better_than_by_its_global_constant_and_passes_the_audit() -> None:
    model, (images, labels) = trained(), blobs(8)
    radii, worldwide = certify(model, images, labels), lipschitz.certify(model, images, labels)
    correct = model(images).argmax(1) == labels
    assert correct.float().mean() > 0.9
    assert ((radii > 0) == correct).all()
    assert radii[correct].median() > 2 * worldwide[correct].median()
    plan = Plan(sample=2, restarts=1, steps=8, components=(), effort=Effort(radii=(0.1,), starts=3, steps=3))
    result = Audit(model, images, labels, radii, "row", plan=plan).run(certify, 8)
    assert (result.images, result.planted, result.layers) == (int(correct.sum()), 2, 8)
    assert 0 < result.closest_plant < 1


@pytest.mark.slow
def test_too_small_norms_are_detected(monkeypatch) -> None:
    exact = Matrix.restricted_norm
    monkeypatch.setattr(Matrix, "restricted_norm", lambda *a: 0.2 * exact(*a))
    model, (images, _) = trained(), blobs(24)
    assert broken(model, images, certify(model, images, model(images).argmax(1)), 0)


def one_unit(clip: nn.Module, bias: float, logit: float) -> nn.Sequential:
    """One pixel x, a unit clip(x + bias), logits (unit, logit)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1), clip, nn.Linear(1, 2)).requires_grad_(False)
    model[1].weight[:], model[1].bias[:] = 1.0, bias
    model[3].weight[:], model[3].bias[:] = torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, logit])
    return model


@pytest.mark.parametrize(
    ("theta", "bias", "logit", "label", "exact"),
    [
        (math.inf, -1.0, 0.5, 1, 1.5),  # dead up to 1, then it rises
        (math.inf, 1.0, 0.5, 0, 0.5),  # alive
        (2.0, 5.0, 1.5, 0, 3.5),  # at the threshold until 3 below
        (0.4, -1.0, 0.5, 1, 8.0),  # never reaches the other logit: the largest radius asked for
        (0.0, 3.0, 0.5, 1, 8.0),  # constant
        (-1.0, 3.0, 0.5, 1, 8.0),
        (1.0, 1.0, 0.5, 0, 0.5),  # on a kink
    ],
)
def test_a_dead_unit_costs_nothing_until_it_can_wake(theta, bias, logit, label, exact) -> None:
    clip = nn.ReLU() if theta == math.inf else ClippedReLU((1,))
    if isinstance(clip, ClippedReLU):
        clip.theta.data[:] = theta
    radius = float(certify(one_unit(clip, bias, logit), torch.zeros(1, 1, 1, 1), torch.tensor([label])))
    assert exact * (1 - PRECISION) - 1e-5 <= radius <= exact


def test_clips_may_come_first_and_one_after_another() -> None:
    model = nn.Sequential(
        ClippedReLU((1, 1, 1)), nn.ReLU(), ClippedReLU((1, 1, 1), initial=0.5), nn.Flatten(), nn.Linear(1, 2)
    )
    model.requires_grad_(False)
    model[4].weight[:], model[4].bias[:] = torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 0.2])
    images = torch.tensor([0.25, 0.1, 0.8]).reshape(3, 1, 1, 1)  # the last is 0.3 above where the output starts to fall
    exact = torch.tensor([0.05, 0.1, 0.6], dtype=torch.float64)
    radii = certify(model, images, torch.tensor([0, 1, 0]))
    assert (radii <= exact + 1e-8).all()  # the float32 rounding of 0.8 and 0.1
    assert (radii >= exact * (1 - 2 * PRECISION) - 1e-5).all()


@pytest.mark.parametrize("seed", few([0], [1, 2]))
def test_layers_too_large_for_a_matrix_are_bounded_by_their_norms(seed, monkeypatch) -> None:
    model, images, _ = random_clipped_network(seed)
    labels = model(images).argmax(1)
    formed = certify(model, images, labels)
    monkeypatch.setattr(box_lipschitz, "FORMED", 0)
    bounded = bound_network(checked_copy(model), images, labels)
    assert not any(isinstance(view, Matrix) for view in _linears(bounded))
    radii = certify(model, images, labels)
    assert (radii > 0).any()
    assert (radii <= formed * (1 + 1.1 * PRECISION)).all()
    assert not broken(model, images, radii, seed)


@pytest.mark.slow
def test_the_check_succeeds_at_a_radius_and_fails_beyond_in_any_batch(monkeypatch) -> None:
    model, (images, labels) = trained(), blobs(12)
    radii = certify(model, images, labels)
    bounded = bound_network(checked_copy(model), images, labels)
    boxed = BoxedNetwork(bounded, _linears(bounded))
    assert (radii > 0).all()
    holds = above(bounded.rival_margins, partial(boxed.margin_drop, restricted=True))
    assert holds(radii).all()
    assert not holds(radii * (1 + 3 * PRECISION)).any()
    monkeypatch.setattr(box_lipschitz, "MANY", 5)
    assert torch.allclose(certify(model, images, labels), radii, rtol=PRECISION)


@pytest.mark.parametrize("clip", [nn.ReLU(), ClippedReLU((4,))], ids=["relu", "clipped"])
@pytest.mark.parametrize("count", [3, 4])
def test_nothing_is_certified_where_float32_could_overflow(clip, count) -> None:
    """A clip makes all units dead and finite again, but the effect of infinities before it is unknown."""
    model = nn.Sequential(nn.Flatten(), *(nn.Linear(4, 4, bias=False) for _ in range(count)), clip, nn.Linear(4, 3))
    model.requires_grad_(False)
    for layer in model[1 : 1 + count]:
        layer.weight[:] = 1e6 * torch.eye(4)  # each below the limit, together 1e18 or 1e24
    model[-1].bias[0] = 100.0  # more than four units between 0 and 1 can change
    images = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    assert (certify(model, images, torch.zeros(5, dtype=torch.long)) == 0).all()


def test_a_margin_below_the_rounding_of_its_logits_is_not_certified() -> None:
    model = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(1, 2)).requires_grad_(False)
    model[2].weight[:], model[2].bias[:] = torch.tensor([[0.02], [0.0]]), 1e6  # float32 logits here are 1/16 apart
    image, label = torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])
    assert model(image)[0, 0] == model(image)[0, 1]
    assert float(certify(model, image, label)) == 0
    model[2].bias[:] = 0.0
    assert float(certify(model, image, label)) == pytest.approx(0.5, rel=2 * PRECISION)


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (nn.GELU(), "not GELU; use the certificate local"),
        (nn.LeakyReLU(), "not LeakyReLU"),
        (nn.Sequential(nn.ReLU()), "not Sequential"),
        (ClippedReLU((4, 4), initial=1.0), "NaN"),
    ],
)
def test_other_layers_and_thresholds_that_are_nan_are_refused(middle, reason) -> None:
    model = nn.Sequential(Patchify(2), middle, MeanPool(), NormalisedHead(4, 3)).requires_grad_(False).eval()
    if isinstance(middle, ClippedReLU):
        middle.theta[0, 0] = math.nan
    with pytest.raises((BenchmarkError, ValueError), match=reason):
        certify(model, torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.long))
