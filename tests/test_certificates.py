"""Certificates: one-sided tests against exact references and against attempts to break them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmark.certificates.local import certify, float32_gap, local_bound, projection_bound, trace
from benchmark.certificates.lofast import attention_sensitivity
from benchmark.errors import BenchmarkError
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock, almost_orthogonal
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions


def network(seed: int, heads: int = 2, width: int = 8, qk_norm: float = 2.0, scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        Normalise(),
        Patchify(2),
        BoundedLinear(4, width),
        Positions(4, width),
        LayerProject(1.0),
        ResidualAttention(width, heads, qk_norm=qk_norm, vo_norm=0.5),
        SLLBlock(width, 2 * width),
        LayerProject(0.5),
        ResidualAttention(width, heads, qk_norm=qk_norm, vo_norm=0.5),
        SLLBlock(width, 2 * width),
        MeanPool(),
        NormalisedHead(width, 4),
    )
    for parameter in model.parameters():
        parameter.data += scale * 0.3 * torch.randn(parameter.shape)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("seed", range(5))
def test_bounded_layers_keep_their_norm(seed) -> None:
    torch.manual_seed(seed)
    raw = torch.randn(9, 5, dtype=torch.float64) * 10 ** torch.randint(-3, 3, (1,)).item()
    raw[:, 2] = 0
    assert torch.linalg.matrix_norm(almost_orthogonal(raw), ord=2) <= 1 + 1e-12
    block = SLLBlock(6, 10).double()
    for parameter in block.parameters():
        parameter.data = torch.randn_like(parameter) * 2
    x, y = torch.randn(2, 2000, 6, dtype=torch.float64)
    ratio = (block(x) - block(y)).norm(dim=1) / (x - y).norm(dim=1)
    assert ratio.max() <= 1 + 1e-12


def attention_case(seed: int, norm: float, spread: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    heads, n, d = 2, 4, 6

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = [draw(heads, d, 3) * norm for _ in range(2)] + [draw(heads, d, 3) * 0.5, draw(heads, 3, d) * 0.5]
    return draw(3, n, d) * spread, weights


def attend(x: torch.Tensor, w_q, w_k, w_v, w_o, residual: bool = True) -> torch.Tensor:
    scores = torch.einsum("bic,hcd,hed,bje->bhij", x, w_q, w_k, x) / math.sqrt(w_q.shape[2])
    mixed = torch.einsum("bhij,bjc,hcd,hde->bie", scores.softmax(-1), x, w_v, w_o)
    return x + mixed if residual else mixed


def steepest(x: torch.Tensor, weights, radius: float, residual: bool, steps: int = 60) -> torch.Tensor:
    """Largest output change found by projected gradient ascent: a lower bound of the sensitivity."""
    clean, best = attend(x, *weights, residual), torch.zeros(len(x), dtype=x.dtype)
    for seed in range(3):
        move = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
        for _ in range(steps):
            move = (move / move.flatten(1).norm(dim=1)[:, None, None] * radius).requires_grad_()
            change = (attend(x + move, *weights, residual) - clean).flatten(1).norm(dim=1)
            best = torch.maximum(best, change.detach())
            (gradient,) = torch.autograd.grad(change.sum(), move)
            size = gradient.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-300)
            move = (move + 2 * radius * gradient / size).detach()
    return best


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("radius", [1e-3, 0.1, 1.0])
def test_attention_bound_is_above_every_perturbation_found(residual, norm, spread, radius) -> None:
    x, weights = attention_case(0, norm, spread)
    bound = attention_sensitivity(x, *weights, residual=residual).bound(torch.full((3,), radius, dtype=torch.float64))
    found = steepest(x, weights, radius, residual)
    assert (bound >= found * (1 - 1e-9)).all()


def test_attention_bound_is_tight_for_small_radii() -> None:
    """To first order the bound is the Jacobian's norm, which ascent reaches."""
    x, weights = attention_case(3, 1.0, 1.0)
    radius = 1e-5
    bound = attention_sensitivity(x, *weights).bound(torch.full((3,), radius, dtype=torch.float64))
    assert (bound <= 1.02 * steepest(x, weights, radius, True, steps=300)).all()


