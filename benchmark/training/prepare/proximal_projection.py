"""CertViT's proximal projection of a trained network (Gupta and Verma 2023, algorithm 3): each layer alone gets weights
of a smaller measure that still fit its outputs on training images.

The mathematics stands in benchmark/training/proximal.py, which layers and outputs in layer_records.py. Biases stay. A
convolution's weight is the matrix that acts on patches. A layer that is never called as a module stays as it is and is
named: `L2Attention.value`, whose weight acts in A_h W_V.

What differs from the paper or its released code: y is the pre-trained output, not W x less a gradient; images are those
of training, never of the test; layers before GELU keep their pre-activations; `spectral`; and weights are pulled into
the accuracy set, where algorithm 1's own arrive only in the limit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.training.layer_records import Layer, Seen, layers_of, record
from benchmark.training.parameters import Count, Positive
from benchmark.training.preparation import History, Place, Tensors
from benchmark.training.proximal import (
    TOLERANCE,
    AccuracySet,
    douglas_rachford,
    quantile_threshold,
    soft_threshold,
    spectral_prox,
)

Measure = Literal["l1", "l1_quantile", "spectral"]


def prepare(
    model: nn.Module,
    start: nn.Module,
    train_split: tuple[Tensor, Tensor],
    place: Place,
    *,
    measure: Measure = "spectral",
    gamma: Positive = 0.1,
    eta: Positive = 0.1,
    absolute: bool = False,
    relaxation: Annotated[float, Field(gt=0, lt=2)] = 1.2,
    outer: Count = 6,
    inner: Count = 15,
    batch_size: Count = 128,
    samples: Count = 1000,
    rerecord: bool = False,
    head: bool = False,
    inside: bool = True,
) -> History:
    """Change the weights of `model`, whose outputs, with the weights that it comes with, are kept.

    Args:
        measure: "l1", the sum of |W|, as published; "l1_quantile", the released code's threshold at the gamma-quantile
            of |Z|; "spectral", the spectral norm of the layer's matrix.
        gamma: the step of the proximity operator, as a share of the largest |W| for l1, of the sum of singular values
            for spectral. How fast iterations converge depends on it, not where to.
        eta: the mean squared distance that each batch may have, as a share of the mean squared norm of the layer's
            outputs.
        absolute: gamma and eta are in the layer's own units instead, as published; l1_quantile's gamma stays a share.
        relaxation, outer: of the Douglas-Rachford iterations. inner: the most sweeps over the batches in each.
        batch_size: the most images of a batch. samples: the most training images, drawn by the place's seed.
        rerecord: inputs are recorded where the layers before are changed already, outputs in the trained network; else
            no layer sees another's change, and any order gives the same bytes.
        head: whether the last nn.Linear takes part.
        inside: weights outside the accuracy set by more than TOLERANCE are pulled in; else they are algorithm 1's.

    Returns:
        The tolerance, the layers that are never called, and each other layer's name, matrix, exact spectral norms of
        that matrix before and after, share of zeros, eta, sweeps, and largest mean squared distance of a batch over
        eta, of the weights as they are stored (`distance`; where they are inside, at most 1 + TOLERANCE) and before
        they were pulled in.

    Raises:
        BenchmarkError: a gamma out of its range, a layer that is not covered, or an eta that outputs cannot keep.
    """
    settings = Settings(measure, gamma, eta, absolute, relaxation, outer, inner, inside)
    if gamma >= 1 and (measure == "l1_quantile" or not absolute):
        raise BenchmarkError(f"gamma {gamma} is a share, and should be below 1")
    layers = layers_of(model, head=head)
    images = place.drawn(train_split[0], samples)
    batches = images.tensor_split(-(-len(images) // batch_size))
    trained, changed = (copy.deepcopy(model).requires_grad_(False).eval() for _ in range(2))

    def make(layer: Layer) -> tuple[Tensors, History]:
        seen = record(layer, trained, changed if rerecord else trained, batches, place.device)
        return _constrained(layer, seen, settings) if seen else ({}, {})

    histories: list[JsonValue] = []
    untouched: list[JsonValue] = []
    for layer in layers:
        tensors, history = place.kept(f"layer-{layer.name}", partial(make, layer))
        if not tensors:
            untouched.append(layer.name)
            continue
        changed.get_submodule(layer.name).get_parameter("weight").copy_(tensors["weight"])
        histories.append(history)
        place.say(f"{layer.name}: spectral norm {history['norm_before']:.4g} to {history['norm_after']:.4g}")
    model.load_state_dict(changed.state_dict())
    return {"tolerance": TOLERANCE, "never_called": untouched, "layers": histories}


@dataclass(frozen=True)
class Settings:
    """Those parameters of `prepare` that a layer's own work depends on."""

    measure: Measure
    gamma: float
    eta: float
    absolute: bool
    relaxation: float
    outer: int
    inner: int
    inside: bool

    def prox(self, trained: Tensor) -> Callable[[Tensor], Tensor]:
        """The step on Z (out, in); gamma stays what it is by the trained weight."""
        if self.measure == "l1_quantile":
            return partial(quantile_threshold, gamma=self.gamma)
        spectral = self.measure == "spectral"
        whole = torch.linalg.svdvals(trained).sum() if spectral else trained.abs().max()
        return partial(spectral_prox if spectral else soft_threshold, gamma=self.gamma * self._unit(float(whole)))

    def accuracy_set(self, layer: Layer, seen: Seen) -> AccuracySet:
        batches = [partial(layer.asked, x, z) for x, z in seen]
        squares, count = 0.0, 0
        for batch in batches:
            y = batch().y
            squares, count = squares + float(y.square().sum()), count + len(y)
        if not squares and not self.absolute:
            raise BenchmarkError(
                f"the layer {layer.name} puts out zeros alone, of which eta is no share; make it absolute"
            )
        return AccuracySet(batches, layer.bias(), self.eta * self._unit(squares / count))

    def _unit(self, size: float) -> float:
        return 1.0 if self.absolute else size


