"""Training by local Lipschitz bounds (Huang, Zhang, Shi, Kolter and Anandkumar 2021, Local-Lip): worst logits on a ball,
with the norm of each layer's weight without the units that are constant on the ball.

ball_and_box.py has the bounds, worst_logits.py the loss. As in the authors' code the worst logits come from ball and box
together. Their code keeps vectors of the power iteration for each training image. Here each image starts from the layer's
kept vector and takes `local_steps` of its own, so the state does not grow with the data. Units of clipped ReLUs can be
constant at the top as well as at the bottom; the thresholds are kept at 0 or above after each step.

The score takes more steps and raises their norms by 0.1%, up to the layer's own bound. That is no proof.

CertViT (Gupta and Verma 2023, table 8) trains with eps 1.58 for 1.58 and with 0.1551 or 0.16 for 0.141.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmark.training.ball_and_box import RestrictedNorm, restricted_norm
from benchmark.training.layer_norms import LayerNorms
from benchmark.training.objective import Count, Positive, Share, TrainingAttack
from benchmark.training.worst_logits import WorstLogits

SCORE_STEPS = 20  # for each image
START_STEPS = 100  # for each layer, before them
RAISED = 1 + 1e-3


class LocalLip(WorstLogits):
    name = "local_lip"

    def __init__(
        self,
        attack: TrainingAttack | None,
        *,
        radius: Positive,
        kappa: Share = 0.0,
        power_steps: Count = 5,
        local_steps: Count = 2,
    ) -> None:
        """
        Args:
            local_steps: power steps for each image, from the layer's kept vector.
        """
        super().__init__(radius, kappa, power_steps)
        self.local_steps = local_steps

    def norm(self, layers: Sequence[nn.Module], norms: LayerNorms) -> RestrictedNorm:
        return self._restricted(layers, norms, self.local_steps)

    def score_norm(self, layers: Sequence[nn.Module], norms: LayerNorms) -> RestrictedNorm:
        whole = [bound.float() for bound in norms.upper()]
        norms.advance(START_STEPS)
        restricted = self._restricted(layers, norms, SCORE_STEPS)
        return lambda index, columns, rows: torch.minimum(RAISED * restricted(index, columns, rows), whole[index])

    def _restricted(self, layers: Sequence[nn.Module], norms: LayerNorms, steps: int) -> RestrictedNorm:
        def norm(index: int, columns: Tensor, rows: Tensor) -> Tensor:
            layer = layers[index]
            assert isinstance(layer, nn.Linear | nn.Conv2d)  # `propagate` asks for no others
            return restricted_norm(layer, columns, rows, norms.vector(index), steps)

        return norm


objective = LocalLip
