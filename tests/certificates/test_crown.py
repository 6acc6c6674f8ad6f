"""The adapter to auto_LiRPA: its own logic with a test double, and the real package if it is installed."""

from __future__ import annotations

import math
import sys

import fake_lirpa
import pytest
import torch
from tiny_certified import affine
from torch import nn

from benchmark.certificates import crown, local
from benchmark.certificates.crown import certified_at, certify
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError

IMAGES = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def exact_radii(model: nn.Sequential, labels: torch.Tensor) -> torch.Tensor:
    """min over rivals of (margin - allowance) / ||gradient||, 0 where the margin is no larger than the allowance."""
    network = model.double()
    jacobian = torch.func.jacrev(lambda x: network(x[None])[0])(IMAGES[0].double()).flatten(1)
    logits = network(IMAGES.double())
    model.float()
    margin = logits.gather(1, labels[:, None]) - logits - crown.FLOAT32_ALLOWANCE
    size = (jacobian[labels][:, None] - jacobian).norm(dim=2)
    return (margin / size).scatter(1, labels[:, None], math.inf).amin(1).clamp(min=0)


@pytest.mark.slow
def test_every_rival_counts_and_the_radius_is_the_linear_network_s(monkeypatch) -> None:
    fake_lirpa.install(monkeypatch)
    model = affine()
    labels = model(IMAGES).argmax(1)
    exact, radii = exact_radii(model, labels), certify(model, IMAGES, labels, precision=1e-3)
    wide = exact > crown.SMALLEST
    assert wide.sum() > 5
    assert (radii <= exact).all()
    assert (radii >= exact * (1 - 2e-3))[wide].all()
    for radius in (0.01, 0.1, 0.03):
        assert torch.equal(certified_at(model, IMAGES, labels, radius), exact > radius)
    assert torch.get_default_dtype() == torch.float32
    model[-1].bias.data[2] += 100
    for largest in (0.7, 0.01):
        assert (certify(model, IMAGES, torch.full((12,), 2), largest=largest) == largest).all()


def test_alpha_crown_runs_where_crown_fails_and_never_lowers_a_bound(monkeypatch) -> None:
    double = fake_lirpa.install(monkeypatch)
    monkeypatch.setattr(double, "loose", 3.0)
    model = affine()
    labels = model(IMAGES).argmax(1)
    exact = exact_radii(model, labels)
    correct = int((exact > 0).sum())
    assert (certified_at(model, IMAGES, labels, 0.03) == (exact / 3 > 0.03)).all()
    assert double.calls == correct
    assert (certified_at(model, IMAGES, labels, 0.03, alpha_steps=5) == (exact > 0.03)).all()
    assert double.calls == 2 * correct + int(((exact > 0) & (exact / 3 <= 0.03)).sum())
    monkeypatch.setattr(double, "loose", 0.0)
    assert certified_at(model, IMAGES, labels, 9.0, alpha_steps=5).sum() == correct


@pytest.mark.slow
def test_a_bound_that_is_nan_or_infinite_certifies_nothing_and_one_above_the_clean_margin_is_an_error(monkeypatch) -> None:
    model = affine()
    labels = model(IMAGES).argmax(1)
    for nothing in (math.nan, -math.inf):
        fake_lirpa.install(monkeypatch, raised_by=nothing)
        assert (certify(model, IMAGES[:3], labels[:3]) == 0).all()
    fake_lirpa.install(monkeypatch, raised_by=1.0)
    with pytest.raises(BenchmarkError, match="above a clean margin"):
        certify(model, IMAGES, labels)


def test_the_guarantee_names_what_it_trusts(monkeypatch) -> None:
    fake_lirpa.install(monkeypatch)
    assert "if auto_LiRPA 0.0-double is right" in crown.guarantee()


def test_without_the_package_the_reason_is_one_clear_line(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "auto_LiRPA", None)
    for call in (crown.guarantee, lambda: certify(affine(), IMAGES, torch.zeros(12, dtype=torch.long))):
        with pytest.raises(BenchmarkError, match=r"needs the package auto_LiRPA 0\.7.*docs"):
            call()


