"""An attack that somebody brings against a submission, in a process of its own with a copy of the model.

It has the images and labels that it is to attack. What it returns is judged, as any attack's is, by the model that the judge
asks; so it can find adversarial images and do no other harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import torch

from benchmark.loading import methods
from benchmark.loading.confining import Wall, submission_files, wall
from benchmark.loading.rows import Row
from benchmark.loading.trained import trained_model
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel
from benchmark.wall.channel import Channel, Tensors
from benchmark.wall.process import Answer, serve

MOST_COMPONENTS = 20
COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,60}")
BATCH_SECONDS = 6 * 3600.0  # for an attack on one batch of images


@contextmanager
def brought_attacks(row: Row, names: Iterable[str], device: torch.device) -> Iterator[Callable[[str], Any]]:
    """What finds the attack that the row's submission brings under one of these names, None where it brings none; for as
    long as the block lasts. Their processes are made at once, before this one may have started a GPU.
    """
    held, submission = wall(), row.submission.name
    own = sorted({name for name in names if methods.own_attack(name, submission)})
    if not held.stands:
        yield lambda name: methods.attack(name, submission) if name in own else None
        return
    with ExitStack() as ends:
        started = {name: ends.enter_context(closing(BroughtAttack(row, name, held, device))) for name in own}
        yield started.get


class BroughtAttack:
    """A submission's own attack, with the attributes that the harness reads of an attack's module.

    `close` ends its process.
    """

    def __init__(self, row: Row, name: str, wall: Wall, device: torch.device) -> None:
        files = [*submission_files(row), row.weights.absolute()]
        work = partial(_serve, row, name, device)
        self._walled = wall.process(row, work, files, seconds=BATCH_SECONDS, device=device.type)
        self.owner = self._walled.owner
        about, _ = self._walled.receive()
        components = about.get("components")
        if isinstance(components, list) and components:
            if len(components) > MOST_COMPONENTS or not all(
                isinstance(n, str) and COMPONENT.fullmatch(n) for n in components
            ):
                raise BenchmarkError(
                    f"{self.owner}: the attack {name} should have at most {MOST_COMPONENTS} components, named by letters, "
                    "digits, '_' and '-'"
                )
            self.components = tuple(components)
        if about.get("per_image") is True:
            self.per_image = True

    def attack(
        self,
        model: object,
        images: torch.Tensor,
        labels: torch.Tensor,
        threat: ThreatModel,
        *,
        seed: int | None,
        **options: object,
    ) -> torch.Tensor:
        """What it makes of images (n, c, h, w), by its own copy of the model."""
        message = {"ask": "attack", "threat": threat.model_dump(mode="json"), "seed": seed, "options": options}
        _, tensors = self._walled.ask(message, {"images": images, "labels": labels}, most=8 * images.numel())
        if [*tensors] != ["adversarial"]:
            raise BenchmarkError(f"{self.owner}: the process that runs its attack answers wrongly")
        return tensors["adversarial"].to(images.device)

    def close(self) -> None:
        self._walled.close()


def _serve(row: Row, name: str, device: torch.device, channel: Channel) -> None:
    """In the process."""
    module, model = methods.attack(name, row.submission.name), trained_model(row, device)
    about = {"components": list(getattr(module, "components", ())), "per_image": hasattr(module, "per_image")}
    channel.send(about)

    def attack(message: dict[str, Any], tensors: Tensors) -> Answer:
        threat = ThreatModel.model_validate(message["threat"])
        images, labels = (tensors[part].to(device) for part in ("images", "labels"))
        found = module.attack(model, images, labels, threat, seed=message["seed"], **message["options"])
        return {}, {"adversarial": found}

    serve(channel, {"attack": attack})
