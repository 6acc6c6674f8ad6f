"""AutoAttack on any torch module. It needs no submission, no DVC and no files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import SupportsFloat, SupportsIndex

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import nn

from benchmark.attacks import autoattack
from benchmark.attacks.engine.slots import fuller
from benchmark.attacks.gradients import FiniteGradients
from benchmark.attacks.internals import flops
from benchmark.attacks.pieces import fitting, room
from benchmark.attacks.prediction import Predictions, predict
from benchmark.evaluation import own_model
from benchmark.evaluation.division import PROBABILITIES, autoattack_flags
from benchmark.evaluation.run_attack import Attack, Report
from benchmark.records.accuracy import chance_warnings
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import Engine, Norm


@dataclass(frozen=True)
class Attacked:
    """The result of AutoAttack. A random model's image counts as broken once a single pass over its adversarial version is
    wrong; another pass may be right.
    """

    adversarial: torch.Tensor  # (n, c, h, w) float32, in the ball and [0, 1]: misclassified where broken, else clean
    robust: torch.Tensor  # (n,) bool: right on the clean image and not broken
    clean: torch.Tensor  # (n,) bool: right on the clean image
    remaining: dict[str, int]  # robust images after each component, in order; empty when none was run
    engine: Engine  # that ran
    warnings: tuple[str, ...] = ()  # signs that the evaluation may be unreliable, AutoAttack's own among them


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
    """Run AutoAttack, standard version (Croce and Hein 2020); put every result into the ball and evaluate it again.

    Calls in several threads take turns, since they change settings of the process.

    Args:
        model: images (n, c, h, w) in [0, 1] to logits (n, classes); normalisation belongs inside. It is run in evaluation
            mode and in float32, and left as it was. It may not change its input in place, nor mix the images of a batch.
            With fewer than 4 classes APGD-T is left out, with a warning.
        labels: (n,) integers.
        norm: "Linf" or "L2"; eps: the radius in pixels of [0, 1], any real number, numpy's and 0-d tensors too, or text
            such as "8/255". 0 gives the clean accuracy.
        engine: "fast", or "reference" for the authors' files untouched.
        seed: of everything random. With the fast engine an image's random numbers depend on the seed and on its place
            in `images` alone.
        device: where the model is and runs; by default that of its parameters.
        batch_size: images in one call of the model, at most; the fast engine's search takes up to four times as many where
            the model is small. On a GPU attacks take as many as its memory holds, up to 4,096, and verdicts fewer than
            `batch_size` where it holds no more.
        progress: whether to show on stderr what is running, and for how long; by default where stderr is a terminal.

    Returns:
        Tensors on the device of `images`.

    Raises:
        BenchmarkError: bad input, with what to do; a model that fails, changes its input, mixes the images of a batch, has no
            input gradient, mostly one that is not finite, or logits that are probabilities or not finite.
    """
    size = own_model.whole("batch_size", batch_size, range(1, sys.maxsize), "from 1 on")
    place = own_model.device_of(model, images, device)
    own_model.check_engine(engine)
    spec = own_model.autoattack_spec(norm, eps, seed, images)
    with own_model.evaluating(model, place), reporting(progress) as report:
        inputs, targets = own_model.inputs(images, labels, place)
        adversarial, warnings, remaining = inputs, list[str](), dict[str, int]()
        clean = robust = torch.zeros(0, dtype=torch.bool)
        if len(images):
            model, predictions, warnings = first_look(model, inputs, targets, size, report, attacked=bool(spec.eps))
            clean = robust = predictions.correct
        if len(images) and spec.eps:
            together, search = calls(model, inputs, size)
            finite = FiniteGradients(model)
            attack = Attack(finite, spec, size, engine, report, autoattack, search, together)
            state, again = attack.verdict([attack.on(inputs, targets)], targets)
            adversarial, robust, remaining = state.adversarial, state.robust, state.remaining
            warnings += state.warnings + own_model.after_attack(finite, robust, again.correct)
    adversarial, robust, clean = (tensor.to(images.device) for tensor in (adversarial, robust, clean))
    return Attacked(adversarial, robust, clean, remaining, engine, tuple(dict.fromkeys(warnings)))


def first_look(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch_size: int, report: Report, *, attacked: bool = True
) -> tuple[nn.Module, Predictions, list[str]]:
    """Return the model, in pieces where memory is short; its clean predictions; and warnings about model and labels.

    Args:
        attacked: whether an attack follows, which needs gradients: only then are they tried and warned about.

    Raises:
        BenchmarkError: the model cannot be evaluated (`own_model.check`), or is attacked and returns probabilities.
    """
    place = images.device
    devices = [place] if place.type == "cuda" else []
    with torch.random.fork_rng(devices):  # a random model's next draws are for the attack
        classes = own_model.check(model, images, labels)
        model = model if place.type == "cpu" or not attacked else fitting(model, images[:batch_size], report)
        predictions = predict(model, images, labels, batch_size)
        warnings = chance_warnings(int(predictions.correct.sum()), len(labels), classes)
        if attacked:
            warnings += autoattack_flags(model, images[:batch_size].clone(), labels[:batch_size])
            if PROBABILITIES in warnings:
                raise BenchmarkError(PROBABILITIES)
            warnings += own_model.odd_gradients(model, images, labels, batch_size)
    return model, predictions, warnings


def calls(model: nn.Module, inputs: torch.Tensor, batch_size: int) -> tuple[int | None, dict[str, int]]:
    """Return how the search calls the model: on a GPU how many images are attacked together; and the images in a call, with
    the operations on one where they are known.
    """
    on_gpu = inputs.device.type != "cpu"
    together = room(model, inputs[:batch_size]) if on_gpu else None
    with torch.random.fork_rng([]):  # a random model's next draws are for the attack
        work = 0 if on_gpu else flops(model, inputs)[0]
    return together, {"slots": fuller(together or batch_size, inputs, work), "flops": work}


@contextmanager
def reporting(progress: bool | None) -> Iterator[Report]:
    """Show on stderr what is running: a progress line on a terminal, a new line each time elsewhere."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if not (terminal if progress is None else progress):
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
