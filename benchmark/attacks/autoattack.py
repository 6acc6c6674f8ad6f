"""AutoAttack, standard version (Croce and Hein 2020): APGD-CE, APGD-T, FAB-T and Square, one component at a time.

There are two engines. `reference` is the authors' attack files, unchanged. Their loop runs each component on the images that
the components before left robust. Running them one by one is the same computation (a test compares the two), and lets the
harness save a checkpoint after each. `fast` runs the same algorithms, budgets and schedules on many images in parallel
(engine/), with a random stream for each image, so its result does not depend on the batch or its order.

The package seeds itself from the clock by default; here `seed` is required. The standard version's nine targets are all
rivals of ten classes; with fewer classes, all rivals are targets.
"""

from __future__ import annotations

from typing import get_args

import pyautoattack
import torch
from torch import nn

from benchmark.attacks.engine import apgd, fab, square
from benchmark.attacks.engine.slots import Search
from benchmark.attacks.internals import Notes
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import Engine, ThreatModel

components = ("apgd-ce", "apgd-t", "fab-t", "square")
engines = get_args(Engine)
# Components that may use larger calls, which round otherwise: Square's images are made of squares, and FAB-T hardly finds
# images that APGD did not. APGD's steps in l2 add up the rounding, and published images must stay byte-identical.
WIDE = ("fab-t", "square")
per_image = warns = True
TARGETS = 9
# In the Linf ball chance decides about images that APGD-T nearly breaks: all that it left and another run broke had come
# within 0.1. There the fast engine takes more starts than the authors. In l2 most starts end at nearly the same loss, and
# more broke nothing (docs/attacks.md).
RESTARTS, NEAR = {"Linf": 10, "L2": 0}, 0.1  # additional starts of a run, and the loss from which it gets them


def attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    threat: ThreatModel,
    *,
    seed: int,
    component: str,
    engine: str = "fast",
    indices: list[int] | None = None,
    slots: int = 128,
    wide: int = 0,
    flops: int = 0,
    notes: Notes | None = None,
) -> torch.Tensor:
    """Run one component on images that the model classifies correctly; return adversarial images where it finds any.

    With two or three classes APGD-T's loss is not defined: that component finds nothing, and warns.

    Args:
        engine: "fast" or "reference".
        indices: the images' numbers in the data set, which select the fast engine's random streams; by default their
            places in the batch.
        slots: the most images in one call of the model by the fast engine; the reference takes all as one batch.
        wide: the same for the components in `WIDE`, if larger.
        flops: the model's on one image, 0 if unknown; they change no result.
        notes: receives the warnings.

    Raises:
        ValueError: no such component.
        BenchmarkError: a model of one class.
    """
    if component not in components:
        raise ValueError(f"no component {component!r}; known: {', '.join(components)}")
    notes = notes or Notes()
    with torch.no_grad():
        classes = model(images[:1]).shape[1]
    if classes < 2:
        raise BenchmarkError("the model has one class, which no image can leave")
    if classes < 4 and component == "apgd-t":
        notes.warning(f"APGD-T needs 4 classes or more and this model has {classes}: AutoAttack ran without it")
        return images.clone()
    targets = min(TARGETS, classes - 1)
    if engine == "reference":  # the branch of the authors' evaluation loop that runs `component` on one batch
        authors = pyautoattack.AutoAttack(
            model, norm=threat.norm, eps=threat.eps, seed=seed, version="standard", device=images.device
        )
        authors.apgd_targeted.n_target_classes = authors.fab.n_target_classes = targets
        authors.apgd.loss, authors.fab.targeted, authors.fab.n_restarts = "ce", True, 1
        parts = (authors.apgd, authors.apgd_targeted, authors.fab, authors.square)
        part = dict(zip(components, parts, strict=True))[component]
        part.seed, part.logger = seed, notes
        with torch.no_grad():
            return part.perturb(images, labels)
    places = indices or [*range(len(images))]
    most = max(slots, wide) if component in WIDE else slots
    search = Search(model, images, labels, places, threat.norm, threat.eps, seed, most, flops)
    if component == "apgd-ce":
        apgd.untargeted(search)
    elif component == "square":
        square.Chains(search).run()
    else:
        order = search.logits(search.images).sort(dim=1).indices
        rivals = order[:, -targets - 1 : -1].flip(1)  # the likeliest first, as the authors take them
        if component == "fab-t":
            fab.targeted(search, rivals)
        else:
            apgd.targeted(search, rivals, RESTARTS[search.norm], NEAR)
            if search.flat:  # the authors warn of it here and not in APGD-CE
                notes.warning(
                    f"there are {search.flat} runs that begin with zero gradient; this may make gradient-based attacks "
                    "unreliable"
                )
    return search.adversarial


def flags(remaining: dict[str, int], n: int) -> list[str]:
    """Return AutoAttack's flag of an unreliable evaluation: black-box Square breaks images that white-box attacks left."""
    white_box = min(count for name, count in remaining.items() if name != "square")
    gain = (white_box - remaining["square"]) / n
    if gain <= 0.002:
        return []
    return [f"Square lowered the robust accuracy by {gain:.2%} after the white-box attacks; the model may mask gradients"]
