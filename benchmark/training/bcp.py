"""Box-constrained propagation (Lee, Lee and Park 2020, BCP): worst logits over the intersection of a ball and a box.

ball_and_box.py has the bounds, worst_logits.py the loss. Each layer's norm is that of its whole weight. Unlike the authors'
code, the bound of a unit leaves out inputs that cannot move, and the worst logits come from a split that is always a bound;
theirs iterates a primal and sets NaN to 0.

The score uses bounds of the norms, so but for rounding it counts robust images only.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from benchmark.training.ball_and_box import RestrictedNorm
from benchmark.training.layer_norms import LayerNorms
from benchmark.training.objective import Count, Positive, Share, TrainingAttack
from benchmark.training.worst_logits import WorstLogits


class BCP(WorstLogits):
    name = "bcp"

    def __init__(
        self, attack: TrainingAttack | None, *, radius: Positive, kappa: Share = 0.0, power_steps: Count = 5
    ) -> None:
        super().__init__(radius, kappa, power_steps)

    def norm(self, layers: Sequence[nn.Module], norms: LayerNorms) -> RestrictedNorm:
        whole = norms()
        return lambda index, columns, rows: whole[index].expand(len(columns))

    def score_norm(self, layers: Sequence[nn.Module], norms: LayerNorms) -> RestrictedNorm:
        whole = norms.upper()
        return lambda index, columns, rows: whole[index].to(columns.dtype).expand(len(columns))


objective = BCP
