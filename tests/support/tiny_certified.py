"""Networks that can be certified, a small audit, and attempts to break bounds and certificates."""

from __future__ import annotations

import math

import torch
from torch import nn

from benchmark.attacks import pgd
from benchmark.certificates.bounds.layer_bound import PerturbationSet
from benchmark.certificates.bounds.network_bound import NetworkBound
from benchmark.evaluation.audit_layers import Effort
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions
from benchmark.specs.threat import ThreatModel

GREY = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
SMALL = Effort(radii=(0.1,), starts=3, steps=3)


def network(
    seed: int, *, width: int = 8, qk_norm: float = 2.0, vo_norm: float = 0.5, hidden: int = 16,
    radii: tuple[float, ...] = (1.0, 0.5), classes: int = 4,
) -> nn.Sequential:  # fmt: skip
    """Return a network of one residual attention block for each of the radii of its projections."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [Normalise(), Patchify(2), BoundedLinear(4, width), Positions(4, width)]
    for radius in radii:
        layers += [LayerProject(radius), ResidualAttention(width, 2, qk_norm=qk_norm, vo_norm=vo_norm)]
        layers.append(SLLBlock(width, hidden))
    model = nn.Sequential(*layers, MeanPool(), NormalisedHead(width, classes))
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return model.eval().requires_grad_(False)


def one_block() -> nn.Sequential:
    """Return the network that audits are tried on."""
    return network(0, width=6, vo_norm=1.0, hidden=8, radii=(1.0,), classes=5)


def affine(*blocks: nn.Module) -> nn.Sequential:
    """Return a network of five classes that is affine but for its blocks, which map tokens of width 6."""
    torch.manual_seed(0)
    layers = [Normalise(), Patchify(2), BoundedLinear(4, 6), *blocks, MeanPool(), NormalisedHead(6, 5)]
    return nn.Sequential(*layers).eval().requires_grad_(False)


def random_perturbations(x: torch.Tensor, radius: float, rest: float, seed: int) -> tuple[PerturbationSet, torch.Tensor]:
    """A reach around x (n, *shape) with 6 random directions, and 200 input changes inside it: (200, n, *shape)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    n, ones = len(x), torch.ones(len(x), dtype=torch.float64)
    columns = draw(6, *x.shape) / math.sqrt(x[0].numel())
    xi = draw(200, n, 6)
    xi *= radius / xi.norm(dim=2, keepdim=True)
    other = draw(200, *x.shape)
    other *= rest / other.flatten(2).norm(dim=2).reshape(200, n, *[1] * (x.ndim - 1))
    delta = torch.linalg.matrix_norm(columns.flatten(2).permute(1, 2, 0), ord=2) * radius + rest
    moves = torch.einsum("snp,pn...->sn...", xi, columns) + other
    return PerturbationSet(columns, radius * ones, rest * ones, delta), moves


def assert_no_margin_falls_further(
    model: nn.Module, bounded: NetworkBound, images: torch.Tensor, labels: torch.Tensor, radius: float
) -> None:
    """Check the bounds of margins, in order of tightness, against random moves and moves along each rival's gradient.

    Args:
        model: float64, as are the images (n, c, h, w).
        radius: l2, of every move.
    """
    count, radii = 100, torch.full((len(images),), radius, dtype=torch.float64)
    both, composed, quick = bounded.margin_drop(radii), bounded.composed(radii), bounded.composed(radii, quick=True)
    assert (both <= composed * (1 + 1e-9)).all()
    assert (composed <= quick * (1 + 1e-9)).all()
    moves = torch.randn(count, *images.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    down = -bounded.gradients[0].transpose(0, 1)
    moves[: len(down)] = down
    moves *= radius / moves.flatten(2).norm(dim=2).clamp(min=1e-300)[..., None, None, None]
    logits = model((images + moves).flatten(0, 1)).unflatten(0, (count, len(images)))
    margins = logits.gather(2, labels.expand(count, len(labels))[..., None]) - logits
    assert (bounded.margins - margins <= both * (1 + 1e-9) + 1e-12).all()


def assert_unbroken(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, radii: torch.Tensor) -> None:
    """Check that PGD in each image's certified l2 ball leaves its label; images with radius 0 are not attacked."""
    for radius, image, label in zip(radii.tolist(), images, labels, strict=True):
        if radius > 0:
            threat = ThreatModel(norm="L2", eps=radius * (1 - 1e-6))
            start, target = image.repeat(4, 1, 1, 1), label.repeat(4)
            moved = pgd.attack(model, start, target, threat, seed=0, steps=10, step_size=radius / 4)
            assert (model(moved).argmax(1) == label).all()