def test_the_allowance_is_twice_what_float32_may_do_to_a_clean_margin(monkeypatch) -> None:
    fake_lirpa.install(monkeypatch)
    model = affine()
    model[2].bias.data += 1e4  # logits so large that rounding counts
    labels = model(IMAGES).argmax(1)
    _, allowed = crown.float32_gap(model, IMAGES, labels)
    assert allowed > crown.FLOAT32_ALLOWANCE
    bounds, pairs = crown.Bounds(model, IMAGES, 0), zip(IMAGES.double().split(1), labels.split(1), strict=True)
    assert max(bounds.allowance(*pair) for pair in pairs) == 2 * allowed


def test_a_network_written_in_plain_operations_is_compared_with_the_layers(monkeypatch) -> None:
    fake_lirpa.install(monkeypatch)
    monkeypatch.setattr(crown, "plain", lambda network: nn.Sequential(*network[:-1], nn.ReLU(), network[-1]))
    with pytest.raises(BenchmarkError, match="differs from the model"):
        certify(affine(), IMAGES, torch.zeros(12, dtype=torch.long))


@pytest.mark.slow
def test_the_real_package_bounds_a_transformer() -> None:
    pytest.importorskip("auto_LiRPA", reason="auto_LiRPA 0.7 is optional and not installed; see docs/certificates.md")
    torch.manual_seed(0)
    blocks = (LayerProject(1.0), ResidualAttention(6, 2, qk_norm=1.0, vo_norm=0.5), SLLBlock(6, 8))
    layers = (Patchify(2), BoundedLinear(4, 6), Positions(4, 6), *blocks, MeanPool(), NormalisedHead(6, 4))
    model = nn.Sequential(*layers).requires_grad_(False)
    model[-1].bias.data -= model(IMAGES).mean(0)
    labels = model(IMAGES).argmax(1)
    from benchmark.evaluation.audit import Audit

    crowned, ours = (certificate(model, IMAGES, labels) for certificate in (certify, local.certify))
    assert (crowned > 0).any()
    assert ((crowned > 0) <= (ours > 0)).all()
    Audit(model, IMAGES, labels, crowned, "crown").descend((crowned > 0).nonzero()[:, 0], 0, 30)
    best = int(crowned.argmax())
    assert certified_at(model, IMAGES, labels, 0.99 * float(crowned[best]), alpha_steps=5)[best]


def test_the_real_package_is_exact_on_an_affine_network() -> None:
    pytest.importorskip("auto_LiRPA", reason="auto_LiRPA 0.7 is optional and not installed; see docs/certificates.md")
    model = affine()
    labels = model(IMAGES).argmax(1)
    exact, radii = exact_radii(model, labels), certify(model, IMAGES, labels)
    assert (radii <= exact).all()
    assert (radii >= exact * 0.98)[exact > crown.SMALLEST].all()


def test_an_interval_outside_a_relaxation_s_domain_certifies_nothing(monkeypatch) -> None:
    double = fake_lirpa.install(monkeypatch)
    honest = double.compute_bounds

    def narrow(self, x, **options):
        assert x[0].ptb.eps < 0.02
        return honest(self, x, **options)

    monkeypatch.setattr(double, "compute_bounds", narrow)
    model = affine()
    model[-1].bias.data[2] += 100
    radii = certify(model, IMAGES[:2], torch.tensor([2, 2]), precision=1e-3)
    assert ((radii < 0.02) & (radii > 0.0199)).all()


def test_what_the_package_cannot_do_is_one_clear_line(monkeypatch) -> None:
    double = fake_lirpa.install(monkeypatch)

    def refuse(*_args, **_options):
        raise NotImplementedError("no relaxation of Foo\nmore")

    monkeypatch.setattr(double, "compute_bounds", refuse)
    model = affine()
    with pytest.raises(BenchmarkError, match=r"cannot bound this network: no relaxation of Foo$"):
        certify(model, IMAGES[:1], model(IMAGES[:1]).argmax(1))
