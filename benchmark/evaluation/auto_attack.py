"""AutoAttack on anybody's torch module. Needs no submission, no DVC and no files."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, SupportsFloat, SupportsIndex, get_args

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import nn

from benchmark.attacks.engine.slots import fuller
from benchmark.evaluation.division import autoattack_flags
from benchmark.evaluation.run_attack import Report, run_attack
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs.threat import AttackSpec, Engine, Norm
from benchmark.verdicts.internals import flops
from benchmark.verdicts.pieces import fitting, room
from benchmark.verdicts.prediction import predict

PRODUCTS = (
    (torch.backends.cuda, "matmul"),
    (torch.backends.cudnn, "conv"),
    (torch.backends.mkldnn, "matmul"),
    (torch.backends.mkldnn, "conv"),
)


@dataclass(frozen=True)
class Attacked:
    """
    Attributes:
        adversarial: (n, c, h, w) float32, in the ball and in [0, 1]: misclassified where an attack succeeded, else the
            clean image.
        robust: (n,) bool: right on the clean image and not broken. A random model has broken an image as soon as one
            pass over what an attack found is wrong; it may be right about it in another.
        remaining: how many images were robust after each component, in order, the last as many as are in `robust`;
            empty when none was run.
        engine: which engine ran.
        warnings: signs that the evaluation may be unreliable, AutoAttack's own among them.
    """

    adversarial: torch.Tensor
    robust: torch.Tensor
    remaining: dict[str, int]
    engine: Engine
    warnings: tuple[str, ...] = ()


def auto_attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    norm: Norm,
    eps: SupportsFloat,
    engine: Engine = "fast",
    seed: SupportsIndex = 0,
    device: torch.device | str | None = None,
    batch_size: SupportsIndex = 128,
    progress: bool | None = None,
) -> Attacked:
    """AutoAttack, standard version (Croce and Hein 2020), with every result put into the ball and asked again.

    Args:
        model: images (n, c, h, w) in [0, 1] to logits (n, classes), at least 4; normalisation belongs inside. It is run
            in evaluation mode and in float32, and left as it was. It may not change its input in place.
        labels: (n,) integers.
        norm: "Linf" or "L2"; eps: the radius in pixels of [0, 1], any real number, numpy's and 0-d tensors too. 0 gives
            the clean accuracy.
        engine: "fast", or "reference" for the authors' files untouched.
        seed: of all that is random. With the fast engine an image's random numbers depend on the seed and on its place
            in `images` alone.
        device: where the model is, which is where it runs; found from its parameters unless given.
        batch_size: images in one call of the model, at most; the fast engine's search takes up to four times as many where
            the model is small. On a GPU attacks take as many as its memory holds, up to 4,096, and verdicts fewer than
            `batch_size` where it holds no more.
        progress: whether to say on stderr what is running, and for how long; by default where stderr is a terminal.

    Returns:
        Tensors on the device of `images`.

    Raises:
        BenchmarkError: bad input, with what to do; a model that changes its input; or one whose logits or input
            gradients are not finite.
    """
    batch_size = _whole("batch_size", batch_size, range(1, sys.maxsize), "from 1 on")
    spec = _specification(norm, eps, engine, seed)
    place = _device(model, images, device)
    with _evaluating(model, place):
        _check(model, images, labels, place)
        # copies: a model may change its input
        inputs, targets = images.detach().float().to(place, copy=True).contiguous(), labels.long().to(place)
        flags: list[str] = []
        remaining: dict[str, int] = {}
        if not len(images):
            adversarial, correct = inputs, torch.zeros(0, dtype=torch.bool)
        elif eps == 0:
            adversarial, correct = inputs, predict(model, inputs, targets, batch_size).correct
        else:
            model = model if place.type == "cpu" else fitting(model, inputs[:batch_size])
            flags = autoattack_flags(model, inputs[:batch_size].clone(), targets[:batch_size])
            together = None if place.type == "cpu" else room(model, inputs[:batch_size])
            search = _calls(model, inputs, together or batch_size)
            with _reporting(progress) as report:
                state, again = run_attack(
                    model, inputs, targets, spec, batch_size=batch_size, engine=engine, report=report, search=search,
                    together=together,
                )  # fmt: skip
            adversarial, correct, remaining = state.adversarial, state.robust, state.remaining
            flags += state.warnings
            other = int((again.correct != correct).sum())
            if other:
                flags.append(f"on {other} of {len(images)} images the model is right in one pass and wrong in another")
    return Attacked(adversarial.to(images.device), correct.to(images.device), remaining, engine, tuple(flags))


def _calls(model: nn.Module, inputs: torch.Tensor, batch_size: int) -> dict[str, int]:
    """How the search asks the model: images in a call, and operations on one where they are known."""
    with torch.random.fork_rng([]):  # a random model's next draws are for the attack
        work = flops(model, inputs) if inputs.device.type == "cpu" else 0
    return {"slots": fuller(batch_size, inputs, work), "flops": work}


def _specification(norm: str, eps: SupportsFloat, engine: str, seed: SupportsIndex) -> AttackSpec:
    for kind, word, known in (("norm", norm, get_args(Norm)), ("engine", engine, get_args(Engine))):
        if word not in known:
            raise BenchmarkError(f"unknown {kind} {word!r}{near_miss(str(word), known)}")
    radius, seed = _radius(eps), _whole("seed", seed, range(2**32), "from 0 to 2**32 - 1")
    if norm == "Linf" and radius > 1:
        raise BenchmarkError(f"Linf eps {radius:g} is above 1; radii are in pixels in [0, 1], so 8/255 is 0.0314")
    return AttackSpec.model_validate({"attack": "autoattack", "norm": norm, "eps": radius, "seed": seed})


def _radius(eps: Any) -> float:
    """Any real number as a float: numpy's scalars and tensors without axes too, but no bool, which is a mistake."""
    if getattr(eps, "ndim", 0):
        raise BenchmarkError(f"eps has shape {tuple(eps.shape)}; give one number from 0 on, in pixels of [0, 1]")
    value = eps.item() if hasattr(eps, "item") else eps
    if isinstance(value, bool) or not isinstance(value, SupportsFloat) or not 0 <= float(value) < float("inf"):
        raise BenchmarkError(f"eps {eps!r} is no radius; give a number from 0 on, in pixels of [0, 1]")
    return float(value)


