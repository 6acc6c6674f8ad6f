"""The trained network from which a training starts, and what is made of it before the first epoch."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import nn

from benchmark.loading import methods
from benchmark.loading.components import check_parameters
from benchmark.loading.rows import Row
from benchmark.loading.trained import Split, load_weights, start_from
from benchmark.results.training import Preparation
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.training import PrepareSpec, TrainingSpec
from benchmark.training.preparation import History, Place, Tensors


@dataclass(frozen=True)
class Start:
    """A trained network: the row that builds it. Of `new` parts a training takes none over."""

    row: Row
    new: tuple[str, ...] = ()

    def model(self) -> nn.Module:
        """The network itself, in evaluation mode, frozen; a BenchmarkError where its weights are missing."""
        model = methods.build_model(self.row.submission, self.row.settings, self.row.track)
        load_weights(model, self.row.weights)
        return model.eval().requires_grad_(False)


def starting_point(row: Row) -> Start | None:
    """What the row's recipe starts from; None where it starts afresh."""
    source, recipe = row.source, row.settings.training
    return Start(source, recipe.init_from.new) if source and recipe and recipe.init_from else None


def begin(
    model: nn.Module, start: Start | None, spec: TrainingSpec, train_split: Split, place: Place
) -> tuple[str | None, tuple[Preparation, ...]]:
    """Gives `model` the weights that its epochs begin with: those of `start`, then what the recipe's preparations make.

    Returns:
        sha256 of the weights started from, None where there is no start, and the preparations' histories.

    Raises:
        BenchmarkError: weights that do not fit, or what a preparation refuses.
    """
    if start is None:
        if spec.prepare:
            raise BenchmarkError(
                f"the preparation {spec.prepare[0].name} works on a trained network; name its row by `init_from`, or, in a "
                "study, its cell by `init_from: {cell: ...}`"
            )
        return None, ()
    steps = [(step, module_of(step)) for step in spec.prepare]
    if steps and getattr(steps[0][1], "OTHER_ARCHITECTURE", False):
        source, digest = start.model(), files.sha256_file(start.row.weights)
    else:
        digest = start_from(model, start.row.weights, start.new)
        source = copy.deepcopy(model).eval().requires_grad_(False)
    for number, (step, module) in enumerate(steps):
        if number and getattr(module, "OTHER_ARCHITECTURE", False):
            raise BenchmarkError(f"the preparation {step.name} makes a network of another; let it be the first")
    found = []
    for number, (step, module) in enumerate(steps):
        folder = place.folder / f"{number}-{step.name}"
        found.append(
            _prepared(model, source, train_split, step, module, Place(folder, place.seed, place.device, place.say))
        )
        source = copy.deepcopy(model).eval().requires_grad_(False)
    return digest, tuple(found)


def _prepared(
    model: nn.Module, start: nn.Module, train_split: Split, step: PrepareSpec, module: ModuleType, place: Place
) -> Preparation:
    """Runs one preparation, or takes what an earlier process kept of it; `model` ends in the mode and with the flags that
    it had.
    """
    mode, learned = model.training, [p for p in model.parameters() if p.requires_grad]

    def make() -> tuple[Tensors, History]:
        torch.manual_seed(place.seed)
        model.to(place.device)
        split = tuple(part.to(place.device) for part in train_split)
        history = module.prepare(model, start.to(place.device), split, place, **step.parameters)
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


def module_of(step: PrepareSpec) -> ModuleType:
    """The file of a preparation; a BenchmarkError for parameters that it does not know or that are missing."""
    module = importlib.import_module(f"benchmark.training.prepare.{step.name}")
    prepare: Callable[..., object] = module.prepare
    check_parameters(prepare, step.parameters, f"preparation {step.name}")
    return module
