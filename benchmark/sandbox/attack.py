"""An attack that was contributed against a submission, in a sandboxed process with a copy of the model.

The process has the images and labels that it attacks. The evaluator checks the images that it returns with the
evaluated model, as it does for any attack. So the attack can find adversarial images and do no other harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from benchmark.layers.trained import trained_model
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.channel import Channel, Message
from benchmark.sandbox.process import Process, serve
from benchmark.sandbox.submitted import in_force, start
from benchmark.specs import methods
from benchmark.specs.rows import Row
from benchmark.specs.threat import ThreatModel

MOST_COMPONENTS = 20
COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,60}")
BATCH_SECONDS = 6 * 3600.0  # for an attack on one batch of images


@contextmanager
def contributed_attacks(row: Row, names: Iterable[str], device: torch.device) -> Iterator[Callable[[str], Any]]:
    """Yield a function from these names to the row's own attacks; it returns None for a name without an own attack.

    The attacks' processes start at once, before this process may have started a GPU, and end with the block.
    """
    parts, submission = in_force(), row.submission.name
    own = sorted({name for name in names if methods.own_attack(name, submission)})
    if not parts:
        yield lambda name: methods.attack(name, submission) if name in own else None
        return
    with ExitStack() as ends:
        attacks = {}
        for name in own:
            process = start(
                partial(_serve, row, name, device), parts, submission,
                read=[row.weights], seconds=BATCH_SECONDS, device=device.type,
            )  # fmt: skip
            attacks[name] = _attack(ends.enter_context(process), name)
        yield attacks.get


def _attack(process: Process, name: str) -> SimpleNamespace:
    """Return an object with the attributes that the harness reads of an attack's module; it asks the process."""
    about, _ = process.ask("about")
    components = about.get("components") or []
    named = isinstance(components, list) and all(isinstance(n, str) and COMPONENT.fullmatch(n) for n in components)
    if not named or len(components) > MOST_COMPONENTS:
        raise BenchmarkError(
            f"{process.owner}: the attack {name} should have at most {MOST_COMPONENTS} components, named by letters, digits, "
            "'_' and '-'"
        )

    def attack(
        model: object, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel, *, seed: int, **options: object
    ) -> torch.Tensor:
        """Return adversarial images (n, c, h, w), found with the process's own copy of the model."""
        _, tensors = process.ask(
            "attack", {"images": images, "labels": labels}, most=8 * images.numel(),
            threat=threat.model_dump(mode="json"), seed=seed, options=options,
        )  # fmt: skip
        if [*tensors] != ["adversarial"]:
            raise BenchmarkError(f"{process.owner}: the process that runs its attack returned malformed output")
        return tensors["adversarial"].to(images.device)

    optional: dict[str, object] = {"components": tuple(components)} if components else {}
    optional |= {"per_image": True} if about.get("per_image") is True else {}
    return SimpleNamespace(attack=attack, **optional)


def _serve(row: Row, name: str, device: torch.device, channel: Channel) -> None:
    """Serve the attack in the sandboxed process."""
    module, model = methods.attack(name, row.submission.name), trained_model(row, device)

    def about() -> Message:
        return {"components": list(getattr(module, "components", ())), "per_image": hasattr(module, "per_image")}, {}

    def attack(
        images: torch.Tensor, labels: torch.Tensor, threat: dict[str, Any], seed: int, options: dict[str, Any]
    ) -> Message:
        ball, images, labels = ThreatModel.model_validate(threat), images.to(device), labels.to(device)
        return {}, {"adversarial": module.attack(model, images, labels, ball, seed=seed, **options)}

    serve(channel, SimpleNamespace(about=about, attack=attack))
