"""How often attacks ask a model, as they are scheduled and at most: read off benchmark/attacks, nothing is run."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from benchmark.attacks import apgd, autoattack, fgsm
from benchmark.attacks.engine import fab, square
from benchmark.attacks.engine.apgd import STEPS
from benchmark.specs.threat import AttackSpec

BESIDE = (
    4  # calls beside a component's own: one image for the classes, the rivals' order, before it, and of what it found
)


@dataclass(frozen=True)
class Calls:
    """Calls of the model with a whole batch, per batch of images.

    Attributes:
        usual: where no image breaks, and no run gets more starts than it begins with.
        most: where every run gets all the starts that it can.
        note: when there are as many as `most`, in words; "" where both are the same.
    """

    usual: int
    most: int
    note: str = ""


def calls(spec: AttackSpec, component: str, classes: int, batch: int) -> Calls | None:
    """Those of one component of one attack on `batch` images that the model gets right; None for a file that is not known.

    Args:
        component: a name of the file's `components`, or the attack itself where it has none.
    """
    own = _own(spec, component, classes, batch)
    return own and Calls(own.usual + BESIDE, own.most + BESIDE, own.note)


def _own(spec: AttackSpec, component: str, classes: int, batch: int) -> Calls | None:
    targets = min(autoattack.TARGETS, classes - 1)
    run = STEPS + 2  # a step from each point that it visits, and the unmodified model asked about the last
    if component == "apgd-ce":
        return Calls(run, run)
    if component == "apgd-t":
        more = autoattack.RESTARTS[spec.norm]
        words = f"every run of APGD-T in {spec.norm} gets its {more} more starts" if more else ""
        return Calls(targets * run, targets * run * (1 + more), words)
    if component == "fab-t":
        every = targets * (2 * fab.STEPS + 4)  # the authors' file asks four times besides, this one's at most once
        return Calls(every, every)
    if component == "square":
        # proposals beyond the first that is accepted are thrown away: as many as are worth `USUAL` images more a query
        most = square.QUERIES * (batch + square.USUAL) / batch
        return Calls(square.QUERIES + 1, int(most) + 1, "Square throws away as many proposals as it may")
    if spec.attack == "apgd":
        every = run * int(_given(spec, apgd, "restarts"))
        return Calls(every, every)
    if spec.attack in ("pgd", "cw", "fgsm"):
        steps = int(spec.parameters["steps"] if spec.attack != "fgsm" else _given(spec, fgsm, "steps"))
        return Calls(steps, steps)
    return None


def _given(spec: AttackSpec, module: Any, name: str) -> Any:
    """A parameter of the attack, with the file's own default."""
    return spec.parameters.get(name, inspect.signature(module.attack).parameters[name].default)
