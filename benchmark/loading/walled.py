"""A row's model in a process of its own, and, on the judge's side, a torch module that asks it.

The judge never imports a method.py. The process builds the model and loads its weights; it gets images and returns logits,
or, for a gradient of the logits, the gradient of the images: what it computes is what the model would compute here, bit for
bit. It has no labels, no test images but those that it is asked about, and no place to write to but its own folder.
"""

from __future__ import annotations

import itertools
import random
import weakref
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from benchmark.attacks.engine import fused_ops
from benchmark.loading.confining import Wall, submission_files
from benchmark.loading.rows import Row
from benchmark.loading.trained import trained_model
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.memory import peak
from benchmark.verdicts.internals import Internals, Remote, internals
from benchmark.verdicts.prediction import checked
from benchmark.verdicts.replaced_attention import Weights, replaced_attention
from benchmark.wall.channel import Channel, Tensors
from benchmark.wall.confinement import largest_weights
from benchmark.wall.process import Answer, Walled, serve

WIDEST = 8  # bytes of a number
CALLS, ROWS = 64, 32  # kept of what a model is asked: calls, and images of each
WHOLE_CALLS = 32
Call = tuple[torch.Tensor, torch.Tensor, int | None]
CALL_SECONDS = 600.0  # for one pass of the model, forwards or backwards, and for building it


def walled_model(row: Row, device: torch.device, wall: Wall) -> WalledModel:
    """The row's model with its trained weights behind the wall, in evaluation mode. Its process is there now, builds the
    model when `begin` is called, and ends by `close`.
    """
    files = (*submission_files(row), row.weights.absolute())
    walled = wall.process(row, partial(_serve, row, device), files, seconds=CALL_SECONDS, device=device.type)
    return WalledModel(walled, row.submission.division == "open").eval()


class Asked:
    """Some of what a model is asked, with its answers: of some calls, each as likely as any other, and of the last one.

    No model can know which, since the operating system's randomness chooses. Of a call that is not kept `whole`, as those of
    random models are, some images are kept.
    """

    def __init__(self, whole: bool) -> None:
        self._whole, self._random = whole, random.SystemRandom()
        self._most = WHOLE_CALLS if whole else CALLS
        self._calls, self._seen, self._last = list[Call](), 0, list[Call]()

    def add(self, images: torch.Tensor, logits: torch.Tensor, seed: int | None) -> None:
        """Sees a call: images (n, c, h, w), logits (n, classes), and what noise was drawn from."""
        place = self._random.randrange(self._seen + 1)
        self._seen += 1
        rows = [*range(len(images))]
        if not self._whole and len(rows) > ROWS:
            rows = self._random.sample(rows, ROWS)
        call = images.detach()[rows].cpu(), logits.detach()[rows].cpu(), seed
        self._last = [call]
        if self._seen <= self._most:
            self._calls.append(call)
        elif place < self._most:
            self._calls[place] = call

    def take(self) -> list[Call]:
        """Return the calls that are kept, the last one first, and begin anew."""
        calls = [*self._last, *(call for call in self._calls if all(call is not last for last in self._last))]
        self._calls, self._seen, self._last = [], 0, []
        return calls


