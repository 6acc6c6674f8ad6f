"""AutoAttack on anybody's torch module: `benchmark.attacks.auto_attack`. Needs no submission, no DVC and no files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_args

import torch
from torch import nn

from benchmark.errors import BenchmarkError, near_miss
from benchmark.evaluate import judge, run_attack
from benchmark.threats import AttackSpec, Engine, Norm


@dataclass(frozen=True)
class Attacked:
    """
    Attributes:
        adversarial: (n, c, h, w) float32, in the ball and in [0, 1]: misclassified where an attack succeeded, else the
            clean image.
        robust: (n,) bool: right on the clean image and not broken.
        remaining: how many images stood after each component, in order; empty when none was run.
        warnings: signs that the evaluation may be unreliable.
    """

    adversarial: torch.Tensor
    robust: torch.Tensor
    remaining: dict[str, int]
    warnings: tuple[str, ...] = ()


def auto_attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    norm: Norm,
    eps: float,
    engine: Engine = "fast",
    seed: int = 0,
    device: torch.device | str | None = None,
    batch_size: int = 128,
) -> Attacked:
    """AutoAttack, standard version (Croce and Hein 2020), with every result put into the ball and asked again.

    Args:
        model: images (n, c, h, w) in [0, 1] to logits (n, classes), at least 4; normalisation belongs inside. It is run
            in evaluation mode and in float32, and left as it was.
        labels: (n,) integers.
        norm: "Linf" or "L2"; eps: the radius in pixels of [0, 1]. 0 gives the clean accuracy.
        engine: "fast", or "reference" for the authors' files untouched.
        seed: of all that is random. With the fast engine an image's random numbers depend on the seed and on its place
            in `images` alone.
        device: where the model is, which is where it runs; found from its parameters unless given.
        batch_size: images in one call of the model, at most.

    Returns:
        Tensors on the device of `images`.

    Raises:
        BenchmarkError: bad input, with what to do; or a model whose logits or input gradients are not finite.
    """
    spec = _specification(norm, eps, engine, seed, batch_size)
    place = _device(model, images, device)
    with _evaluating(model):
        _check(model, images, labels, place)
        inputs, targets = images.detach().float().to(place), labels.long().to(place)
        if not len(images):
            return Attacked(images.detach().float(), torch.zeros(0, dtype=torch.bool, device=images.device), {})
        if eps == 0:
            right = judge(model, inputs, targets, batch_size).right
            return Attacked(inputs.to(images.device), right.to(images.device), {})
        state, judged = run_attack(model, inputs, targets, spec, batch_size=batch_size, engine=engine)
    return Attacked(
        state.adversarial.to(images.device), judged.right.to(images.device), state.remaining, tuple(state.warnings)
    )


def _specification(norm: str, eps: float, engine: str, seed: int, batch_size: int) -> AttackSpec:
    for word, known in ((norm, get_args(Norm)), (engine, get_args(Engine))):
        if word not in known:
            raise BenchmarkError(
                f"unknown {'norm' if known == get_args(Norm) else 'engine'} {word!r}{near_miss(word, known)}"
            )
    if not eps >= 0 or eps == float("inf"):
        raise BenchmarkError(f"eps {eps} is no radius; give a number from 0 on, in pixels of [0, 1]")
    if norm == "Linf" and eps > 1:
        raise BenchmarkError(f"Linf eps {eps} is above 1; radii are in pixels in [0, 1], so 8/255 is 0.0314")
    if seed < 0 or batch_size < 1:
        raise BenchmarkError(f"seed {seed} and batch_size {batch_size}: give a seed from 0 and a batch_size from 1 on")
    return AttackSpec.model_validate({"attack": "autoattack", "norm": norm, "eps": eps, "seed": seed})


def _device(model: nn.Module, images: torch.Tensor, device: torch.device | str | None) -> torch.device:
    held = next((t.device for t in (*model.parameters(), *model.buffers())), images.device)
    if device is None:
        return held
    wanted = torch.device(device)
    if wanted.type != held.type or wanted.index not in (None, held.index):
        raise BenchmarkError(f"the model is on {held}, not on {wanted}; move it with model.to({str(wanted)!r})")
    return held


def _check(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, device: torch.device) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise BenchmarkError(f"images are {images.dtype} {tuple(images.shape)}; give floats (n, c, h, w) in [0, 1]")
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
    with torch.no_grad():
        output = model(images[:1].detach().float().to(device))
    if output.ndim != 2 or len(output) != 1:
        raise BenchmarkError(
            f"the model returns {tuple(output.shape)} for one image; it must return logits (n, classes)"
        )
    if labels.min() < 0 or labels.max() >= output.shape[1]:
        worst = int(labels[(labels < 0) | (labels >= output.shape[1])][0])
        raise BenchmarkError(f"label {worst} is outside 0 to {output.shape[1] - 1}, the classes of the model")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode with frozen parameters, without TF32; everything as it was afterwards."""
    training = [(module, module.training) for module in model.modules()]
    frozen = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        model.eval().requires_grad_(False)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        for module, was in training:
            module.training = was
        for parameter, was in frozen:
            parameter.requires_grad_(was)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
