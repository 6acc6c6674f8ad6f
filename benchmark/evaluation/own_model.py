"""Check a user's torch module, evaluate it in a fixed state, and leave it as it was."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, SupportsFloat, SupportsIndex, get_args

import torch
from torch import nn

from benchmark.attacks.gradients import FiniteGradients, margin_gradient
from benchmark.attacks.prediction import MIN_ROWS, padded
from benchmark.runtime.errors import BenchmarkError, near_miss, out_of_memory, said
from benchmark.specs.threat import AttackSpec, Engine, Norm, ThreatModel, as_number
from benchmark.specs.training import radius_problem

ROUNDING = 1e-6  # by which a pixel may lie outside [0, 1]
BLIND = 0.1  # share of gradients that are not finite, and of robust images, above which an attack says nothing
MIXING = 1e-4  # of the largest logit, by which an image's logits may differ with the other images of its batch
NORMS: dict[str, Norm] = {"linf": "Linf", "l∞": "Linf", "inf": "Linf", "∞": "Linf", "l2": "L2", "2": "L2"}
# torch's switches for the precision of float32 products by device type: object, attribute, value for float32. On a GPU the
# older switches, which set the newer ones too: a model may read either.
PRODUCTS = {
    "cpu": tuple((getattr(torch.backends.mkldnn, kind), "fp32_precision", "ieee") for kind in ("matmul", "conv", "rnn")),
    "cuda": ((torch.backends.cuda.matmul, "allow_tf32", False), (torch.backends.cudnn, "allow_tf32", False)),
}
_TURN = threading.RLock()


class TimeIsUp(Exception):
    """The limit that the caller gave has passed."""


def autoattack_spec(norm: object, eps: Any, seed: SupportsIndex, images: torch.Tensor) -> AttackSpec:
    """Return AutoAttack's specification; the norm may have any of its usual names, in any case: Linf or L∞, and L2."""
    usual = NORMS.get(str(norm).lower())
    if not usual:
        raise BenchmarkError(f"unknown norm {norm!r}; give one of {' and '.join(get_args(Norm))}")
    number = whole("seed", seed, range(2**32), "from 0 to 2**32 - 1")
    return AttackSpec(attack="autoattack", norm=usual, eps=radius(usual, eps, images), seed=number)


def check_engine(engine: object) -> None:
    """Raise a BenchmarkError for an engine that AutoAttack has not."""
    if engine not in get_args(Engine):
        raise BenchmarkError(f"unknown engine {engine!r}{near_miss(str(engine), get_args(Engine))}")


def radius(norm: Norm, eps: Any, images: torch.Tensor, name: str = "eps") -> float:
    """Return a radius in pixels for images (n, c, h, w), from any real number, also numpy's and 0-d tensors, or from text
    such as "8/255". Raise a BenchmarkError, which calls it `name`, for anything else, bools too.
    """
    if getattr(eps, "ndim", 0):
        raise BenchmarkError(f"{name} has shape {tuple(eps.shape)}; give one number from 0 on, in pixels of [0, 1]")
    value = as_number(eps.item() if hasattr(eps, "item") else eps)
    if isinstance(value, bool) or not isinstance(value, SupportsFloat) or not 0 <= float(value) < float("inf"):
        raise BenchmarkError(f"{name} {eps!r} is no radius; give a number from 0 on, in pixels of [0, 1]")
    size = float(value)
    if norm == "Linf" and size > 1:
        raise BenchmarkError(f"Linf eps {size:g} is above 1; radii are in pixels in [0, 1], so 8/255 is 0.0314")
    if images.ndim == 4 and len(images):
        channels, height, width = images.shape[1:]
        if problem := radius_problem(ThreatModel(norm=norm, eps=size), (channels, height, width)):
            raise BenchmarkError(f"{problem.replace('eps', name)}, so 128/255 is 0.502")
    return size


def whole(name: str, given: SupportsIndex, allowed: range, words: str) -> int:
    """Return an integer; raise a BenchmarkError unless it is one and in the range, which `words` describe."""
    try:
        value = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        value = None
    if value is None or value not in allowed:
        raise BenchmarkError(f"{name} must be a whole number {words}, not {given!r}")
    return value


