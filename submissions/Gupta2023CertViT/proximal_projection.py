"""CertViT's proximal projection of a trained network (Gupta and Verma 2023, algorithm 3): each layer alone gets weights of a
smaller measure that still fit its outputs on training images.

proximal.py has the mathematics, layer_records.py the layers and outputs. Biases stay. A convolution's weight is the matrix
that acts on patches. A layer that is never called as a module stays and is named, such as `L2Attention.value`, whose weight
acts in A_h W_V.

Differences from the paper or its released code: y is the pre-trained output, not W x less a gradient; images are training
images, never test images; layers before GELU keep their pre-activations; the measure `spectral`; and weights are pulled into
the accuracy set, which algorithm 1 reaches only in the limit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.training.objective import Count, Positive
from benchmark.training.preparation import History, Place, Tensors

from .layer_records import Layer, Seen, layers_of, record
from .proximal import TOLERANCE, AccuracySet, douglas_rachford, quantile_threshold, soft_threshold, spectral_prox

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
    """Change the weights of `model`, whose outputs with its present weights are kept.

    Args:
        measure: "l1", the sum of |W|, as published; "l1_quantile", the released code's threshold at the gamma-quantile of
            |Z|; "spectral", the spectral norm of the layer's matrix.
        gamma: the step of the proximity operator, relative to the largest |W| for l1, to the sum of singular values for
            spectral. It decides how fast iterations converge, not where to.
        eta: the largest mean squared distance of a batch, relative to the mean squared norm of the layer's outputs.
        absolute: gamma and eta are in the layer's own units, as published; l1_quantile's gamma stays relative.
        relaxation, outer: of the Douglas-Rachford iterations. inner: the most sweeps over the batches in each.
        batch_size: the most images of a batch. samples: the most training images, drawn by the place's seed.
        rerecord: record inputs after the changes of earlier layers, outputs in the trained network; else no layer sees
            another's change, and any order gives the same bytes.
        head: include the last nn.Linear.
        inside: pull weights that are outside the accuracy set by more than TOLERANCE into it; else keep algorithm 1's.

    Returns:
        The tolerance, the layers that are never called, and each other layer's name, matrix, exact spectral norms of that
        matrix before and after, share of zeros, eta, sweeps, and largest mean squared distance of a batch relative to eta: of
        the stored weights (`distance`; at most 1 + TOLERANCE if inside) and before they were pulled in.

    Raises:
        BenchmarkError: a gamma out of its range, a layer that is not covered, or an eta that outputs cannot keep.
    """
    if gamma >= 1 and (measure == "l1_quantile" or not absolute):
        raise BenchmarkError(f"gamma {gamma} is a share, and should be below 1")
    layers = layers_of(model, head=head)
    images = place.drawn(train_split[0], samples)
    batches = images.tensor_split(-(-len(images) // batch_size))
    trained, changed = (copy.deepcopy(model).requires_grad_(False).eval() for _ in range(2))

    def make(layer: Layer) -> tuple[Tensors, History]:
        seen = record(layer, trained, changed if rerecord else trained, batches, place.device)
        if not seen:
            return {}, {}
        prox, accuracy = _prox(layer.matrix(), measure, gamma, absolute), _accuracy_set(layer, seen, eta, absolute)
        return _constrained(layer, prox, accuracy, relaxation, outer, inner, inside)

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


def _prox(trained: Tensor, measure: Measure, gamma: float, absolute: bool) -> Callable[[Tensor], Tensor]:
    """Return the proximity operator on Z (out, in), whose step is fixed by the trained weight."""
    if measure == "l1_quantile":
        return partial(quantile_threshold, gamma=gamma)
    spectral = measure == "spectral"
    whole = torch.linalg.svdvals(trained).sum() if spectral else trained.abs().max()
    return partial(spectral_prox if spectral else soft_threshold, gamma=gamma * (1.0 if absolute else float(whole)))


def _accuracy_set(layer: Layer, seen: Seen, eta: float, absolute: bool) -> AccuracySet:
    batches = [partial(layer.asked, x, z) for x, z in seen]
    squares, count = 0.0, 0
    for batch in batches:
        y = batch().y
        squares, count = squares + float(y.square().sum()), count + len(y)
    if not squares and not absolute:
        raise BenchmarkError(f"the layer {layer.name} puts out zeros alone, of which eta is no share; make it absolute")
    return AccuracySet(batches, layer.bias(), eta * (1.0 if absolute else squares / count))


@torch.no_grad()
def _constrained(
    layer: Layer,
    prox: Callable[[Tensor], Tensor],
    accuracy: AccuracySet,
    relaxation: float,
    outer: int,
    inner: int,
    inside: bool,
) -> tuple[Tensors, History]:
    """Return the layer's new weight and its history."""
    trained = layer.matrix()
    # well inside, so that pulled weights stay near; the trained weights themselves unless inputs were rerecorded
    centre, _ = AccuracySet(accuracy.batches, accuracy.bias, accuracy.eta / 2).project(trained, sweeps=inner)
    sweeps = 0

    def project(point: Tensor) -> Tensor:
        nonlocal sweeps
        projected, taken = accuracy.project(point, sweeps=inner)
        sweeps += taken
        return projected

    reached = douglas_rachford(trained, prox, project, relaxation=relaxation, outer=outer)
    weight = layer.module.weight.detach().clone()
    weight.copy_((accuracy.pulled_inside(reached, centre) if inside else reached).view_as(weight))
    stored = weight.double().flatten(1)
    kept = max(accuracy.distances(stored)) / accuracy.eta
    if inside and not kept <= 1 + TOLERANCE:
        raise BenchmarkError(f"the layer {layer.name} cannot keep its outputs: {kept:.3g} times eta; raise eta or inner")
    return {"weight": weight}, {
        "name": layer.name,
        "matrix": f"{' x '.join(map(str, stored.shape))} on {'patches' if weight.ndim == 4 else 'rows'}",
        "norm_before": float(torch.linalg.matrix_norm(trained, ord=2)),
        "norm_after": float(torch.linalg.matrix_norm(stored, ord=2)),
        "zeros": float((stored == 0).double().mean()),
        "eta": accuracy.eta,
        "sweeps": sweeps,
        "distance": kept,
        "distance_before_pull": max(accuracy.distances(reached)) / accuracy.eta,
    }
