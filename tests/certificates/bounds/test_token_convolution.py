"""Bounds of convolutions over tokens and of residuals around them, against dense matrices, float32 and attacks."""

from __future__ import annotations

import copy

import pytest
import torch
from searched import few
from tiny_layers import built, draw
from torch import nn

from benchmark.audit.balls import Balls
from benchmark.audit.layers import Effort, audit_layers
from benchmark.certificates import lipschitz
from benchmark.certificates.bounds import token_convolution
from benchmark.certificates.bounds.composite import ResidualBound, SequentialBound
from benchmark.certificates.bounds.dispatch import exact_layer_bound
from benchmark.certificates.bounds.layer_bound import LayerBound
from benchmark.certificates.bounds.plain_layers import plain
from benchmark.certificates.bounds.token_convolution import token_convolution_norm_upper
from benchmark.certificates.local import certify, float32_gap
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.resize import Resize
from benchmark.layers.token_convolution import BoundedTokenConvolution, SliceConvolution, TokenConvolution
from benchmark.layers.tokens import MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError


def dense(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The matrix of a linear layer for one input like x (n, *shape), by its derivative."""
    return torch.autograd.functional.jacobian(lambda y: layer(y).flatten(), x[:1]).reshape(-1, x[0].numel())


def norm_of(layer: nn.Module, x: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(dense(layer, x), ord=2))


RESIDUALS = {
    "one": lambda d: Residual(TokenConvolution(d, (3,))),
    "slices": lambda d: Residual(TokenConvolution(d, (3, 5))),
    "bounded": lambda d: Residual(BoundedTokenConvolution(d, (3,), norm=0.5)),
    "projected": lambda d: Residual(nn.Sequential(TokenConvolution(d, (5, 3)), nn.Linear(d, d))),
    "twice": lambda d: Residual(nn.Sequential(TokenConvolution(d, (3,)), nn.Linear(d, d), OrthogonalLinear(d, d))),
    "alone in a sequence": lambda d: Residual(nn.Sequential(BoundedTokenConvolution(d, (1, 3)))),
}


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 17, 33])
@pytest.mark.parametrize("kernels", [(1,), (3,), (5, 5), (3, 7), (3, 3, 1, 5)])
def test_the_norm_is_that_of_the_dense_matrix_to_a_hundredth(tokens, kernels) -> None:
    layer, x = built(TokenConvolution(8, kernels), tokens), draw(2, tokens, 8)
    bound, exact = exact_layer_bound(layer, x), norm_of(layer, x)
    assert type(bound) is LayerBound
    slack = 1.01 if tokens <= 5 or tokens > 2 * max(kernels) else 1.03
    assert exact <= bound.jacobian_norm <= slack * exact


@pytest.mark.parametrize("tokens", few([1, 5, 17], [3, 33]))
@pytest.mark.parametrize("name", RESIDUALS)
def test_a_residual_s_norm_is_that_of_the_dense_matrix_to_a_hundredth(tokens, name) -> None:
    for seed in range(3):
        layer, x = built(RESIDUALS[name](8), seed), draw(2, tokens, 8)
        bound, exact = exact_layer_bound(layer, x), norm_of(layer, x)
        assert type(bound) is LayerBound
        assert exact <= bound.jacobian_norm <= 1.01 * exact
        assert exact <= lipschitz.lipschitz_constant(layer, x) <= 1.01 * exact


def test_fourier_blocks_bound_what_is_too_large_to_form(monkeypatch) -> None:
    monkeypatch.setattr(token_convolution, "FORMED", 0)
    for seed, (taps, tokens) in enumerate([(1, 1), (3, 1), (7, 3), (3, 5), (5, 17), (3, 40), (9, 40)]):
        layer, x = built(TokenConvolution(6, (taps,)), seed), draw(1, tokens, 6)
        exact = norm_of(layer, x)
        assert exact <= token_convolution_norm_upper(layer.slices[0].weight, tokens)
        if tokens > 8 * taps:
            assert token_convolution_norm_upper(layer.slices[0].weight, tokens) <= 1.01 * exact


def test_the_identity_of_a_residual_is_not_counted_apart() -> None:
    """The known example: 9.2 where 1 + ||convolution|| gives 10.3, and near 0 where the two cancel."""
    layer, x = built(Residual(TokenConvolution(8, (3,)))), draw(1, 17, 8)
    apart = 1 + exact_layer_bound(layer.body, x).jacobian_norm
    assert exact_layer_bound(layer, x).jacobian_norm < 0.95 * apart
    layer.body.slices[0].weight.data = -torch.eye(8, dtype=torch.float64)[:, :, None] * torch.tensor([0.0, 1.0, 0.0])
    assert exact_layer_bound(layer, x).jacobian_norm <= 1e-9
    turned = nn.Linear(8, 8).double().requires_grad_(False)
    turned.weight.data = torch.linalg.qr(draw(8, 8)).Q
    both = built(Residual(nn.Sequential(TokenConvolution(8, (3,)), turned)))
    both.body[1].weight.data = torch.linalg.qr(draw(8, 8)).Q * 100
    both.body[0].slices[0].weight.data = torch.zeros(8, 8, 3, dtype=torch.float64)
    both.body[0].slices[0].weight.data[:, :, 1] = -both.body[1].weight.mT / 1e4
    assert norm_of(both, x) <= exact_layer_bound(both, x).jacobian_norm <= 1e-6


def test_a_sequence_takes_the_norm_of_the_residual_as_a_whole() -> None:
    layer, x = built(nn.Sequential(Residual(TokenConvolution(8, (3,))), nn.ReLU())), draw(2, 9, 8)
    bound, residual = exact_layer_bound(layer, x), exact_layer_bound(layer[0], x)
    assert isinstance(bound, SequentialBound)
    assert torch.allclose(bound.jacobian_norm, residual.jacobian_norm.expand(2), rtol=1e-9)
    assert (bound.bound(torch.ones(2).double()) <= residual.jacobian_norm * 1.0001).all()


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


@pytest.mark.parametrize("name", [*RESIDUALS, "convolution", "bounded convolution"])
@pytest.mark.parametrize(("scale", "tokens"), [(0.1, 5), (1.0, 17), (10.0, 2)])
def test_float32_strays_no_further_than_the_error_analysis(name, scale, tokens) -> None:
    alone = {
        "convolution": lambda d: TokenConvolution(d, (3, 5)),
        "bounded convolution": lambda d: BoundedTokenConvolution(d, (3, 5), norm=2.0),
    }
    exact = built((RESIDUALS | alone)[name](8), 1)
    single = copy.deepcopy(exact).float()
    exact = copy.deepcopy(single).double()
    x = (scale * draw(200, tokens, 8)).float()
    moved = x + 0.3 * scale * draw(200, tokens, 8, seed=1).float()
    delta = (moved.double() - x.double()).flatten(1).norm(dim=1)
    bound = exact_layer_bound(exact, x.double())
    for at, budget in ((x, torch.zeros_like(delta)), (moved, delta)):
        gap = (single(at).double() - exact(at.double())).flatten(1).norm(dim=1)
        assert (gap <= bound.rounding(budget)).all()
        assert (bound.rounding(budget) < 1e-4 * (1 + scale) * tokens).all()
        assert gap.max() > 1e-3 * bound.rounding(budget).min()


def network(seed: int, kernels: tuple[int, ...], norm: float) -> nn.Sequential:
    torch.manual_seed(seed)
    return (
        nn.Sequential(
            Resize(8),
            Normalise(0.5, 1.0),
            Patchify(2),
            OrthogonalLinear(4, 8),
            Positions(16, 8),
            Residual(BoundedTokenConvolution(8, kernels, norm=norm)),
            SLLBlock(8, 12),
            Residual(nn.Sequential(BoundedTokenConvolution(8, (3,), norm=norm), BoundedLinear(8, 8))),
            TokenConvolution(8, (3, 1)),
            nn.GELU(),
            MeanPool(),
            NormalisedHead(8, 4),
        )
        .eval()
        .requires_grad_(False)
    )


@pytest.mark.parametrize(
    ("seed", "kernels", "norm"), few([(1, (3, 5), 2.0)], [(0, (3,), 0.25), (2, (7, 1, 3, 3), 10.0)])
)
def test_no_attack_breaks_a_network_inside_its_certified_radius(seed, kernels, norm) -> None:
    model = network(seed, kernels, norm)
    images = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    labels = model(images).argmax(1)
    model[-1].bias.data -= 0.5 * (model(images).mean(0) - model(images).mean())
    labels = model(images).argmax(1)
    radii = certify(model, images, labels)
    assert (radii > 0).all()
    assert (radii >= lipschitz.certify(model, images, labels) * (1 - 1e-3)).all()
    found, allowed = float32_gap(model, images, labels)
    assert 0 < found <= allowed < 1e-2
    balls = Balls(model, images, labels, radii, "network")
    balls.descend(torch.arange(4), seed, 60)
    for image in range(4):
        balls.pgd(image, restarts=4, seed=seed, steps=15)


@pytest.mark.slow
def test_the_audit_finds_nothing_and_a_gain_a_hundredth_too_small_is_caught(monkeypatch) -> None:
    model = network(3, (3, 5), 1.0)
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    effort = Effort(radii=(0.1,), starts=3, steps=6)
    assert audit_layers(model, images, [0, 1], "row", effort=effort).worst > 0.999
    honest = token_convolution.token_convolution_norm_upper
    monkeypatch.setattr(token_convolution, "token_convolution_norm_upper", lambda *a: 0.99 * honest(*a))
    with pytest.raises(BenchmarkError, match=r"layer 5 \(Residual\) exceeds its gain"):
        audit_layers(model, images, [0, 1], "row", effort=effort)


@pytest.mark.parametrize("layer", [TokenConvolution(6, (1, 5)), BoundedTokenConvolution(6, (3,), norm=0.5)])
def test_plain_operations_are_the_layer(layer) -> None:
    for whole in (layer, nn.Sequential(Residual(nn.Sequential(layer)))):
        whole, x = built(whole), draw(3, 4, 6)
        written = plain(whole)
        assert torch.allclose(written(x), whole(x), rtol=1e-12, atol=1e-12)
        assert not any(isinstance(part, type(layer)) for part in written.modules())


def test_resize_in_plain_operations_is_the_layer_and_its_norm_the_factor() -> None:
    layer, x = Resize(9), draw(2, 2, 3, 3)
    assert torch.equal(plain(layer)(x), layer(x))
    bound = exact_layer_bound(layer, x)
    assert bound.jacobian_norm == pytest.approx(norm_of(layer, x), rel=1e-12) == 3
    assert not bound.rounding(torch.ones(2).double()).any()


class Doubled(SliceConvolution):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def with_another_slice() -> nn.Module:
    layer = TokenConvolution(4, (3, 3))
    layer.slices[1] = Doubled(2, 3)
    return layer


@pytest.mark.parametrize(
    ("layer", "shape", "reason"),
    [
        (TokenConvolution(4, (3,)), (4,), "needs 3 axes"),
        (TokenConvolution(4, (3,)), (5, 6), "width 4 does not fit tokens of 6"),
        (with_another_slice(), (5, 4), "Doubled as a slice"),
        (Resize(7), (1, 4, 4), "4x4 images cannot be copied to 7x7"),
        (Resize(8), (4, 4), "needs 4 axes"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(layer, shape, reason) -> None:
    with pytest.raises(BenchmarkError, match=reason):
        exact_layer_bound(layer.double(), draw(2, *shape))


def test_a_kernel_that_is_not_finite_has_no_finite_norm() -> None:
    assert token_convolution_norm_upper(torch.full((2, 2, 3), float("nan")), 4) == float("inf")
