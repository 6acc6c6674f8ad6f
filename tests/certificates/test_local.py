"""Local certificates: one-sided comparisons with exact references, attacks, and refusals."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from searched import few
from tiny_certified import network
from tiny_layers import mlp, strayed
from tiny_networks import Draw, random_network
from torch import nn

from benchmark.certificates import box_lipschitz, lipschitz, local, published
from benchmark.certificates.bounds.attention import AttentionBound
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import NetworkBound, bound_network
from benchmark.certificates.local import by_both, certified_at, certify, float32_gap
from benchmark.evaluation.audit import lower_margins
from benchmark.evaluation.audit_layers import float64_copy
from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.layers.derived import cache_weights
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.token_convolution import TokenConvolution
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError


def heads() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    large, small, plain = nn.Linear(9, 4), nn.Linear(9, 4, bias=False), nn.Linear(9, 4)
    large.weight.data += 1e3 * torch.rand(9)  # rows so similar that only the logits' own rounding counts
    small.weight.data *= 1e-3
    return {"normalised": NormalisedHead(9, 4), "plain": plain, "large rows": large, "small rows, no bias": small}


@pytest.mark.sweep
@pytest.mark.parametrize("certificate", [local, lipschitz, box_lipschitz], ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", ["normalised", "plain", "large rows", "small rows, no bias"])
def test_certificate_of_a_linear_network_is_margin_over_row_distance(certificate, name) -> None:
    """Normalisation only scales, so the certificate is exact up to the float32 allowance."""
    head = heads()[name]
    torch.manual_seed(0)
    model = nn.Sequential(Normalise(0.5, 0.25), nn.Flatten(), head).requires_grad_(False)
    images = torch.rand(20, 1, 3, 3)
    logits, weight = model(images).double(), 4 * head.weight.double()
    labels = logits.argmax(1)
    margin = logits.gather(1, labels[:, None]) - logits
    apart = (weight[labels][:, None] - weight[None]).norm(dim=-1)
    exact = (margin / apart).scatter(1, labels[:, None], math.inf).amin(1)
    measured, allowed = certificate.float32_gap(model, images, labels)
    assert 0 < measured <= allowed
    radii = certificate.certify(model, images, labels)
    assert radii.dtype == torch.float64
    assert (radii <= exact).all()
    rounding = 2e-4 * weight.norm(dim=1).max()
    assert (radii >= exact * (1 - 1e-3) - rounding / apart.scatter(1, labels[:, None], math.inf).amin(1)).all()
    assert (certificate.certify(model, images, (labels + 1) % 4) == 0).all()
    assert (certificate.certify(model, images, labels, largest=0.01) <= 0.01).all()
    if name == "plain":
        head.weight.zero_()
        head.bias.zero_()
        assert (certificate.certify(model, images, 0 * labels) == 0).all()  # a tie
        head.bias[0] = 1.0  # nothing can change it
        certain = certificate.certify(model, images, 0 * labels)
        assert ((certain > 5) & (certain <= 8)).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", few([1], [0, 2]))
def test_a_plain_linear_head_of_any_size_is_certified_soundly(seed) -> None:
    """Random networks whose rows differ in size: float32 stays within its allowance, and no ball holds what breaks it."""
    model, images, _ = random_network(seed)
    images, draw = images[:2], Draw(seed)
    width, classes = model[-1].weight.shape[1], len(model[-1].bias)
    model[-1] = nn.Linear(width, classes, bias=seed % 3 > 0).requires_grad_(False)
    model[-1].weight.data = draw.normal(classes, width) * 10 ** (2 * draw.normal(classes, 1))
    labels = model(images).argmax(1)
    measured, allowed = float32_gap(model, images, labels)
    assert measured <= allowed
    radii, logits = certify(model, images, labels, precision=0.01), float64_copy(model)(images.double())
    assert (radii > 0).any()
    for shift in range(1, classes):
        rivals = (labels + shift) % classes
        options = {"steps": 40, "seed": seed, "box": False}
        drop, _ = lower_margins(float64_copy(model), images.double(), labels, rivals, radii, **options)
        margins = logits.gather(1, labels[:, None]) - logits.gather(1, rivals[:, None])
        assert (drop < margins[:, 0])[radii > 0].all()


class Detour(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Detour(*network(0)), "plain nn.Sequential"),
        (nn.Sequential(Patchify(4), Positions(16, 16), MeanPool(), NormalisedHead(16, 4)), "positions .* do not fit"),
        (nn.Sequential(Patchify(2), NormalisedHead(4, 4)), "one vector an image"),
        (nn.Sequential(nn.Flatten()), "ends in a NormalisedHead"),
    ],
)
def test_networks_that_differ_from_their_declared_layers_are_refused(model, reason) -> None:
    with pytest.raises(BenchmarkError, match=reason):
        certify(model.eval(), torch.rand(3, 1, 4, 4), torch.zeros(3, dtype=torch.long))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cascade_gives_the_verdicts_of_its_last_step(seed) -> None:
    model = network(seed)
    images = torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    labels = model(images).argmax(1)
    labels[:5] = (labels[:5] + 1) % 4
    radii = certify(model, images, labels)
    for radius in (0.0, 1e-3, float(radii.median()), 0.1, 0.5):
        bounded = bound_network(checked_copy(model), images, labels)
        bounded.relaxation_radius = torch.full((30,), radius, dtype=torch.float64)  # as the cascade settles
        full = (bounded.rival_margins > bounded.margin_drop(bounded.relaxation_radius)).all(1)
        cascade = certified_at(model, images, labels, radius)
        assert torch.equal(cascade, full)
        assert cascade[radii > radius * 1.01].all()


def test_cached_weights_follow_their_parameters() -> None:
    model = network(0)
    with pytest.raises(ValueError, match="learns"):
        cache_weights(network(0).requires_grad_(True))
    fresh, images = [layer.weight for layer in (model[2], model[-1])], torch.rand(3, 1, 4, 4)
    cache_weights(model)
    assert model[2].weight is model[2].weight
    assert torch.equal(model[2].weight, fresh[0])
    assert torch.equal(model[-1].weight, fresh[1])
    assert torch.equal(copy.deepcopy(model).double()[6].scale, network(0).double()[6].scale)
    model.load_state_dict(network(1).state_dict())
    assert torch.equal(model(images), network(1)(images))
    cache_weights(model)
    model[2].raw.data[0, 0] += 1  # behind torch's back
    edited = network(1)
    edited[2].raw.data[0, 0] += 1
    assert torch.equal(model(images), edited(images))
    before = model[2].weight
    model[2].norm = edited[2].norm = 0.5
    assert not torch.equal(model[2].weight, before)
    assert torch.equal(model(images), edited(images))
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(model)(images), edited(images))


@pytest.mark.slow
def test_a_neuron_without_weights_and_a_huge_radius_are_certified_as_any_other() -> None:
    model, images = network(0), torch.rand(4, 1, 4, 4)
    model[6].weight.data[:, 0] = 0.0
    labels = model(images).argmax(1)
    assert (certify(model, images, labels, precision=0.1) > 0).all()
    assert not certified_at(model, images, labels, 1e200).any()
    steep = network(0, qk_norm=1e9)
    assert (published.certify(steep, images, steep(images).argmax(1), precision=0.1) >= 0).all()
    bounded = bound_network(checked_copy(model), images, labels)
    assert not by_both(bounded, torch.full((4,), 1e100, dtype=torch.float64)).any()


@pytest.mark.slow
def test_nan_never_counts_as_a_bound(monkeypatch) -> None:
    """NaN from the margin gradient leaves what composing gives; NaN from composing certifies nothing."""
    model, images = network(0), torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    radii = torch.full((4,), 1e-3, dtype=torch.float64)

    def bounded() -> NetworkBound:
        return bound_network(checked_copy(model), images, labels)

    composed = bounded().composed(radii)
    nan = lambda _, a, *__: torch.full_like(a.flatten(2)[..., 0], torch.nan)  # noqa: E731
    monkeypatch.setattr(NetworkBound, "_first_order", nan)
    assert torch.equal(bounded().margin_drop(radii), composed)
    monkeypatch.undo()
    monkeypatch.setattr(AttentionBound, "quick_bound", lambda _, delta: delta * torch.nan)
    assert bounded().composed(radii, quick=True).isinf().all()
    assert (certify(model, images, labels, precision=0.1) > 0).all()
    monkeypatch.setattr(AttentionBound, "bound", lambda _, delta: delta * torch.nan)
    assert bounded().composed(radii).isinf().all()
    assert (local.certify(model, images, labels) == 0).all()


@pytest.mark.slow
def test_a_radius_may_be_any_number_and_a_search_ends() -> None:
    """Weights of 100 once made `certified_at` raise, because one row of a matrix was not finite."""
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    mixed = (Residual(nn.Sequential(LayerProject(1.0), L2Attention(4, 2))), Residual(TokenConvolution(4, (3,))))
    tokens = (Patchify(2), OrthogonalLinear(4, 4), ClassToken(4), Positions(5, 4))
    steep = nn.Sequential(*tokens, *mixed, SmoothSLLBlock(4, 8, bend=0.1), MeanPool(), NormalisedHead(4, 3))
    steep = steep.eval().requires_grad_(False)
    for parameter in steep.parameters():
        parameter *= 100
    for model in (network(0), steep):
        labels = model(images).argmax(1)
        assert (certify(model, images, labels, precision=0.1) >= 0).all()
        for radius in (0, 100, 1e30, True, torch.tensor(0.5)):
            assert certified_at(model, images, labels, radius).shape == (3,)
    for radius in (-1, float("nan"), float("inf"), 10**400):
        with pytest.raises(ValueError, match="is negative or not finite"):
            certified_at(model, images, labels, radius)
    for odd in ({"precision": 0.0}, {"precision": float("nan")}, {"largest": -1.0}, {"largest": float("inf")}):
        with pytest.raises(BenchmarkError, match="should be a radius in pixels, and precision"):
            certify(network(0), images, network(0)(images).argmax(1), **odd)


def test_an_orthonormal_embedding_keeps_lengths_and_rounds_once() -> None:
    torch.manual_seed(0)
    for inputs, outputs in ((9, 4), (4, 9), (4, 4)):
        layer = OrthogonalLinear(inputs, outputs).requires_grad_(False).eval()
        layer.raw.normal_()
        layer.bias.normal_()
        weight = layer.weight if outputs <= inputs else layer.weight.mT
        assert (weight @ weight.mT - torch.eye(len(weight))).abs().max() < 1e-7
        assert torch.linalg.matrix_norm(weight, ord=2) <= 1 + 1e-12
        x = 100 * torch.randn(50, 3, inputs)
        gap, allowed = next(strayed(layer, x, x))
        assert (gap <= allowed).all()
        assert allowed.max() < 1e-6 * x.norm()
        assert torch.allclose(layer.train()(x), layer.eval()(x), atol=1e-3)


def overflowing(blocks: int = 4) -> nn.Sequential:
    """LayerNorm before L2 attention in windows, so many times that float32's rounding has no finite bound."""
    torch.manual_seed(0)
    mixers: list[nn.Module] = []
    for _ in range(blocks):
        attention = L2WindowAttention(4, 2, side=4, window=2, shift=1)
        nn.init.orthogonal_(attention.content.query.weight, gain=3.0)
        mixers += [Residual(nn.Sequential(nn.LayerNorm(4), attention)), Residual(mlp())]
    model = nn.Sequential(Patchify(1), nn.Linear(1, 4), *mixers, MeanPool(), nn.Linear(4, 3))
    return model.eval().requires_grad_(False)


