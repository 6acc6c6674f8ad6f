"""A row's model in the sandbox, and, on the evaluator's side, a torch module that asks it.

The evaluator never imports a method.py. The process builds the model and loads its weights; it gets images and returns
logits, or, for a gradient of the logits, the gradient of the images: what it computes is what the model would compute here,
bit for bit. It has no labels, no test images but those that it is asked about, and writes to its own folder alone.
"""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from benchmark.attacks.engine import fused_ops
from benchmark.attacks.internals import Internals, Remote, internals
from benchmark.attacks.prediction import checked, logits
from benchmark.attacks.replaced_attention import Weights, replaced_attention
from benchmark.layers.derived import cache_weights
from benchmark.layers.description import describe, rebuild
from benchmark.layers.trained import trained_model
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.memory import peak
from benchmark.runtime.torch_setup import start as start_device
from benchmark.runtime.torch_setup import stop_filling
from benchmark.sandbox.channel import Message, Tensors
from benchmark.sandbox.confinement import largest_weights
from benchmark.sandbox.process import serve
from benchmark.sandbox.submitted import in_force, in_words, start
from benchmark.specs.rows import Row

WIDEST = 8  # bytes of a number
CALLS, ROWS = 64, 32  # kept of what a model is asked: calls, and images of each
WHOLE_CALLS = 32
Call = tuple[torch.Tensor, torch.Tensor, int | None]
CALL_SECONDS = 600.0  # for one pass of the model, forwards or backwards, and for building it


class Asked:
    """Some of what a model is asked, with its answers: of some calls, each as likely as any other, and of the last one.

    No model can know which, since the operating system's randomness chooses. Of a call that is not kept `whole`, as those of
    random models are, some images are kept.
    """

    def __init__(self, whole: bool) -> None:
        self._whole, self._random = whole, random.SystemRandom()
        self._most = WHOLE_CALLS if whole else CALLS
        self._calls, self._seen, self._last = list[Call](), 0, list[Call]()

    def add(self, images: torch.Tensor, answers: torch.Tensor, seed: int | None) -> None:
        """Sees a call: images (n, c, h, w), logits (n, classes), and what noise was drawn from."""
        place = self._random.randrange(self._seen + 1)
        self._seen += 1
        rows = [*range(len(images))]
        if not self._whole and len(rows) > ROWS:
            rows = self._random.sample(rows, ROWS)
        call = images.detach()[rows].cpu(), answers.detach()[rows].cpu(), seed
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


