"""Box-constrained propagation (Lee, Lee and Park 2020, BCP): worst logits over what a ball and a box leave together.

ball_and_box.py has the bounds, worst_logits.py the loss. Each layer's norm is that of all of its weight; here the
bound of a single unit leaves out units before it that cannot move, and the worst logits come from a split that is a
bound whatever the search for it finds, where the authors' code iterates a primal and sets what is not a number to 0.

The score takes bounds of the norms, so that but for rounding it counts robust images alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from benchmark.training.ball_and_box import RestrictedNorm
from benchmark.training.layer_norms import LayerNorms
from benchmark.training.objective import TrainingAttack
from benchmark.training.parameters import Count, Positive, Share
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
