"""Global Lipschitz certificates: constants compared with references and ascent, margins, refusals; unsound formulas."""

from __future__ import annotations

import math

import pytest
import torch
from ball_search import ascend, jacobian_norm
from pydantic import ValidationError
from tiny_layers import Doubled, draw, vit
from torch import nn

from benchmark.certificates import lipschitz, unsound_paper_formula
from benchmark.certificates.lipschitz import certify, lipschitz_constant
from benchmark.certificates.unsound_paper_formula import Unsound, certvit_constant, certvit_radius, printed_attention
from benchmark.evaluation.certified_radii import certificate_module, certified_radii
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.layers.kinds import GELU_SLOPE
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify
from benchmark.records.accuracy import Certificate
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import CertificateSpec

CURVED = [
    (nn.ReLU(), (3, 4), 1.0),
    (nn.GELU(), (3, 4), 1.0),
    (nn.GELU("tanh"), (3, 4), 1.0),
    (nn.LayerNorm(6, eps=1e-2), (3, 6), 1e-3),
    (nn.LayerNorm(6, eps=1e-5), (6,), 1e-4),
    (nn.LayerNorm(6, eps=1e-2, elementwise_affine=False), (2, 6), 1e-3),
    (LayerProject(0.5), (3, 4), 0.3),
    (SLLBlock(4, 6), (3, 4), 1.0),
    (Residual(nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))), (3, 4), 1.0),
    (Residual(L2Attention(4, 2)), (3, 4), 1.0),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("layer", "shape", "size"), CURVED, ids=lambda v: str(v).split("(")[0])
def test_ascent_does_not_exceed_a_constant(layer, shape, size) -> None:
    layer = layer.double().requires_grad_(False)
    if isinstance(layer, nn.LayerNorm) and layer.weight is not None:
        layer.weight.copy_(draw(6))
    constant = lipschitz_constant(layer, draw(1, *shape))
    for seed in (1, 2):
        best = ascend(lambda y: layer(y[None])[0], size * draw(*shape, seed=seed), 30, 0.1 * size)
        assert best <= constant
    assert isinstance(layer, Residual) or best >= 0.5 * constant


def test_gelu_slopes_are_the_largest_rounded_up() -> None:
    """The exact one is known; between the points of a fine grid a slope changes by at most step^2 / 8 times |f'''| < 3."""
    exact = 0.5 * (1 + math.erf(1)) + math.sqrt(2) * math.exp(-1) / math.sqrt(2 * math.pi)
    assert exact <= GELU_SLOPE["none"] <= exact + 1e-7
    x = torch.arange(-8, 8, 1e-4, dtype=torch.float64, requires_grad=True)
    for approximate, bound in GELU_SLOPE.items():
        (slope,) = torch.autograd.grad(nn.functional.gelu(x, approximate=approximate).sum(), x)
        assert slope.abs().max() + 1e-8 * 3 / 8 <= bound <= slope.abs().max() + 2e-7
    assert exact > unsound_paper_formula.GELU_AS_PRINTED


def test_without_a_linear_head_the_margin_pays_root_two() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.ReLU()).requires_grad_(False)
    images = torch.rand(20, 1, 3, 3)
    logits = model(images).double()
    margin = logits.topk(2).values.diff(dim=1).abs()[:, 0]
    expected = margin / (math.sqrt(2) * torch.linalg.matrix_norm(model[1].weight.double(), ord=2))
    radii = certify(model, images, logits.argmax(1))
    assert (radii <= expected).all()
    assert (radii >= expected * (1 - 1e-5) - 1e-5).all()


