"""A row's model in the sandbox, and the evaluator's torch module that asks it.

The evaluator never imports a method.py, unless `wall: none` says so. The process builds the model and loads its weights. It
gets images and returns logits, or the gradient of the images for a gradient of the logits: bit for bit what the model would
compute in the evaluator. It has no labels, sees only the images that it is asked about, and writes only to its own folder.
"""

from __future__ import annotations

import itertools
import random
import secrets
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
from benchmark.attacks.prediction import MIN_ROWS, checked, logits
from benchmark.attacks.replaced_attention import Weights, replaced_attention
from benchmark.layers.derived import cache_weights
from benchmark.layers.description import describe, rebuild
from benchmark.layers.trained import trained_model
from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.memory import peak
from benchmark.runtime.torch_setup import start as start_device
from benchmark.runtime.torch_setup import stop_filling
from benchmark.sandbox.channel import Message, Tensors
from benchmark.sandbox.confinement import largest_weights
from benchmark.sandbox.process import serve
from benchmark.sandbox.submitted import in_force, in_words, start
from benchmark.specs.methods import check_output
from benchmark.specs.rows import Row

WIDEST = 8  # bytes of a number
CALLS, ROWS, WHOLE_CALLS = 64, 32, 32  # calls that `Asked` keeps, images of each, and calls that are kept whole
Call = tuple[torch.Tensor, torch.Tensor, int | None]
# an image, its logits, a gradient of these logits, and that of the image
Slope = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
SLOPES = 256  # gradients that `Asked` keeps, of an image each
CALL_SECONDS = 600.0  # for one pass of the model, forwards or backwards, and for building it


class Asked:
    """A sample of what a model was asked, with its answers: random calls, each equally likely, and the last call.

    The generator is seeded by the operating system, so no model can know which calls are kept. Unless `whole`, as for
    random models, only some images of a call are kept. Of the gradients that the model gave, a sample is kept too.
    """

    def __init__(self, whole: bool) -> None:
        self._whole, self._random = whole, random.Random()
        self._most = WHOLE_CALLS if whole else CALLS
        self._calls, self._seen, self._last = list[Call](), 0, list[Call]()
        self._slopes, self._passes = list[Slope](), 0
        self.dtype = torch.float32  # of the last answers

    def add(self, images: torch.Tensor, answers: torch.Tensor, seed: int | None) -> None:
        """Note a call: images (n, c, h, w), logits (n, classes), and the seed of the model's noise."""
        place = self._random.randrange(self._seen + 1)
        self._seen += 1
        rows = [*range(len(images))]
        if not self._whole and len(rows) > ROWS:
            rows = self._random.sample(rows, ROWS)
        call = images.detach()[rows].cpu(), answers.detach()[rows].cpu(), seed
        self._last, self.dtype = [call], answers.dtype
        if self._seen <= self._most:
            self._calls.append(call)
        elif place < self._most:
            self._calls[place] = call

    def add_gradient(self, images: torch.Tensor, answers: torch.Tensor, above: torch.Tensor, gradient: torch.Tensor) -> None:
        """Note the gradient of one of the images (n, c, h, w), by its logits among the answers (n, classes) and theirs."""
        place = self._random.randrange(self._passes + 1)
        self._passes += 1
        if len(self._slopes) < SLOPES:
            place = len(self._slopes)
        if place < SLOPES:
            row = self._random.randrange(len(images))
            image, own, of_logits, of_image = (
                tensor.detach()[row].cpu().clone() for tensor in (images, answers, above, gradient)
            )
            self._slopes[place : place + 1] = [(image, own, of_logits, of_image)]

    def take(self) -> list[Call]:
        """Return the kept calls, the last one first, and start over."""
        calls = [*self._last, *(call for call in self._calls if all(call is not last for last in self._last))]
        self._calls, self._seen, self._last = [], 0, []
        return calls

    def take_gradients(self) -> list[Slope]:
        """Return the kept gradients, and start over."""
        slopes, self._slopes, self._passes = self._slopes, [], 0
        return slopes


