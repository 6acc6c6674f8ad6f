"""The base of objectives that descend the cross-entropy of the worst logits on a ball: BCP and Local-Lip.

loss = kappa CE(f(x), y) + (1 - kappa) CE(worst, y), worst_j = max over the region at the head of f_j - f_y. kappa falls from
1 to its final value while the radius rises (`eps_factor`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.ball_and_box import KNOWN, Region, RestrictedNorm, ball, propagate
from benchmark.training.gloro import Robust
from benchmark.training.layer_norms import Head, LayerNorms, sequence
from benchmark.training.objective import share, whole_labels

HALVINGS = 30  # of the interval that holds the split
TOGETHER = 100  # images whose worst logits are scored at a time


class WorstLogits(Robust):
    """An objective with the weight `kappa` of the clean cross-entropy at the full radius; the papers end at 0."""

    def __init__(self, radius: float, kappa: float, power_steps: int) -> None:
        super().__init__(radius, power_steps, f"the bounds of {self.name}")
        self.kappa = kappa

    def norm(self, layers: Sequence[nn.Module], norms: LayerNorms) -> RestrictedNorm:
        """Return the norms to learn from."""
        raise NotImplementedError

    def score_norm(self, layers: Sequence[nn.Module], norms: LayerNorms) -> RestrictedNorm:
        """Return the norms to score with."""
        raise NotImplementedError

    def attach(self, model: nn.Module, images: Tensor) -> LayerNorms:
        for layer in sequence(model, self.name)[0]:
            if type(layer) not in KNOWN:
                known, unknown = ", ".join(kind.__name__ for kind in KNOWN), type(layer).__name__
                raise BenchmarkError(f"the {self.name} objective knows {known}; it has no bounds for {unknown}")
        return super().attach(model, images)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, eps_factor: float) -> Tensor:
        whole_labels(labels, self.name)
        natural = nn.functional.cross_entropy(model(images).float(), labels)
        if eps_factor <= 0:
            return natural
        region = propagate(self.layers, ball(images, eps_factor * self.radius), self.norm(self.layers, self.norms))
        worst = nn.functional.cross_entropy(worst_logits(self.head, region, labels), labels)
        robust = eps_factor * (1 - self.kappa)
        return (1 - robust) * natural + robust * worst

    @torch.no_grad()
    def score(self, model: nn.Module, images: Tensor, labels: Tensor) -> float:
        layers, head = sequence(model, self.name)
        norm = self.score_norm(layers, LayerNorms(layers, images[:1], self.power_steps))

        def robust(x: Tensor, y: Tensor) -> Tensor:
            worst = worst_logits(head, propagate(layers, ball(x, self.radius), norm), y)
            return (worst.scatter(1, y[:, None], -torch.inf) < 0).all(1)

        return share(robust, images, labels, TOGETHER)

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        """Keep the thresholds of clipped ReLUs at 0 or above, where they have a gradient."""
        for layer in model.modules():
            if isinstance(layer, ClippedReLU):
                layer.theta.clamp_(min=0)


def worst_logits(head: Head, region: Region, labels: Tensor) -> Tensor:
    """Return an upper bound of f_j - f_y over the region: (n, classes), 0 for the label."""
    weight = head.weight.float()
    bias = 0.0 if head.bias is None else head.bias.float()
    logits = region.z @ weight.mT + bias
    rows = weight[None] - weight[labels][:, None]
    return logits - logits.gather(1, labels[:, None]) + largest_product(rows, region)


def largest_product(w: Tensor, region: Region) -> Tensor:
    """Return an upper bound of <w, D> over the region's moves D, the least that splits of w give but for the search.

    For every a, <w, D> = <a, D> + <w - a, D>. Let r_i be how far D_i can move in the direction of w_i: `above` for w_i > 0,
    else `below`. If w - a has the signs of w, the sum is at most rho |a| + sum_i r_i |w_i - a_i|. The best a is
    sign(w_i) min(|w_i|, t r_i) with |a| = rho t: then D = a / t lies in the region and attains the bound. |a| / t falls as t
    grows, and at t = |w| / rho it is at most rho, so halving finds t; if the box lies within the ball, t is 0. Every t
    gives a bound. The gradient holds t fixed: at the best t its share of the gradient is 0.

    Args:
        w: (n, many, width).
        region: of (n, width).

    Returns:
        (n, many).
    """
    rho, size = region.rho[:, None], w.abs()
    reach = torch.where(w > 0, region.above[:, None], region.below[:, None])
    with torch.no_grad():
        low = torch.zeros_like(size[..., 0])
        high = torch.linalg.vector_norm(size, dim=2) / rho.clamp(min=1e-30)
        for _ in range(HALVINGS):
            t = (low + high) / 2
            longer = torch.linalg.vector_norm(torch.minimum(size, t[..., None] * reach), dim=2) > rho * t
            low, high = torch.where(longer, t, low), torch.where(longer, high, t)
    a = torch.minimum(size, high[..., None] * reach)
    return rho * torch.linalg.vector_norm(a, dim=2) + (reach * (size - a)).sum(2)
