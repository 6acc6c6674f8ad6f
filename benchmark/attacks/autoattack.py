"""AutoAttack, standard version (Croce and Hein 2020): the authors' attack files, untouched, one component at a time.

The authors' loop runs each component on the images that those before it left standing, each batch with the same seed.
Running the components one by one on those images is therefore the same computation (a test compares the two), and lets
the harness keep what is done after each. The package seeds itself from the clock unless told otherwise; here `seed` is
required. The standard version's nine targets are all rivals of ten classes; with fewer classes, all rivals are targets.
"""

from __future__ import annotations

import pyautoattack
import torch
from torch import nn

from benchmark.errors import BenchmarkError
from benchmark.records import ThreatModel

components = ("apgd-ce", "apgd-t", "fab-t", "square")


def attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    threat: ThreatModel,
    *,
    seed: int,
    component: str,
) -> torch.Tensor:
    """What one component finds for these images, as one batch.

    Raises:
        BenchmarkError: fewer than four classes, for which AutoAttack's targeted loss is not defined.
    """
    attacker = pyautoattack.AutoAttack(
        model, norm=threat.norm, eps=threat.eps, seed=seed, version="standard", device=images.device
    )
    with torch.no_grad():
        classes = model(images[:1]).shape[1]
        if classes < 4:
            raise BenchmarkError(f"AutoAttack's targeted loss needs 4 classes or more; this model has {classes}")
        targets = min(attacker.apgd_targeted.n_target_classes, classes - 1)
        attacker.apgd_targeted.n_target_classes = attacker.fab.n_target_classes = targets
        return run_component(attacker, images, labels, component)


def run_component(
    attacker: pyautoattack.AutoAttack, images: torch.Tensor, labels: torch.Tensor, component: str
) -> torch.Tensor:
    """The branch of the authors' evaluation loop that runs `component` on one batch."""
    if component == "apgd-ce":
        attacker.apgd.loss, attacker.apgd.seed = "ce", attacker.seed
        return attacker.apgd.perturb(images, labels)
    if component == "apgd-t":
        attacker.apgd_targeted.seed = attacker.seed
        return attacker.apgd_targeted.perturb(images, labels)
    if component == "fab-t":
        attacker.fab.targeted, attacker.fab.n_restarts, attacker.fab.seed = True, 1, attacker.seed
        return attacker.fab.perturb(images, labels)
    if component == "square":
        attacker.square.seed = attacker.seed
        return attacker.square.perturb(images, labels)
    raise ValueError(f"no component {component!r}; known: {', '.join(components)}")


def flags(remaining: dict[str, int], n: int) -> list[str]:
    """AutoAttack's own sign of an unreliable evaluation: the black-box Square breaks what the white-box ones left."""
    white_box = min(count for name, count in remaining.items() if name != "square")
    gain = (white_box - remaining["square"]) / n
    if gain <= 0.002:
        return []
    return [
        f"Square lowered the robust accuracy by {gain:.2%} after the white-box attacks; the model may mask gradients"
    ]