def ending(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, MeanPool(), NormalisedHead(4, 3)).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (ending(Patchify(2), ResidualAttention(4, 2, qk_norm=1.0, vo_norm=0.5)), "dot-product attention.*no global"),
        (ending(Patchify(2), ReleasedL2Attention(4, 2)), "not Lipschitz"),
        (ending(Patchify(2), Doubled(4, 4)), "layer Doubled"),
        (ending(Patchify(2), Residual(nn.Dropout())), "layer Dropout"),
        (ending(Patchify(2), nn.LayerNorm(4, eps=0.0)), "eps"),
        (nn.Sequential(nn.Flatten(), BoundedLinear(16, 3, norm=1e38)), "BoundedLinear with norm 1e"),
        (ending(nn.Conv2d(1, 1, 3, dilation=2, padding=2), Patchify(2)), "dilation"),
        (ending(nn.Conv2d(1, 1, 2, padding=1, padding_mode="circular"), Patchify(2)), "circular"),
        (ending(nn.Conv2d(1, 1, 9, padding=4, padding_mode="circular"), Patchify(2)), "kernel larger than its 4x4 images"),
        (ending(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), Patchify(2)), "padding mode"),
        (nn.Sequential(Patchify(2), nn.Linear(4, 4)), "one row of logits"),
        (nn.ModuleList([nn.Identity()]), "plain nn.Sequential"),
    ],
)
def test_networks_without_a_global_constant_are_refused_with_the_reason(model, reason) -> None:
    for count in (3, 0):
        with pytest.raises(BenchmarkError, match=reason):
            certify(model, torch.rand(count, 1, 4, 4), torch.zeros(count, dtype=torch.long))


def test_the_papers_expression_lies_below_the_truth() -> None:
    """LayerNorm as 1 and the squared power: CertViT's network constant is exceeded by one Jacobian."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.LayerNorm(4), L2Attention(4, 1))
    model = nn.Sequential(nn.Linear(4, 4), Residual(body)).double().requires_grad_(False)
    body[1].query.weight.copy_(3 * torch.eye(4))
    x = draw(1, 3, 4) * 1e-2
    norm = ascend(lambda y: model(y[None])[0], x[0], 20, 1e-3)
    assert certvit_constant(model, x).value < norm <= lipschitz_constant(model, x)


def test_the_papers_expression_ignores_the_position_bias() -> None:
    """A window of Swin counts as attention on its tokens; with a bias of 50 one Jacobian exceeds the printed constant."""
    layer = L2WindowAttention(1, 1, side=2, window=2).double().requires_grad_(False)
    for linear in (layer.content.query, layer.content.value, layer.content.output):
        linear.weight.fill_(1.0)
    x = torch.tensor([0.0, 7.075, 0.0, 7.075]).double()[None, :, None]
    printed, released = (float(certvit_constant(layer, x, released=released).value) for released in (False, True))
    assert printed == printed_attention(layer.content, 4)
    layer.bias_table.copy_(torch.tensor([-99, -99, -99, 50, 0, 50, -99, -99, -99])[:, None])
    assert printed == certvit_constant(layer, x).value
    assert released == certvit_constant(layer, x, released=True).value
    norm = jacobian_norm(lambda y: layer(y[None])[0], x[0]).item()
    assert max(printed, released) < norm <= lipschitz_constant(layer, x)


def test_the_released_norm_of_an_orthogonal_matrix_is_far_below_one() -> None:
    orthogonal = nn.Linear(128, 128, bias=False).double().requires_grad_(False)
    nn.init.orthogonal_(orthogonal.weight, generator=torch.Generator().manual_seed(0))
    assert certvit_constant(orthogonal, draw(1, 128), released=True).value < 0.7
    assert certvit_constant(orthogonal, draw(1, 128)).value >= 1


def test_no_stage_and_no_record_takes_an_unsound_formula(monkeypatch) -> None:
    model, images = vit(0, LayerProject(1.0)), torch.rand(8, 1, 4, 4)
    labels = model(images).argmax(1)
    for released in (False, True):
        radii = certvit_radius(model, images, labels, released=released)
        assert type(radii) is Unsound
        assert not isinstance(radii, torch.Tensor)
        assert radii.value.shape == (8,)
        assert (radii.value > 0).all()
    with pytest.raises(BenchmarkError, match="Dropout"):
        certvit_constant(nn.Sequential(nn.Dropout()), images)
    with pytest.raises(ValidationError, match="no bounds"):
        CertificateSpec(name="unsound_paper_formula")
    with pytest.raises(ValidationError, match="no bounds"):
        Certificate.model_validate({"name": "unsound_paper_formula"})
    for name in ("unsound_paper_formula", "smoothing"):
        with pytest.raises(BenchmarkError, match=r"certifies no models: it defines no certify\(\)"):
            certificate_module(name)
    assert certificate_module("lipschitz") is lipschitz
    monkeypatch.setattr(lipschitz, "certify", lambda model, x, y: certvit_radius(model, x, y))
    with pytest.raises(BenchmarkError, match="returned a Unsound"):
        certified_radii(model, images, labels, CertificateSpec(name="lipschitz"), 2)
