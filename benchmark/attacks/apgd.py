"""Auto-PGD on the cross-entropy (Croce and Hein 2020), 100 steps from each of several random starts, by the fast engine.

Debenedetti et al. 2022 evaluate their ablations with five restarts of it.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.attacks.engine.apgd import untargeted
from benchmark.attacks.engine.slots import Search
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel

per_image = True


def attack(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel, *,
    seed: int, restarts: int = 1, indices: list[int] | None = None, slots: int = 128,
) -> torch.Tensor:  # fmt: skip
    """Run APGD from `restarts` random points on images that are classified correctly; other arguments as in autoattack.py.

    Raises:
        BenchmarkError: fewer than one restart, or an input gradient that is not finite.
    """
    if restarts < 1:
        raise BenchmarkError(f"apgd with {restarts} restarts does nothing; give restarts from 1 on")
    search = Search(model, images, labels, indices or [*range(len(images))], threat.norm, threat.eps, seed, slots)
    untargeted(search, restarts)
    return search.adversarial
