"""The margin objective with the margin measured in certified radius, for networks of 1-Lipschitz layers and `GridAttention`.

L(x) = e_K / e_0, where e_0 = radius and e_(k+1) bounds how far layer k moves around x when its input moves by e_k: e_k for
1-Lipschitz layers, `GridSensitivity.bound` for attention. Logits / L(x) are distances over which the margin could be lost.
The loss of margin.py on them lets attention depend on its input as far as that pays in certified radius. This is GloRo's
idea (Leino, Wang and Fredrikson 2021) with a local constant and the margin loss. The score is the share of validation images
whose margins over |w_y - w_j| and L(x) exceed the radius.

The radius does not warm up. The bound is the certificate's, in float32 and with column sums for the norms of weights: it
selects, and proves nothing. Where it is infinite (contents far above 1 with places that are not sharp), training fails:
start lower.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.layers.attention_grid import GridAttention, GridSensitivity
from benchmark.layers.competitive_attention import CompetitiveAttention, ConeAttention, MaxMinTokens, fit_budgets
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MergeTokens, Patchify, Positions, TakeToken
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.margin import margin_loss
from benchmark.training.objective import Objective, Positive, TrainingAttack, share, whole_labels

LIPSCHITZ = (
    Absolute, CompetitiveAttention, ConeAttention, LayerProject, MaxMinTokens, MergeTokens, Normalise, OrthogonalLinear,
    Patchify, Positions, ShiftTokens, SLLBlock, TakeToken, nn.Flatten, nn.Identity,
)  # 1-Lipschitz, Normalise with std 1  # fmt: skip
TOGETHER = 250  # images scored at a time


class LocalMargin(Objective):
    looks_at = 256  # images, by which budgets of `CompetitiveAttention` start (fit_budgets)

    def __init__(self, attack: TrainingAttack | None, *, radius: Positive, margin: float, temperature: float) -> None:
        self.radius, self.margin, self.temperature = radius, margin, temperature
        self.selected_by = f"validation accuracy certified at L2 {radius:g} by a local Lipschitz bound, in float32"

    def attach(self, model: nn.Module, images: Tensor) -> None:
        if type(model) is not nn.Sequential or not len(model) or type(model[-1]) is not NormalisedHead:
            raise BenchmarkError("local_margin needs a plain nn.Sequential that ends in a NormalisedHead")
        for layer in model[:-1]:
            scaled = isinstance(layer, Normalise) and layer.std != 1
            if type(layer) not in (*LIPSCHITZ, GridAttention) or scaled:
                raise BenchmarkError(f"local_margin knows no Lipschitz constant of the layer {type(layer).__name__}")
        self.attention = [layer for layer in model if isinstance(layer, GridAttention)]
        fit_budgets(model, images)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, eps_factor: float) -> Tensor:
        whole_labels(labels, "local_margin")
        logits, moved = model(images), images.new_full((len(images),), self.radius)
        for layer in self.attention:
            assert layer.kept is not None
            moved = GridSensitivity(layer.kept.float(), layer.content.float()).bound(moved)
        return margin_loss(logits / (moved / self.radius)[:, None], labels, self.margin, self.temperature)

    @torch.no_grad()
    def score(self, model: nn.Module, images: Tensor, labels: Tensor) -> float:
        model.eval()
        assert isinstance(model, nn.Sequential)
        assert isinstance(model[-1], NormalisedHead)
        rows = model[-1].weight

        def certified(x: Tensor, y: Tensor) -> Tensor:
            logits, moved = bounded_logits(model, x, self.radius)
            apart = torch.linalg.vector_norm(rows[y][:, None] - rows[None], dim=-1)  # 0 for the label itself
            lead = logits.gather(1, y[:, None]) - logits - moved[:, None] * apart
            return (lead.scatter(1, y[:, None], torch.inf) > 0).all(1)

        return share(certified, images, labels, TOGETHER)


def bounded_logits(model: nn.Sequential, images: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Return logits (n, classes) and e_K (n,) of a model that `attach` accepts."""
    values, moved = images, images.new_full((len(images),), radius)
    for layer in model:
        if isinstance(layer, GridAttention):
            mixing = layer.mixing(values)
            moved = GridSensitivity(mixing, layer.content).bound(moved)
            values = layer.projected(mixing.mixed)
        else:
            values = layer(values)
    return values, moved


objective = LocalMargin
