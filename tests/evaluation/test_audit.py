"""The auditor passes sound certificates, and each of its parts catches its kind of fault."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from tiny_certified import GREY, SMALL, one_block
from tiny_models import Through
from torch import nn

from benchmark.certificates import local
from benchmark.certificates.local import certify
from benchmark.evaluation.audit import Audit, Plan, audit_planted, audit_ties, plants, tied
from benchmark.evaluation.audit_layers import Effort
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError

ZERO = torch.zeros(6, dtype=torch.float64)
QUICK = Plan(sample=2, restarts=1, steps=8, effort=SMALL)


def flat(classes: int = 5) -> nn.Sequential:
    """Isometries and a head: the certificate is exact but for its allowance."""
    torch.manual_seed(0)
    return nn.Sequential(Patchify(4), MeanPool(), NormalisedHead(16, classes)).requires_grad_(False)


def favoured(model: nn.Sequential) -> tuple[nn.Sequential, torch.Tensor]:
    """The model with biases that make some images' margins large, and its labels."""
    model = copy.deepcopy(model)
    model[-1].bias.data -= model(GREY).mean(0)
    return model, model(GREY).argmax(1)


def audited(model, labels, radii, certificate, plan=QUICK):
    return Audit(model, GREY, labels, radii, "row", plan=plan).run(certificate, 4)


@pytest.mark.slow
@pytest.mark.parametrize("make", [one_block, flat])
def test_a_sound_certificate_passes_and_everything_was_tried(make) -> None:
    model, labels = favoured(make())
    radii = certify(model, GREY, labels)
    result = audited(model, labels, radii, certify)
    assert result == audited(model, labels, radii, certify), "an audit repeats to the byte"
    assert result.images == (radii > 0).sum() > 2
    assert result.attacks == ("pgd", "margin descent", "apgd-ce")
    assert result.layers == len(model) - 1
    assert result.layer_trials == result.layers * 2 * (1 + 1 + 2 + 2 * 3)
    assert 0.99 < result.worst_ratio <= 1 + 1e-9
    assert result.planted == 2
    assert 0.3 < result.closest_plant < 1
    assert (result.ties, result.float64_disagreements) == (4, 0)


@pytest.mark.slow
def test_without_certified_images_layers_are_audited_and_without_layers_or_a_linear_head_balls() -> None:
    model, labels = favoured(flat())
    result = audited(model, labels, ZERO, certify)
    assert (result.images, result.attacks) == (0, ())
    assert result.layer_trials > 0
    assert result.planted > 0
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Softmax(1), nn.Identity()).requires_grad_(False)
    labels = model(GREY).argmax(1)
    result = audited(model, labels, ZERO + 1e-6, certify)
    assert (result.layers, result.layer_trials, result.ties, result.planted) == (0, 0, 0, 0)
    assert result.images == 6


@pytest.mark.parametrize(
    ("attack", "too_large"),
    [
        (lambda audit, image: audit.pgd(image, 8, 0, 60), 1.5),
        (lambda audit, image: audit.apgd(image, 4, 0, ("apgd-ce", "apgd-t")), 1.01),
        (lambda audit, image: audit.descend(torch.tensor([image]), 0, 30), 1.01),
    ],
    ids=["pgd", "apgd", "descend"],
)
def test_each_attack_alone_breaks_a_radius_slightly_too_large(attack, too_large) -> None:
    model, labels = favoured(flat())
    radii = certify(model, GREY, labels)
    attack(Audit(model, GREY, labels, radii, "row"), int(radii.argmax()))
    with pytest.raises(BenchmarkError, match="broke it there"):
        attack(Audit(model, GREY, labels, radii * too_large, "row"), int(radii.argmax()))