@torch.no_grad()
def _constrained(layer: Layer, seen: Seen, settings: Settings) -> tuple[Tensors, History]:
    """The layer's new weight and its history: of its trained weight and what it sees alone."""
    trained, accuracy = layer.matrix(), settings.accuracy_set(layer, seen)
    # well inside, so that what is pulled there stays near; the trained weights themselves unless inputs were rerecorded
    centre, _ = AccuracySet(accuracy.batches, accuracy.bias, accuracy.eta / 2).project(trained, sweeps=settings.inner)
    sweeps = 0

    def project(point: Tensor) -> Tensor:
        nonlocal sweeps
        found, taken = accuracy.project(point, sweeps=settings.inner)
        sweeps += taken
        return found

    prox = settings.prox(trained)
    found = douglas_rachford(trained, prox, project, relaxation=settings.relaxation, outer=settings.outer)
    reached = max(accuracy.distances(found)) / accuracy.eta
    weight = layer.module.weight.detach().clone()
    weight.copy_((accuracy.pulled_inside(found, centre) if settings.inside else found).view_as(weight))
    stored = weight.double().flatten(1)
    kept = max(accuracy.distances(stored)) / accuracy.eta
    if settings.inside and not kept <= 1 + TOLERANCE:
        raise BenchmarkError(
            f"the layer {layer.name} cannot keep its outputs: {kept:.3g} times eta; raise eta or inner"
        )
    return {"weight": weight}, {
        "name": layer.name,
        "matrix": f"{' x '.join(map(str, stored.shape))} on {'patches' if weight.ndim == 4 else 'rows'}",
        "norm_before": float(torch.linalg.matrix_norm(trained, ord=2)),
        "norm_after": float(torch.linalg.matrix_norm(stored, ord=2)),
        "zeros": float((stored == 0).double().mean()),
        "eta": accuracy.eta,
        "sweeps": sweeps,
        "distance": kept,
        "distance_before_pull": reached,
    }