def device_of(model: nn.Module, images: torch.Tensor, device: torch.device | str | None) -> torch.device:
    """Return the device that the model is on, where it is evaluated."""
    if not isinstance(model, nn.Module):
        raise BenchmarkError(f"the model is a {type(model).__name__}; give a torch.nn.Module")
    if not isinstance(images, torch.Tensor):
        raise BenchmarkError(f"images are a {type(images).__name__}; give a torch.Tensor (n, c, h, w)")
    if any(nn.parameter.is_lazy(t) for t in (*model.parameters(), *model.buffers())):
        raise BenchmarkError("the model has lazy layers without weights; call it once on an image and load its weights")
    own = next((t.device for t in (*model.parameters(), *model.buffers())), None)
    if own and own.type == "meta":
        raise BenchmarkError("the model is on meta, where it has no weights; load it on a device")
    if device is None:
        return own or images.device
    try:
        given = torch.device(device)
    except RuntimeError:
        raise BenchmarkError(f"unknown device {device!r}; give one such as 'cpu' or 'cuda'") from None
    if own and (given.type, given.index or 0) != (own.type, own.index or 0):
        raise BenchmarkError(f"the model is on {own}, not on {given}; move it with model.to({str(given)!r})")
    return own or given


def inputs(images: torch.Tensor, labels: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return copies on the device, images (n, c, h, w) float32 in [0, 1], labels (n,) int64; or raise a BenchmarkError."""
    if images.ndim != 4 or not images.is_floating_point() or not all(images.shape[1:]):
        raise BenchmarkError(f"images are {images.dtype} {tuple(images.shape)}; give floats (n, c, h, w) in [0, 1]")
    if not isinstance(labels, torch.Tensor):
        raise BenchmarkError(f"labels are a {type(labels).__name__}; give a torch.Tensor of one integer an image")
    if labels.shape != images.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise BenchmarkError(
            f"labels are {labels.dtype} {tuple(labels.shape)} for {len(images)} images; give one integer an image"
        )
    images = images.detach()
    low, high = (float(images.min()), float(images.max())) if len(images) else (0.0, 1.0)
    if not -ROUNDING <= low <= high <= 1 + ROUNDING:  # nor is NaN
        raise BenchmarkError(f"images run from {low:.4g} to {high:.4g}; give pixels in [0, 1] and normalise inside the model")
    return images.float().to(device, copy=True).contiguous().clamp(0, 1), labels.long().to(device)


@torch.no_grad()
def check(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> int:
    """Run the model on a few images and return its number of classes.

    Raises:
        BenchmarkError: the model fails, changes its input, returns no logits, or mixes images; or a label is no class.
    """
    image = images[:1].clone()
    before, version = image.clone(), image._version
    output = _run(model, image)
    if image._version != version or not torch.equal(image, before):  # `.data` changes no version
        raise BenchmarkError(
            "the model changes its input in place, and so the images under attack; let it work on a copy, as by x.clone()"
        )
    if not isinstance(output, torch.Tensor) or output.ndim != 2 or len(output) != 1:
        what = tuple(output.shape) if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
        hint = "; give `logits=lambda output: output.logits`" if hasattr(output, "logits") else ""
        raise BenchmarkError(f"the model returns {what} for one image; it must return logits (n, classes){hint}")
    if labels.min() < 0 or labels.max() >= output.shape[1]:
        worst = int(labels[(labels < 0) | (labels >= output.shape[1])][0])
        raise BenchmarkError(f"label {worst} is outside 0 to {output.shape[1] - 1}, the classes of the model")
    _check_mixing(model, images[:MIN_ROWS])
    return int(output.shape[1])


def _run(model: nn.Module, images: torch.Tensor) -> Any:
    """Return the model's output; raise a BenchmarkError where it fails."""
    try:
        return model(images.clone() if len(images) > 1 else images)
    except Exception as error:  # any that a model raises
        if out_of_memory(error):
            raise
        weights = {p.dtype for p in model.parameters() if p.is_floating_point()} - {torch.float32}
        hint = f"; its weights are {weights.pop()}: call model.float()" if weights else ""
        why = str(error).splitlines()[0] if isinstance(error, RuntimeError) and str(error) else said(error)
        what = "one image" if len(images) == 1 else f"{len(images)} images"
        raise BenchmarkError(f"the model fails on {what} of float32 on {images.device}: {why}{hint}") from error


def _check_mixing(model: nn.Module, images: torch.Tensor) -> None:
    """Raise a BenchmarkError where an image's logits depend on the other images of its batch. Random models are left out."""
    together, again = _run(model, images), _run(model, images)
    if len(images) < 2 or len(together) != len(images) or not torch.equal(together, again):
        return
    alone = torch.cat([_run(model, padded(image))[:1] for image in images.split(1)])
    apart = float((alone - together).abs().max())
    if apart > MIXING * (1 + float(together.abs().max())):
        raise BenchmarkError(
            f"the model mixes the images of a batch: alone and among others a logit of an image differs by {apart:.3g}; let "
            "it treat each by itself (`batch_first=True`, tracked batch statistics, no scales of a whole batch)"
        )


def odd_gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> list[str]:
    """Return a warning that names the images at which the model's gradient is not finite, if any."""
    odd: list[int] = []
    for rows in torch.arange(len(images), device=images.device).split(batch_size):
        gradient, _ = margin_gradient(model, images[rows], labels[rows])
        if gradient is not None:
            odd += rows[~torch.isfinite(gradient).flatten(1).all(1)].tolist()
    shown = ", ".join(map(str, odd[:5])) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
    return [f"the input gradient is not finite at images {shown}: attacks follow 0 there"] if odd else []


def after_attack(model: FiniteGradients, robust: torch.Tensor, again: torch.Tensor) -> list[str]:
    """Return warnings about gradients that were not finite during an attack, and verdicts that differ between two passes.

    Args:
        robust: (n,) bool, images that the attack did not break; again: (n,) bool, images that another pass gets right.

    Raises:
        BenchmarkError: more than a tenth of the gradients were not finite, and more than a tenth of the images are robust.
    """
    share = model.odd / max(model.asked, 1)
    if share > BLIND and int(robust.sum()) > BLIND * len(robust):
        raise BenchmarkError(
            f"the model's input gradient is not finite (NaN or infinity) at {share:.0%} of the points that the attack asked "
            "about; AutoAttack cannot evaluate it"
        )
    words = [f"{model.odd} of {model.asked} gradients that the attack met were not finite"] if model.odd else []
    if other := int((again != robust).sum()):
        words.append(f"on {other} of {len(robust)} images the model is right in one pass and wrong in another")
    return words


@contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Keep the model in evaluation mode, frozen, with products in float32 and torch's generators forked. Threads take turns.

    Afterwards modes, parameters, buffers, `requires_grad`, precisions and tracers are as before.
    """
    generators = [device] if device.type == "cuda" else []
    with _TURN:
        tracing, gradients, dtype = sys.gettrace(), torch.is_grad_enabled(), torch.get_default_dtype()
        with _restored(model), _in_float32(device.type):
            try:
                with (
                    torch.inference_mode(False),
                    torch.autocast(device.type, enabled=False),
                    torch.random.fork_rng(generators),
                ):
                    yield
            except BenchmarkError:
                raise
            except (Exception, SystemExit) as error:  # any that a later pass of the model raises
                if out_of_memory(error) or isinstance(error, TimeIsUp):
                    raise
                words = f"the model, or the evaluation of it, fails: {said(error)[:500]}"
                raise BenchmarkError(words) from error
            finally:
                torch.set_grad_enabled(gradients)
                torch.set_default_dtype(dtype)
                sys.settrace(tracing)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, frozen, and restore it afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    places: list[Any] = [place for m in model.modules() for place in (m._buffers, m._parameters)]
    tensors = [(place, {**place}) for place in places if isinstance(place, dict)]
    copies = [(tensor, tensor.detach().clone()) for tensor in (*model.buffers(), *model.parameters())]
    try:
        with suppress(NotImplementedError):  # a program of torch.export's has no modes
            model.eval()
    except Exception as error:  # of a model's own `train`
        for module, was in modes:
            module.training = was
        raise BenchmarkError(f"the model does not go into evaluation mode: {said(error)}") from error
    for parameter, _ in gradients:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, was in modes:
            module.training = was
        for place, content in tensors:
            place.clear()
            place.update(content)
        with torch.no_grad():
            for tensor, copy in copies:
                if tensor.layout != torch.strided or not torch.equal(tensor, copy):
                    tensor.copy_(copy)
        for parameter, required in gradients:
            parameter.requires_grad_(required)


@contextmanager
def _in_float32(device: str) -> Iterator[None]:
    switches = PRODUCTS.get(device, ())
    before = [getattr(switch, name) for switch, name, _ in switches]
    for switch, name, exact in switches:
        setattr(switch, name, exact)
    try:
        yield
    finally:
        for (switch, name, _), was in zip(switches, before, strict=True):
            setattr(switch, name, was)