def ignores(rival: int, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A certificate that forgets one class."""
    model = copy.deepcopy(model)
    model[-1].bias.data[rival] -= 1e6 * (labels[0] != rival)
    return certify(model, images, labels)


def each_by_itself(certificate, model, images, labels) -> torch.Tensor:
    pairs = zip(images.split(1), labels.split(1), strict=True)
    return torch.cat([certificate(model, x, y) for x, y in pairs])


@pytest.mark.slow
def test_a_certificate_that_ignores_any_one_rival_is_caught_by_plants() -> None:
    model, labels = favoured(one_block())
    other = int((labels != labels[0]).nonzero()[0])
    every = [*((0, j) for j in range(5) if j != int(labels[0])), (other, int(labels[0]))]
    at, rivals = torch.tensor(every).mT
    radii = torch.full((len(at),), 0.2, dtype=torch.float64)
    made = plants(model, GREY[at], labels[at], rivals, radii, steps=20, seed=0)
    assert len(made) == len(every)
    assert {plant.rival for plant in made} == set(range(5))
    assert audit_planted(made, GREY[at], labels[at], certify, "row") < 1
    for plant in made:
        assert plant.distance <= 0.2 + 1e-12
        assert plant.margins[0] > 0 > plant.margins[1]
        image, double = GREY[at][plant.image][None], copy.deepcopy(plant.model).double()
        assert plant.model(image).argmax() == double(image.double()).argmax() == labels[at][plant.image]
        careless = partial(ignores, plant.rival)
        with pytest.raises(BenchmarkError, match=rf"\(class {plant.rival}\) lies at l2 0\.[12]\d* .* is certified"):
            audit_planted([plant], GREY[at], labels[at], careless, "row")


@pytest.mark.slow
def test_the_pipeline_s_sample_takes_every_rival_in_turn() -> None:
    model, labels = favoured(one_block())
    sample = Plan(sample=6, restarts=1, effort=Effort(radii=(0.1,), starts=1, steps=1))
    for rival in range(5):
        careless = partial(each_by_itself, partial(ignores, rival))
        with pytest.raises(BenchmarkError, match="wrong and nothing is published"):
            audited(model, labels, ZERO, careless, sample)


def test_radii_too_large_by_what_ascent_leaves_open_are_caught_by_plants() -> None:
    model, labels = favoured(flat())
    made = plants(model, GREY, labels, (labels + 1) % 5, ZERO + 0.2, steps=20, seed=0)
    assert len(made) == 6
    for plant in made:  # never beyond; short of it by float32's rounding, which differs between processors
        assert 0.2 * (1 - 1e-5) <= plant.distance <= 0.2 + 1e-12
    assert 0.99 < audit_planted(made, GREY, labels, certify, "row") < 1
    with pytest.raises(BenchmarkError, match="planted counterexample 0"):
        audit_planted(made, GREY, labels, lambda *a: 1.01 * certify(*a), "row")


def test_certified_ties_are_caught() -> None:
    model, labels = favoured(one_block())
    logits = tied(model, 3, 1)(GREY)
    assert (logits[:, 1] == logits[:, 3]).all()
    assert audit_ties(model, GREY, labels, certify, "row") == 12

    def lenient(model, images, labels):  # takes nothing from the margin, and >= for >
        logits = model.double()(images.double())
        margin = logits.gather(1, labels[:, None]) - logits
        return torch.where((margin >= 0).all(1), 1e-3, 0.0).double()

    with pytest.raises(BenchmarkError, match=r"tie exactly is certified at l2 0\.001"):
        audit_ties(model, GREY, labels, lenient, "row")


def test_verdicts_that_are_wrong_or_differ_in_float64_are_refused_for_certified_images() -> None:
    """The others are counted."""
    model, labels = favoured(one_block())
    assert Audit(model, GREY, labels, ZERO + 1e-9, "row").disagreements(4).sum() == 0
    labels[2] = (labels[2] + 1) % 5
    with pytest.raises(BenchmarkError, match=r"image 2 .* clean margin is -\S+ in float32 and -\S+ in float64"):
        Audit(model, GREY, labels, ZERO + 1e-9, "row").disagreements(4)

    def signed(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # right in float32, wrong in float64
        sums = (1.0 if x.dtype == torch.float32 else -1.0) * z.sum(1)
        return torch.stack([sums, torch.zeros_like(sums)], 1)

    rounding, labels = Through(nn.Flatten(), after=signed), torch.zeros(6, dtype=torch.long)
    assert Audit(rounding, GREY, labels, ZERO, "row").disagreements(4).sum() == 6
    with pytest.raises(BenchmarkError, match="float64"):
        Audit(rounding, GREY, labels, ZERO + 1, "row").disagreements(4)


@pytest.mark.slow
def test_a_network_whose_bounds_are_halved_is_caught_end_to_end(monkeypatch) -> None:
    """Where layers are not audited: attacks and plants on the network of such a certificate."""
    honest = local.NetworkBound.margin_drop
    monkeypatch.setattr(local.NetworkBound, "margin_drop", lambda self, *a, **o: 0.5 * honest(self, *a, **o))
    model, labels = favoured(one_block())
    radii = certify(model, GREY, labels)
    with pytest.raises(BenchmarkError, match="broke it there"):
        Audit(model, GREY, labels, radii, "row").descend((radii > 0).nonzero()[:, 0], 0, 30)
    made = plants(model, GREY, labels, (labels + 1) % 5, ZERO + 0.1, steps=20, seed=0)
    with pytest.raises(BenchmarkError, match="planted counterexample"):
        audit_planted(made, GREY, labels, certify, "row")
