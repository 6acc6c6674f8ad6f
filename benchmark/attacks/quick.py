"""The first two parts of AutoAttack (Croce and Hein 2020), APGD-CE and APGD-T, for development and studies over seeds.

The robust accuracy under them is at least AutoAttack's, and most often nearly the same. It is not AutoAttack and must not be
called so: no track may publish it as a number of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmark.attacks import autoattack
from benchmark.specs.threat import ThreatModel

components = ("apgd-ce", "apgd-t")
engines = autoattack.engines
per_image = True


def attack(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel, *,
    seed: int, component: str, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Run AutoAttack's component of this name, with `options` of benchmark/attacks/autoattack.py.

    Raises:
        ValueError: a component of AutoAttack that is not in `components`.
    """
    if component not in components:
        raise ValueError(f"no component {component!r}; known: {', '.join(components)}")
    return autoattack.attack(model, images, labels, threat, seed=seed, component=component, **options)