class SandboxedModel(Remote):
    """Images (n, c, h, w) in [0, 1] to logits (n, classes), by asking the process that holds the row's model.

    A model of the open division may draw noise. Before each pass its generator is seeded with a number that this
    process's generator draws, so the same seed here gives the same noise there. There are no second derivatives.

    The process starts at once, and builds the model, in evaluation mode, when `build` is called.
    """

    def __init__(self, row: Row, device: torch.device, parts: tuple[str, ...]) -> None:
        super().__init__()
        process = start(
            lambda channel: serve(channel, _Served(row, device)), parts, row.submission.name,
            read=[row.weights], seconds=CALL_SECONDS, device=device.type,
        )  # fmt: skip
        self._process, self.close = process, process.close
        self._draws = row.submission.division == "open"
        self.tickets, self.released = itertools.count(), list[int]()  # of passes, and of ended passes
        self.asked: Asked | None = None  # keeps some of its answers
        self.eval()

    def build(self) -> None:
        """Build the model. Raise BenchmarkError as `trained_model` does, or if this machine refuses to confine a process."""
        self._process.ask("build")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and images.requires_grad:
            return _Pass.apply(images, self)
        return self.ask_logits(images)[0]

    def ask_logits(
        self, images: torch.Tensor, ticket: int | None = None, seed: int | None = None
    ) -> tuple[torch.Tensor, bool]:
        """Return logits, and whether they have a gradient, for which `ticket` names the pass.

        A model that draws noise draws it from `seed`, else from this process's generator.
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
        """Return logits of the model with other attention weights, and how many attentions were replaced."""
        answer, tensors = self._process.ask(
            "logits_with", {"images": images}, most=2**28, weights=weights, seed=self._drawn()
        )
        return self._one(tensors, "logits").to(images.device), self._count(answer, "replaced")

    def ask_gradient(self, ticket: int, gradient: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
        """Return the gradient of the images, of this shape, by the pass's ticket and the gradient of its logits; or None."""
        most, kept = WIDEST * shape.numel(), torch._C._autograd._get_current_graph_task_keep_graph()
        answer, tensors = self._process.ask("gradient", {"gradient": gradient}, most=most, ticket=ticket, kept=kept)
        if answer.get("none") is True:
            return None
        slope = self._one(tensors, "gradient")
        if slope.shape != shape:
            raise self._wrong(f"a gradient {tuple(slope.shape)} of {tuple(shape)}")
        return slope.to(gradient.device)

    def internals(self, images: torch.Tensor) -> Internals:
        """Return what the process reports about the model (attacks/internals.py)."""
        answer, _ = self._process.ask("internals", {"images": images})
        try:
            return TypeAdapter(Internals).validate_python(answer)
        except ValidationError:
            raise self._wrong("internals") from None

    def description(self, timm: bool) -> tuple[Any, Tensors]:
        """Return the network as `benchmark.layers.description.describe` does."""
        answer, tensors = self._process.ask("description", most=largest_weights(), timm=timm)
        return answer.get("layers"), tensors

    def memory(self) -> int:
        """Return the peak bytes of GPU memory that its process reports."""
        return self._count(self._process.ask("memory")[0], "bytes")

    def _drawn(self) -> int | None:
        """Return a seed for the noise of a model of the open division."""
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
        return BenchmarkError(f"{self._process.owner}: the process that runs its code returned malformed output: {what}")