def test_attention_jacobian_is_the_dense_one() -> None:
    x, weights = attention_case(4, 1.0, 1.0)
    dense = torch.stack(
        [
            torch.autograd.functional.jacobian(lambda z: attend(z[None], *weights)[0], x[i]).reshape(24, 24)
            for i in range(3)
        ]
    )
    assert torch.allclose(
        attention_sensitivity(x, *weights).jacobian, torch.linalg.matrix_norm(dense, ord=2), rtol=1e-8
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 2.0), st.floats(1.0, 3.0))
def test_attention_bound_grows_with_the_radius_and_is_zero_at_zero(seed, radius, factor) -> None:
    x, weights = attention_case(seed, 1.0, 1.0)
    sensitivity = attention_sensitivity(x, *weights)
    small = sensitivity.bound(torch.full((3,), radius, dtype=torch.float64))
    large = sensitivity.bound(torch.full((3,), radius * factor, dtype=torch.float64))
    assert (small <= large).all()
    assert (sensitivity.bound(torch.zeros(3, dtype=torch.float64)) == 0).all()


def test_attention_layer_is_its_head_weights() -> None:
    torch.manual_seed(0)
    layer = ResidualAttention(8, 2, qk_norm=2.0, vo_norm=0.5).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    assert torch.allclose(layer(x), attend(x, *layer.head_weights()))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0.01, 8.0), min_size=1, max_size=4),
    st.floats(0.1, 3.0),
    st.floats(0.001, 10.0),
    st.integers(0, 10**6),
)
def test_projection_bound_is_above_random_moves(norms, ball, radius, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    r = torch.tensor([norms], dtype=torch.float64)
    x = torch.zeros(1, len(norms), 2, dtype=torch.float64)
    x[0, :, 0] = r
    project = LayerProject(ball)
    bound = projection_bound(r, ball, torch.tensor([radius], dtype=torch.float64))
    move = torch.randn(2000, len(norms), 2, generator=generator, dtype=torch.float64)
    move[::2, 1:] = 0  # half of them spend all on the first token
    move *= radius / move.flatten(1).norm(dim=1)[:, None, None]
    moved = (project(x + move) - project(x)).flatten(1).norm(dim=1)
    assert moved.max() <= bound * (1 + 1e-9)
    assert bound <= radius


@pytest.mark.parametrize(("r", "ball", "e", "ratio"), [(6, 1, 1, 0.1673), (1.5, 1, 0.5, 0.6764), (0.5, 1, 0.3, 1)])
def test_projection_bound_is_exact_for_one_token(r, ball, e, ratio) -> None:
    """Values from an exhaustive search over moves in the plane."""
    bound = projection_bound(torch.tensor([[r]]).double(), ball, torch.tensor([e]).double())
    assert float(bound) / e == pytest.approx(ratio, abs=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_no_layer_moves_more_than_its_bound(seed) -> None:
    model = network(seed).double()
    x = torch.rand(4, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed + 1)
    for layer in model[:-1]:
        bound = local_bound(layer, x)
        for radius in (1e-3, 0.1, 1.0):
            limit = bound(torch.full((4,), radius, dtype=torch.float64))
            move = torch.randn(50, *x.shape, generator=generator, dtype=torch.float64)
            move *= radius / move.flatten(2).norm(dim=2).reshape(50, 4, *[1] * (x.ndim - 1))
            moved = torch.stack([(layer(x + m) - layer(x)).flatten(1).norm(dim=1) for m in move]).amax(0)
            assert (moved <= limit * (1 + 1e-9)).all(), type(layer).__name__
        x = layer(x)


@pytest.mark.parametrize("seed", range(4))
def test_no_attack_breaks_an_image_inside_its_certified_radius(seed) -> None:
    from benchmark.attacks import pgd
    from benchmark.records import ThreatModel

    model = network(seed)
    images = torch.rand(24, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    labels = model(images).argmax(1)
    radii = certify(model, images, labels)
    assert (radii > 0).any()
    for radius, image, label in zip(radii, images, labels, strict=True):
        if radius > 0:
            threat = ThreatModel(norm="L2", eps=float(radius))
            start, target = image.repeat(8, 1, 1, 1), label.repeat(8)
            found = pgd.attack(model, start, target, threat, seed=seed, steps=20, step_size=float(radius) / 4)
            assert (model(found).argmax(1) == label).all()


def test_certificate_of_a_linear_network_is_margin_over_row_distance() -> None:
    """Patchify and pooling of one token are isometries, so the certificate is exact up to the float32 allowance."""
    torch.manual_seed(0)
    model = nn.Sequential(Patchify(3), MeanPool(), NormalisedHead(9, 4)).requires_grad_(False)
    images = torch.rand(20, 1, 3, 3)
    logits, weight = model(images).double(), model[-1].weight.double()
    labels = logits.argmax(1)
    margin = logits.gather(1, labels[:, None]) - logits
    exact = (
        (margin / (weight[labels][:, None] - weight[None]).norm(dim=-1)).scatter(1, labels[:, None], math.inf).amin(1)
    )
    radii = certify(model, images, labels)
    assert (radii <= exact).all()
    assert (radii >= exact - 2e-4 / (weight[:, None] - weight[None]).norm(dim=-1).fill_diagonal_(9).min()).all()


def test_wrong_and_tied_images_are_not_certified() -> None:
    model = nn.Sequential(Patchify(3), MeanPool(), NormalisedHead(9, 4)).requires_grad_(False)
    images = torch.rand(10, 1, 3, 3)
    labels = model(images).argmax(1)
    assert (certify(model, images, (labels + 1) % 4) == 0).all()
    model[-1].raw.data[:] = 1.0
    assert (certify(model, images, torch.zeros(10, dtype=torch.long)) == 0).all()


def test_a_layer_without_a_bound_is_refused_by_name() -> None:
    model = nn.Sequential(Patchify(2), nn.LayerNorm(4), MeanPool(), NormalisedHead(4, 3))
    with pytest.raises(BenchmarkError, match="LayerNorm"):
        trace(model, torch.rand(2, 1, 4, 4))
    with pytest.raises(BenchmarkError, match="NormalisedHead"):
        certify(nn.Sequential(nn.Flatten()), torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.long))


class Sum(MeanPool):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


class Detour(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)


def with_hook() -> nn.Sequential:
    model = network(0)
    model[2].register_forward_hook(lambda _module, _inputs, output: 5 * output)
    return model


def with_bias() -> nn.Sequential:
    model = network(0)
    model[5].query.bias = nn.Parameter(torch.ones(8))
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(*list(network(0))[:-2], Sum(), network(0)[-1]), "no bound is declared for the layer Sum"),
        (Detour(*network(0)), "plain nn.Sequential"),
        (with_hook(), "forward hook"),
        (with_bias(), "has a bias"),
        (nn.Sequential(Patchify(4), Positions(16, 16), MeanPool(), NormalisedHead(16, 4)), "positions .* do not fit"),
        (nn.Sequential(Patchify(2), NormalisedHead(4, 4)), "one vector an image"),
    ],
)
def test_what_could_hide_behind_a_declared_layer_is_refused(model, reason) -> None:
    with pytest.raises(BenchmarkError, match=reason):
        certify(model.eval(), torch.rand(3, 1, 4, 4), torch.zeros(3, dtype=torch.long))


def test_float32_that_strays_from_float64_is_refused() -> None:
    model = network(0)
    images = torch.rand(10, 1, 4, 4)
    labels = model(images).argmax(1)
    assert 0 < float32_gap(model, images, labels) < 1e-5
    model[-1].bias.data += torch.tensor([0.0, 1e5, 2e5, 3e5])
    with pytest.raises(BenchmarkError, match="margins differ"):
        float32_gap(model, images, labels)