@pytest.mark.slow
def test_nothing_is_certified_if_rounding_has_no_finite_bound() -> None:
    model, images = overflowing(), torch.rand(2, 1, 4, 4)
    labels = model(images).argmax(1)
    network = checked_copy(model)
    assert not torch.isfinite(bound_network(network, images, labels).composed(torch.zeros(2).double())).all(1).any()
    assert (certify(model, images, labels) == 0).all()
    assert not certified_at(model, images, labels, 1e-6).any()


@pytest.mark.slow
def test_images_without_a_bound_do_not_affect_the_others(monkeypatch) -> None:
    model, images = overflowing(1), torch.rand(4, 1, 4, 4)
    labels = model(images).argmax(1)
    alone = certify(model, images, labels, precision=0.05)
    assert (alone > 0).all()
    hopeless, composed = images[[0, 3]].double(), NetworkBound.composed

    def patched(self, radius, **options):
        others = torch.stack([(self.activations[0] != image).flatten(1).any(1) for image in hopeless]).all(0)
        return torch.where(others[:, None], composed(self, radius, **options), torch.nan)

    monkeypatch.setattr(NetworkBound, "composed", patched)
    radii = certify(model, images, labels, precision=0.05)
    assert (radii[[0, 3]] == 0).all()
    assert torch.allclose(radii[[1, 2]], alone[[1, 2]], rtol=0.1)


def attending(attention: nn.Module) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Return a network around attention of width 8, images and their predictions."""
    model = nn.Sequential(Normalise(), Patchify(2), nn.Linear(4, 8), attention, MeanPool(), NormalisedHead(8, 3))
    images = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return model.eval().requires_grad_(False), images, model(images).argmax(1)


def test_the_published_bound_is_only_for_attention_without_biases_and_scales() -> None:
    torch.manual_seed(0)
    model, images, labels = attending(SelfAttention(8, 2, scale=300.0))
    with pytest.raises(BenchmarkError, match="the published bound is of ResidualAttention; use the certificate `local`"):
        published.certify(model, images, labels)
    assert (local.certify(model, images, labels) > 0).any()


def test_attention_too_wide_for_its_jacobian_inside_a_residual_is_certified_by_composing(monkeypatch) -> None:
    monkeypatch.setattr("benchmark.certificates.bounds.attention.FORMED_SIDE", 10)
    torch.manual_seed(0)
    model, images, labels = attending(Residual(nn.Sequential(nn.LayerNorm(8), SelfAttention(8, 2))))
    radii = local.certify(model, images, labels)
    assert (radii > 0).any()
    assert bool(local.certified_at(model, images, labels, float(radii.max()) / 2).any())