class WalledModel(Remote):
    """Images (n, c, h, w) in [0, 1] to logits (n, classes), by asking the process that holds the model.

    A model of the open division may draw noise: its generator is set, before each pass, to a number that this process's
    generator draws, so that the same seed here gives the same noise there. No gradient of a gradient is to be had.
    """

    def __init__(self, walled: Walled, draws: bool) -> None:
        super().__init__()
        self._walled, self._draws = walled, draws
        self._tickets, self._released = itertools.count(), list[int]()
        self.asked: Asked | None = None  # what keeps some of its answers

    def begin(self) -> None:
        """Waits until the model is built; to be called once, before anything is asked.

        Raises:
            BenchmarkError: as `trained_model` does, or this machine refuses to confine a process.
        """
        self._walled.ask({"begin": True})

    def close(self) -> None:
        self._walled.close()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and images.requires_grad:
            return _Pass.apply(images, self)
        return self.ask_logits(images)[0]

    def ask_logits(
        self, images: torch.Tensor, ticket: int | None = None, seed: int | None = None
    ) -> tuple[torch.Tensor, bool]:
        """Logits, and whether they have a gradient; with a `ticket` they can be gone back through. A model that draws noise
        draws it from `seed`, else from this process's generator.
        """
        drawn = self._drawn() if seed is None else {"seed": seed}
        entered, released, self._released = fused_ops.entered(), self._released, []
        message = {"ask": "logits", "ticket": ticket, "released": released, "fused": entered is not None, **drawn}
        answer, tensors = self._walled.ask(message, {"images": images}, most=2**28)
        if entered is not None and answer.get("fused") is True:
            entered.used = True
        logits = checked(self._one(tensors, "logits"), len(images))
        if self.asked is not None:
            self.asked.add(images, logits, drawn.get("seed"))
        return logits.to(images.device), answer.get("follows") is True

    def logits_with(self, images: torch.Tensor, weights: Weights) -> tuple[torch.Tensor, int]:
        """Logits of the model with other attention weights, and how much attention was replaced."""
        message = {"ask": "logits_with", "weights": weights, **self._drawn()}
        answer, tensors = self._walled.ask(message, {"images": images}, most=2**28)
        replaced = answer.get("replaced")
        if not isinstance(replaced, int) or replaced < 0:
            raise self._wrong("how much attention it replaced")
        return self._one(tensors, "logits").to(images.device), replaced

    def ask_gradient(self, ticket: int, gradient: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
        """The gradient of the images, which have this shape, of a pass by its ticket and the gradient of its logits; None
        where none comes back.
        """
        message = {"ask": "gradient", "ticket": ticket}
        answer, tensors = self._walled.ask(message, {"gradient": gradient}, most=WIDEST * shape.numel())
        return None if answer.get("none") is True else self._one(tensors, "gradient").to(gradient.device)

    def internals(self, images: torch.Tensor) -> Internals:
        """What the process says of the model (verdicts/internals.py)."""
        found, _ = self._walled.ask({"ask": "internals"}, {"images": images})
        try:
            return TypeAdapter(Internals).validate_python(found)
        except ValidationError:
            raise self._wrong("what it says of the model") from None

    def description(self) -> tuple[Any, Tensors]:
        """The network as `benchmark.layers.description.describe` has it."""
        answer, tensors = self._walled.ask({"ask": "description"}, most=largest_weights())
        return answer.get("layers"), tensors

    def memory(self) -> int:
        """Bytes of a GPU that its process has held at most, as that process says."""
        answer, _ = self._walled.ask({"ask": "memory"})
        if type(answer.get("bytes")) is not int or answer["bytes"] < 0:
            raise self._wrong("how much memory it holds")
        return answer["bytes"]

    def release(self, ticket: int) -> None:
        self._released.append(ticket)

    def next_ticket(self) -> int:
        return next(self._tickets)

    def _drawn(self) -> dict[str, Any]:
        """What a model of the open division draws its noise from."""
        return {"seed": int(torch.randint(2**62, ()))} if self._draws else {}

    def _one(self, tensors: Tensors, name: str) -> torch.Tensor:
        if [*tensors] != [name] or not tensors[name].is_floating_point():
            raise self._wrong(name)
        return tensors[name]

    def _wrong(self, what: str) -> BenchmarkError:
        return BenchmarkError(f"{self._walled.owner}: the process that runs its code answers wrongly: {what}")


class _Pass(torch.autograd.Function):
    """A pass of a walled model; going back asks its process again."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, model: WalledModel) -> torch.Tensor:
        ctx.model, ctx.ticket, ctx.shape = model, model.next_ticket(), images.shape
        logits, follows = model.ask_logits(images, ctx.ticket)
        if not follows:
            ctx.mark_non_differentiable(logits)
        weakref.finalize(ctx, model.release, ctx.ticket)
        return logits

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        found = ctx.model.ask_gradient(ctx.ticket, gradient, ctx.shape)
        if found is not None and found.shape != ctx.shape:
            raise BenchmarkError(
                f"the model's process answers with a gradient {tuple(found.shape)} of {tuple(ctx.shape)}"
            )
        return found, None


def _serve(row: Row, device: torch.device, channel: Channel) -> None:
    """In the process."""
    channel.receive(0)  # `begin`
    served = _Served(trained_model(row, device), device)
    channel.send({"ready": True})
    serve(
        channel,
        {
            "logits": served.logits,
            "logits_with": served.logits_with,
            "gradient": served.gradient,
            "internals": served.internals,
            "description": served.description,
            "memory": lambda *_: ({"bytes": peak()}, {}),
        },
    )


class _Served:
    """The model, and the passes that may be gone back through, by ticket."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self.device = model, device
        self.passes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.fused = fused_ops.FusedOps()

    def logits(self, message: dict[str, Any], tensors: Tensors) -> Answer:
        for ticket in message["released"]:
            self.passes.pop(ticket, None)
        images, ticket = tensors["images"].to(self.device), message["ticket"]
        if "seed" in message:
            torch.manual_seed(message["seed"])
        with torch.set_grad_enabled(ticket is not None), self.fused if message["fused"] else nullcontext():
            images.requires_grad_(ticket is not None)
            logits = checked(self.model(images.clone()), len(images))  # a clone, since a model may write to it
        if ticket is not None and logits.requires_grad:
            self.passes[ticket] = images, logits
        return {"follows": logits.requires_grad, "fused": self.fused.used}, {"logits": logits}

    def logits_with(self, message: dict[str, Any], tensors: Tensors) -> Answer:
        images = tensors["images"].to(self.device)
        if "seed" in message:
            torch.manual_seed(message["seed"])
        with replaced_attention(message["weights"]) as mode:
            logits = checked(self.model(images.clone()), len(images))
        return {"replaced": mode.replaced}, {"logits": logits}

    def gradient(self, message: dict[str, Any], tensors: Tensors) -> Answer:
        images, logits = self.passes[message["ticket"]]
        gradient = tensors["gradient"].to(self.device)
        found = torch.autograd.grad(logits, images, gradient, retain_graph=True, allow_unused=True)[0]
        return ({"none": True}, {}) if found is None else ({"none": False}, {"gradient": found})

    def internals(self, message: dict[str, Any], tensors: Tensors) -> Answer:
        return asdict(internals(self.model, tensors["images"].to(self.device))), {}

    def description(self, message: dict[str, Any], tensors: Tensors) -> Answer:
        from benchmark.layers.description import describe

        layers, tensors = describe(self.model)
        return {"layers": layers}, tensors