class SandboxedModel(Remote):
    """Images (n, c, h, w) in [0, 1] to logits (n, classes), by asking the process that holds the row's model.

    A model of the open division may draw noise: its generator is set, before each pass, to a number that this process's
    generator draws, so that the same seed here gives the same noise there. No gradient of a gradient is to be had.

    The process exists at once, and builds the model, in evaluation mode, when `build` is called.
    """

    def __init__(self, row: Row, device: torch.device, parts: tuple[str, ...]) -> None:
        super().__init__()
        process = start(
            lambda channel: serve(channel, _Served(row, device)), parts, row.submission.name,
            read=[row.weights], seconds=CALL_SECONDS, device=device.type,
        )  # fmt: skip
        self._process, self.close = process, process.close
        self._draws = row.submission.division == "open"
        self.tickets, self.released = itertools.count(), list[int]()  # of passes, and of those that are over
        self.asked: Asked | None = None  # what keeps some of its answers
        self.eval()

    def build(self) -> None:
        """
        Raises:
            BenchmarkError: as `trained_model` does, or this machine refuses to confine a process.
        """
        self._process.ask("build")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and images.requires_grad:
            return _Pass.apply(images, self)
        return self.ask_logits(images)[0]

    def ask_logits(
        self, images: torch.Tensor, ticket: int | None = None, seed: int | None = None
    ) -> tuple[torch.Tensor, bool]:
        """Logits, and whether they have a gradient, for which `ticket` names the pass. A model that draws noise draws it from
        `seed`, else from this process's generator.
        """
        seed = self._drawn() if seed is None else seed
        entered, released = fused_ops.entered(), [self.released.pop() for _ in range(len(self.released))]
        answer, tensors = self._process.ask(
            "logits", {"images": images}, most=2**28,
            ticket=ticket, released=released, fused=entered is not None, seed=seed,
        )  # fmt: skip
        if entered is not None and answer.get("fused") is True:
            entered.used = True
        answers = checked(self._one(tensors, "logits"), len(images))
        if self.asked is not None:
            self.asked.add(images, answers, seed)
        return answers.to(images.device), answer.get("follows") is True

    def logits_with(self, images: torch.Tensor, weights: Weights) -> tuple[torch.Tensor, int]:
        """Logits of the model with other attention weights, and how much attention was replaced."""
        answer, tensors = self._process.ask(
            "logits_with", {"images": images}, most=2**28, weights=weights, seed=self._drawn()
        )
        return self._one(tensors, "logits").to(images.device), self._count(answer, "replaced")

    def ask_gradient(self, ticket: int, gradient: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
        """The gradient of the images, of this shape, by the pass's ticket and the gradient of its logits; None for none."""
        most = WIDEST * shape.numel()
        answer, tensors = self._process.ask("gradient", {"gradient": gradient}, most=most, ticket=ticket)
        if answer.get("none") is True:
            return None
        found = self._one(tensors, "gradient")
        if found.shape != shape:
            raise self._wrong(f"a gradient {tuple(found.shape)} of {tuple(shape)}")
        return found.to(gradient.device)

    def internals(self, images: torch.Tensor) -> Internals:
        """What the process says of the model (attacks/internals.py)."""
        answer, _ = self._process.ask("internals", {"images": images})
        try:
            return TypeAdapter(Internals).validate_python(answer)
        except ValidationError:
            raise self._wrong("what it says of the model") from None

    def description(self) -> tuple[Any, Tensors]:
        """The network as `benchmark.layers.description.describe` has it."""
        answer, tensors = self._process.ask("description", most=largest_weights())
        return answer.get("layers"), tensors

    def memory(self) -> int:
        """Bytes of a GPU that its process has held at most, as that process says."""
        return self._count(self._process.ask("memory")[0], "bytes")

    def _drawn(self) -> int | None:
        """What a model of the open division draws its noise from."""
        return int(torch.randint(2**62, ())) if self._draws else None

    def _one(self, tensors: Tensors, name: str) -> torch.Tensor:
        if [*tensors] != [name] or not tensors[name].is_floating_point():
            raise self._wrong(name)
        return tensors[name]

    def _count(self, answer: dict[str, Any], name: str) -> int:
        if type(answer.get(name)) is not int or answer[name] < 0:
            raise self._wrong(name)
        return answer[name]

    def _wrong(self, what: str) -> BenchmarkError:
        return BenchmarkError(f"{self._process.owner}: the process that runs its code answers wrongly: {what}")


class _Pass(torch.autograd.Function):
    """A pass of a sandboxed model; going back asks its process again."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, model: SandboxedModel) -> torch.Tensor:
        ctx.model, ctx.ticket, ctx.shape = model, next(model.tickets), images.shape
        answers, follows = model.ask_logits(images, ctx.ticket)
        if not follows:
            ctx.mark_non_differentiable(answers)
        weakref.finalize(ctx, model.released.append, ctx.ticket)
        return answers

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        return ctx.model.ask_gradient(ctx.ticket, gradient, ctx.shape), None


class _Served:
    """In the process: the model, and the passes that may be gone back through, by ticket."""

    def __init__(self, row: Row, device: torch.device) -> None:
        self.row, self.device = row, device
        self.passes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.fused = fused_ops.FusedOps()

    @cached_property
    def model(self) -> nn.Module:
        return trained_model(self.row, self.device)

    def build(self) -> Message:
        self.model  # noqa: B018 - builds it
        return {}, {}

    def logits(
        self, images: torch.Tensor, ticket: int | None, released: list[int], fused: bool, seed: int | None
    ) -> Message:
        for old in released:
            self.passes.pop(old, None)
        _seed(seed)
        images = images.to(self.device)
        with torch.set_grad_enabled(ticket is not None), self.fused if fused else nullcontext():
            images.requires_grad_(ticket is not None)
            answers = checked(self.model(images.clone()), len(images))  # a clone, since a model may write to it
        if ticket is not None and answers.requires_grad:
            self.passes[ticket] = images, answers
        return {"follows": answers.requires_grad, "fused": self.fused.used}, {"logits": answers}

    def logits_with(self, images: torch.Tensor, weights: Weights, seed: int | None) -> Message:
        _seed(seed)
        with replaced_attention(weights) as mode:
            answers = checked(self.model(images.to(self.device)), len(images))
        return {"replaced": mode.replaced}, {"logits": answers}

    def gradient(self, gradient: torch.Tensor, ticket: int) -> Message:
        images, answers = self.passes[ticket]
        slope = gradient.to(self.device)
        found = torch.autograd.grad(answers, images, slope, retain_graph=True, allow_unused=True)[0]
        return ({"none": True}, {}) if found is None else ({"none": False}, {"gradient": found})

    def internals(self, images: torch.Tensor) -> Message:
        return asdict(internals(self.model, images.to(self.device))), {}

    def description(self) -> Message:
        layers, tensors = describe(self.model)
        return {"layers": layers}, tensors

    def memory(self) -> Message:
        return {"bytes": peak()}, {}


def _seed(seed: int | None) -> None:
    if seed is not None:
        torch.manual_seed(seed)


@dataclass(frozen=True)
class EvaluatedModel:
    """What is evaluated: never an object that the row's own code made in the evaluator's process.

    Attributes:
        model: in evaluation mode, frozen: in the sandbox, or, where it is certified, rebuilt here from a description of it.
        wall: what holds the row's own code, in words.
        claimed: the row's own model in the sandbox, where `model` is one that was rebuilt from layers known here.
    """

    model: nn.Module
    wall: str
    claimed: SandboxedModel | None = None

    @property
    def memory(self) -> int:
        """Bytes of a GPU that the row's process and this one have held at most."""
        asked = self.claimed or self.model
        return peak() + (asked.memory() if isinstance(asked, SandboxedModel) else 0)

    def confirm(self, images: torch.Tensor, batch_size: int, row: str) -> None:
        """Compare the rebuilt network with the row's own model on images (n, c, h, w).

        Raises:
            BenchmarkError: they differ in a bit of a logit, with the first image.
        """
        if self.claimed is None:
            return
        own, rebuilt = (logits(model, images, batch_size) for model in (self.claimed, self.model))
        if own.shape != rebuilt.shape or not torch.equal(own, rebuilt):
            where = ""
            if own.shape == rebuilt.shape:
                image = int((own != rebuilt).any(1).nonzero()[0])
                where = f" for image {image} by {float((own[image] - rebuilt[image]).abs().max()):.3g}"
            raise BenchmarkError(
                f"{row}: its logits differ{where} from those of the network rebuilt from its layers, which is what would be "
                "certified; let its layers do what their types do, or leave the certificate out"
            )


Spare = Callable[[], AbstractContextManager[nn.Module]]


@contextmanager
def spare_models(row: Row, device: torch.device, count: int) -> Iterator[list[Spare]]:
    """`count` times the row's own model, each in a process of its own that exists now, before an image is read, and builds
    the model when it is entered. It has been asked nothing, and ends with the block that entered it, or with this one. None
    where nothing holds the row's code, which could then do anything.
    """
    parts = in_force()
    with ExitStack() as ends:
        models = [ends.enter_context(closing(SandboxedModel(row, device, parts))) for _ in range(count if parts else 0)]
        yield [partial(_built, model) for model in models]


@contextmanager
def _built(model: SandboxedModel) -> Iterator[SandboxedModel]:
    with closing(model):
        model.build()
        yield model


@contextmanager
def evaluated_model(row: Row, device: torch.device) -> Iterator[EvaluatedModel]:
    """The row's network with its trained weights, for as long as the block lasts.

    Raises:
        BenchmarkError: the weights are missing or do not fit, the row's code fails, or a certified row has layers that no
            certificate knows.
    """
    if not (parts := in_force()):
        yield EvaluatedModel(trained_model(row, device), in_words(parts))
        return
    with _built(SandboxedModel(row, device, parts)) as model:
        if not row.described:
            yield EvaluatedModel(model, in_words(parts))
            return
        try:
            rebuilt = rebuild(*model.description())
        except BenchmarkError as error:
            raise BenchmarkError(f"{row.name}: {error}") from None
        start_device(device)
        rebuilt = rebuilt.to(device)
        cache_weights(rebuilt)
        stop_filling()
        yield EvaluatedModel(rebuilt, in_words(parts), model)