def _whole(name: str, given: SupportsIndex, allowed: range, words: str) -> int:
    try:
        value = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        value = None
    if value is None or value not in allowed:
        raise BenchmarkError(f"{name} {given!r} is none; give a whole number {words}")
    return value


def _device(model: nn.Module, images: torch.Tensor, device: torch.device | str | None) -> torch.device:
    if not isinstance(model, nn.Module):
        raise BenchmarkError(f"the model is a {type(model).__name__}; give a torch.nn.Module")
    if not isinstance(images, torch.Tensor):
        raise BenchmarkError(f"images are a {type(images).__name__}; give a torch.Tensor (n, c, h, w)")
    held = next((t.device for t in (*model.parameters(), *model.buffers())), None)
    if held and held.type == "meta":
        raise BenchmarkError("the model is on meta, where it has no weights; load it on a device")
    if device is None:
        return held or images.device
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise BenchmarkError(f"unknown device {device!r}; give one such as 'cpu' or 'cuda'") from None
    if held and (wanted.type != held.type or (wanted.index or 0) != (held.index or 0)):
        raise BenchmarkError(f"the model is on {held}, not on {wanted}; move it with model.to({str(wanted)!r})")
    return held or wanted


def _check(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, device: torch.device) -> None:
    if images.ndim != 4 or not images.is_floating_point() or not all(images.shape[1:]):
        raise BenchmarkError(f"images are {images.dtype} {tuple(images.shape)}; give floats (n, c, h, w) in [0, 1]")
    if not isinstance(labels, torch.Tensor):
        raise BenchmarkError(f"labels are a {type(labels).__name__}; give a torch.Tensor of one integer an image")
    if labels.shape != images.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise BenchmarkError(
            f"labels are {labels.dtype} {tuple(labels.shape)} for {len(images)} images; give one integer an image"
        )
    if not len(images):
        return
    if not torch.isfinite(images).all() or images.min() < 0 or images.max() > 1:
        low, high = float(images.min()), float(images.max())
        raise BenchmarkError(
            f"images run from {low:.4g} to {high:.4g}; give pixels in [0, 1] and normalise inside the model"
        )
    one = images[:1].detach().float().to(device, copy=True)
    before, version = one.clone(), one._version
    try:
        with torch.no_grad():
            output = model(one)
    except (RuntimeError, TypeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise BenchmarkError(f"the model fails on one image of float32 on {device}: {why}") from error
    if one._version != version or not torch.equal(one, before):  # `.data` changes no version
        raise BenchmarkError(
            "the model changes its input in place, and so the images under attack; let it work on a copy, as by x.clone()"
        )
    if not isinstance(output, torch.Tensor) or output.ndim != 2 or len(output) != 1:
        what = tuple(output.shape) if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
        raise BenchmarkError(f"the model returns {what} for one image; it must return logits (n, classes)")
    known = labels.long()
    if known.min() < 0 or known.max() >= output.shape[1]:
        worst = int(known[(known < 0) | (known >= output.shape[1])][0])
        raise BenchmarkError(f"label {worst} is outside 0 to {output.shape[1] - 1}, the classes of the model")


@contextmanager
def _reporting(wanted: bool | None) -> Iterator[Report]:
    """Says what is running on stderr: a line that runs along on a terminal, and a line each time elsewhere."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if not (terminal if wanted is None else wanted):
        yield lambda _: None
        return
    console = Console(stderr=True, soft_wrap=True)
    if not terminal:
        yield lambda text: console.print(text, highlight=False, markup=False)
        return
    text = TextColumn("{task.description}", markup=False)
    with Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=console, transient=True) as shown:
        task = shown.add_task("AutoAttack", total=None)
        yield lambda text: shown.update(task, description=text)


@contextmanager
def _evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model in evaluation mode, frozen, products in float32, torch's generators apart; all is as it was afterwards."""
    training = [(module, module.training) for module in model.modules()]
    frozen = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    products = [getattr(place, part) for place, part in PRODUCTS]
    before = [product.fp32_precision for product in products]
    generators = [device] if device.type == "cuda" else []
    try:
        model.eval().requires_grad_(False)
        for product in products:
            product.fp32_precision = "ieee"
        with torch.inference_mode(False), torch.autocast(device.type, enabled=False), torch.random.fork_rng(generators):
            yield
    finally:
        for module, was in training:
            module.training = was
        for parameter, was in frozen:
            parameter.requires_grad_(was)
        for product, precision in zip(products, before, strict=True):
            product.fp32_precision = precision
