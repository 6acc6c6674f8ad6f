"""The trained network from which a training starts, and what is made of it before the first epoch."""

from __future__ import annotations

import copy
from types import ModuleType

import torch
from torch import nn

from benchmark.loading import methods
from benchmark.loading.components import component
from benchmark.loading.rows import Row
from benchmark.loading.trained import Split, load_weights, start_from
from benchmark.results.training import Preparation
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.training import PrepareSpec, TrainingSpec
from benchmark.training.preparation import History, Place, Tensors


def begin(
    model: nn.Module, row: Row, spec: TrainingSpec, train_split: Split, place: Place
) -> tuple[str | None, tuple[Preparation, ...]]:
    """Give `model` the weights that its epochs begin with: those that the row starts from, then what the recipe's
    preparations make of them.

    Returns:
        sha256 of the weights started from, None where the row starts afresh, and the preparations' histories.

    Raises:
        BenchmarkError: weights that do not fit, or what a preparation refuses.
    """
    source = row.source
    if source is None or spec.init_from is None:
        if spec.prepare:
            raise BenchmarkError(
                f"the preparation {spec.prepare[0].name} works on a trained network; name its row by `init_from`, or, in a "
                "study, its cell by `init_from: {cell: ...}`"
            )
        return None, ()
    other = [getattr(preparation(step), "OTHER_ARCHITECTURE", False) for step in spec.prepare]
    if any(other[1:]):
        name = spec.prepare[other.index(True, 1)].name
        raise BenchmarkError(f"the preparation {name} makes a network of another; let it be the first")
    if any(other):
        start = methods.build_model(source.submission, source.settings, source.track)
        load_weights(start, source.weights)
        start, digest = _frozen(start), files.sha256_file(source.weights)
    else:
        digest = start_from(model, source.weights, spec.init_from.new)
        start = _frozen(copy.deepcopy(model))
    prepared = []
    for number, step in enumerate(spec.prepare):
        own = Place(place.folder / f"{number}-{step.name}", place.seed, place.device, place.say)
        prepared.append(_prepared(model, start, train_split, step, own))
        start = _frozen(copy.deepcopy(model))
    return digest, tuple(prepared)


def _frozen(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)


def _prepared(model: nn.Module, start: nn.Module, train_split: Split, step: PrepareSpec, place: Place) -> Preparation:
    """Run one preparation, or take what an earlier process kept of it; `model` ends in the mode and with the flags that it
    had.
    """
    mode, learned = model.training, [p for p in model.parameters() if p.requires_grad]

    def make() -> tuple[Tensors, History]:
        torch.manual_seed(place.seed)
        model.to(place.device)
        split = tuple(part.to(place.device) for part in train_split)
        history = preparation(step).prepare(model, start.to(place.device), split, place, **step.parameters)
        return dict(model.state_dict()), history

    try:
        tensors, history = place.kept("whole", make)
    except BenchmarkError as error:
        raise BenchmarkError(f"preparation {step.name}: {error}") from None
    model.load_state_dict(tensors)
    model.train(mode).requires_grad_(False)
    for parameter in learned:
        parameter.requires_grad_(True)
    return Preparation(name=step.name, history=history)


def preparation(step: PrepareSpec) -> ModuleType:
    """The file of a preparation; a BenchmarkError for parameters that it does not know or that are missing."""
    return component("training/prepare", step.name, step.parameters)