class _Pass(torch.autograd.Function):
    """A pass of a sandboxed model; the backward pass asks its process again."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, model: SandboxedModel) -> torch.Tensor:
        ctx.model, ctx.ticket, ctx.shape = model, next(model.tickets), images.shape
        answers, follows = model.ask_logits(images, ctx.ticket)
        ctx.asked = (images.detach(), answers.detach()) if model.asked is not None else None
        if not follows:
            ctx.mark_non_differentiable(answers)
        weakref.finalize(ctx, model.released.append, ctx.ticket)
        return answers

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        slope = ctx.model.ask_gradient(ctx.ticket, gradient, ctx.shape)
        if slope is not None and ctx.asked is not None and len(slope):
            ctx.model.asked.add_gradient(*ctx.asked, gradient, slope)
        return slope, None


class _Served:
    """In the sandboxed process: the model, and by ticket the passes that may still be differentiated."""

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

    def logits(self, images: torch.Tensor, ticket: int | None, released: list[int], fused: bool, seed: int | None) -> Message:
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

    def gradient(self, gradient: torch.Tensor, ticket: int, kept: bool) -> Message:
        images, answers = self.passes[ticket]
        above = gradient.to(self.device)
        slope = torch.autograd.grad(answers, images, above, retain_graph=kept, allow_unused=True)[0]
        return ({"none": True}, {}) if slope is None else ({"none": False}, {"gradient": slope})

    def internals(self, images: torch.Tensor) -> Message:
        return asdict(internals(self.model, images.to(self.device))), {}

    def description(self, timm: bool) -> Message:
        layers, tensors = describe(self.model, timm=timm)
        return {"layers": layers}, tensors

    def memory(self) -> Message:
        return {"bytes": peak()}, {}


def _seed(seed: int | None) -> None:
    if seed is not None:
        torch.manual_seed(seed)


@dataclass(frozen=True)
class EvaluatedModel:
    """The evaluated model: no object that the row's own code made in the evaluator's process, unless `wall: none` says so.

    Attributes:
        model: in evaluation mode, frozen: rebuilt here from a description of its layers, where it has no others than
            this benchmark declares, else in the sandbox.
        wall: the parts of the sandbox that confine the row's own code, as text.
        claimed: the row's own model in the sandbox, if `model` was rebuilt.
    """

    model: nn.Module
    wall: str
    claimed: SandboxedModel | None = None

    @property
    def memory(self) -> int:
        """Return the peak bytes of GPU memory of the row's process and of this one."""
        asked = self.claimed or self.model
        return peak() + (asked.memory() if isinstance(asked, SandboxedModel) else 0)

    def confirm(self, images: torch.Tensor, batch_size: int, row: str) -> None:
        """Compare the rebuilt network with the row's own model on images (n, c, h, w).

        Raise BenchmarkError, which names the first image, if a bit of a logit differs.
        """
        if self.claimed is None:
            return
        own, rebuilt = (logits(model, images, batch_size) for model in (self.claimed, self.model))
        if not torch.equal(own, rebuilt):
            where = ""
            if own.shape == rebuilt.shape:
                image = int((own != rebuilt).any(1).nonzero()[0])
                where = f" for image {image} by {float((own[image] - rebuilt[image]).abs().max()):.3g}"
            raise BenchmarkError(
                f"{row}: its logits differ{where} from those of the network rebuilt from its layers, which is evaluated; "
                "let its layers do what their types do"
            )


Spare = Callable[[], AbstractContextManager[nn.Module]]


@contextmanager
def spare_models(row: Row, device: torch.device, count: int) -> Iterator[list[Spare]]:
    """Yield `count` copies of the row's own model, each in a process of its own that was asked nothing yet.

    The processes start now, before an image is read. Each builds its model when it is entered, and ends with that
    block or with this one. Without a sandbox the list is empty, since the row's code could then do anything.
    """
    parts = in_force()
    code.closure(*row.method_files)  # parsed once for all forks
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
    """Yield the row's network with its trained weights.

    Raises:
        BenchmarkError: the weights are missing or do not fit, the row's code fails, or a certified row has layers
            that no certificate knows.
    """
    if not (parts := in_force()):
        yield EvaluatedModel(trained_model(row, device), in_words(parts))
        return
    with _built(SandboxedModel(row, device, parts)) as model:
        if (rebuilt := _rebuilt(model, row, device)) is None:
            yield EvaluatedModel(model, in_words(parts))
        else:
            yield EvaluatedModel(rebuilt, in_words(parts), model)


def _rebuilt(claimed: SandboxedModel, row: Row, device: torch.device) -> nn.Module | None:
    """Return the network rebuilt from a description of its layers; None for a row without a certificate whose layers are
    others, or which answers otherwise.
    """
    if not row.described and row.submission.division == "open":
        return None
    try:
        network = rebuild(*claimed.description(not row.described))
        start_device(device)
        network = network.to(device)
        cache_weights(network)
        stop_filling()
        check_output(network, row.submission.name, row.track)
        if not row.described:
            generator = torch.Generator().manual_seed(secrets.randbits(63))  # unknown to the model
            images = torch.rand((MIN_ROWS, *row.track.data.shape), generator=generator).to(device)
            if not torch.equal(*(logits(model, images, MIN_ROWS) for model in (claimed, network))):
                return None
    except BenchmarkError as error:
        if row.described:
            raise BenchmarkError(f"{row.name}: {error}") from None
        return None
    return network
