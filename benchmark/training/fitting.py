"""Training a row: find its recipe's components by name, read its data, run the loop."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from torch import nn

from benchmark.attacks.gradients import attackable
from benchmark.data.images import load_split
from benchmark.data.tensors import Split, tensors
from benchmark.layers.trained import load_weights, start_from
from benchmark.records.training import Preparation, TrainingResult
from benchmark.runtime import arithmetic, files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import start as start_device
from benchmark.runtime.torch_setup import stop_filling, tensor_float32
from benchmark.specs import methods
from benchmark.specs.components import check_parameters, recipe_files
from benchmark.specs.data import DataSpec
from benchmark.specs.rows import Row
from benchmark.specs.run_settings import TrainRun
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.training import Augmentation, Selection, TrainingSpec
from benchmark.training import overfitting
from benchmark.training.augment import Augment
from benchmark.training.capture import CudaRecorder
from benchmark.training.checkpoint import TrainingProgress
from benchmark.training.loop import Score, in_float32, selection_metric, train
from benchmark.training.objective import AttackLoss, Objective, Penalty, TrainingAttack
from benchmark.training.overfitting import OverfittingMonitor
from benchmark.training.preparation import History, Place, Tensors
from benchmark.training.ranks import ALONE, Ranks
from benchmark.training.steps import Steps

PORTABLE = ("32-true", "64-true", "32", "64")  # precisions with portable arithmetic on the CPU


def fit(
    row: Row,
    run: TrainRun,
    folder: Path,
    on_epoch: Callable[[int, float], None],
    say: Callable[[str], None] = lambda _: None,
    ranks: Ranks = ALONE,
) -> tuple[dict[str, torch.Tensor], TrainingProgress, TrainingResult]:
    """Train a network by the row's settings; return its best weights, its history and its result for the Record.

    Args:
        folder: keeps the state from which a killed run resumes.
        on_epoch: receives the number of finished epochs and the last score.
        say: receives the progress of preparations.
        ranks: the processes that share the training; rank 0 alone prepares.

    Raises:
        BenchmarkError: the recipe cannot be applied, or submitted code imported a file by other means than a statement.
    """
    spec = row.settings.training
    assert spec is not None  # the step applies
    source = [row.source.method] if row.source and spec.prepare else []
    with methods.followed(row.method, *source, *recipe_files(spec, row.method.parent)):
        return _fit(row, spec, run, folder, on_epoch, say, ranks)


def _fit(
    row: Row,
    spec: TrainingSpec,
    run: TrainRun,
    folder: Path,
    on_epoch: Callable[[int, float], None],
    say: Callable[[str], None],
    ranks: Ranks,
) -> tuple[dict[str, torch.Tensor], TrainingProgress, TrainingResult]:
    """Train as `fit` does, without a look at imports."""
    attack, by = training_attack(spec.attack) if spec.attack else None, spec.selection
    chosen = training_attack(by.attack) if by.attack else None
    monitor = overfitting_monitor(spec.attack, attack) if spec.attack and attack else None
    torch.manual_seed(run.seed)
    np.random.seed(run.seed % 2**32)  # a method may draw its first weights by them
    random.seed(run.seed)
    validation = tensors(load_split(row.data, "validation"))
    train_split = tensors(load_split(row.data, "train"))
    model = methods.build_model(row.submission, row.settings, row.track)
    # after the model, so that classes of method.py that an own objective imports are those of the model
    objective = training_objective(spec, attack, row.submission.name)
    selected_by, score = selection_metric(by, objective, chosen, _certified(by) if by.certificate else None)
    ranks.check(spec.batch_size, len(validation[1]))
    if spec.attacks and (problem := attackable(model, *(part[:8] for part in validation))[1]):
        raise BenchmarkError(f"training against an attack needs gradients by the image: {problem}; train by `standard`")
    fabric = fabric_of(run, ranks)
    start_device(fabric.device)
    if fabric.device.type == "cuda" and not ranks.alone:
        torch.cuda.set_device(fabric.device)  # for code that names only "cuda"
    place = Place(folder / "prepare", run.seed, fabric.device, say)
    started, prepared = (None, ()) if ranks.rank else _begin(model, row, spec, train_split, place)
    if spec.keep_zeros and not ranks.rank and all(p.all() for p in model.parameters() if p.ndim > 1):
        raise BenchmarkError("keep_zeros keeps nothing: no matrix or kernel has a zero before the first epoch; remove it")
    stop_filling()
    with tensor_float32(run.tf32):
        steps = Steps(
            model,
            objective,
            spec,
            fabric,
            train_split[0][: objective.looks_at],
            augment=augment_of(spec.augmentation, row.track.data),
            closing=augment_of(spec.closing.augmentation, row.track.data) if spec.closing else None,
            penalties=training_penalties(spec, row.submission.name, model),
            ranks=ranks,
            recorder=CudaRecorder(fabric.device) if run.compile else None,
        )
        best, done = train(
            steps,
            train_split,
            validation,
            seed=run.seed,
            checkpoint=folder / "checkpoint.safetensors",
            metric=score,
            selected_by=selected_by,
            monitor=monitor,
            on_epoch=lambda done: on_epoch(done.epoch, done.scores[-1]),
        )
    if not ranks.rank:
        kept = in_float32(model)
        kept.load_state_dict(best)
        methods.check_weights(kept, row.submission, row.settings, row.track)
    watched = (done.watched, done.best_epoch, spec.warmup_epochs, len(validation[1]))
    result = TrainingResult(
        epochs=done.epoch,
        selected_epoch=done.best_epoch,
        selected_by=selected_by,
        validation_score=done.best_score,
        init_sha256=started,
        prepared=prepared,
        overfitting=monitor.verdict(*watched) if monitor and done.best_epoch else None,  # epoch 0 is the start
        **run.model_dump(exclude={"processes"}),
        processes=ranks.count,
    )
    return best, done, result


def _begin(
    model: nn.Module, row: Row, spec: TrainingSpec, train_split: Split, place: Place
) -> tuple[str | None, tuple[Preparation, ...]]:
    """Load the weights that the row starts from, and run the recipe's preparations.

    Return the sha256 of these weights, or None, and the preparations' histories. Raise a BenchmarkError for weights that do
    not fit, or a preparation that cannot be applied.
    """
    source = row.source
    if source is None or spec.init_from is None:
        if spec.prepare:
            raise BenchmarkError(
                f"the preparation {spec.prepare[0].name} works on a trained network; name its row by `init_from`, or, in a "
                "study, its cell by `init_from: {cell: ...}`"
            )
        return None, ()
    owner = row.submission.name
    parts = [methods.component("training/prepare", step.name, step.parameters, owner) for step in spec.prepare]
    other = [getattr(module, "OTHER_ARCHITECTURE", False) for module, _ in parts]
    if any(other[1:]):
        name = spec.prepare[other.index(True, 1)].name
        raise BenchmarkError(f"the preparation {name} makes a network of another; let it be the first")
    if any(other):
        # without a second import of method.py: its classes in `start` are those in `model`
        start = methods.build_model(source.submission, source.settings, source.track, again=False)
        load_weights(start, source.weights)
        start, digest = _frozen(start), files.sha256_file(source.weights)
    else:
        digest = start_from(model, source.weights, spec.init_from.new)
        start = _frozen(copy.deepcopy(model))
    prepared = []
    for number, (step, (module, parameters)) in enumerate(zip(spec.prepare, parts, strict=True)):
        own = replace(place, folder=place.folder / f"{number}-{step.name}")
        prepared.append(_prepared(model, start, train_split, step.name, partial(module.prepare, **parameters), own))
        start = _frozen(copy.deepcopy(model))
    return digest, tuple(prepared)


def _frozen(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)


def _prepared(
    model: nn.Module,
    start: nn.Module,
    train_split: Split,
    name: str,
    prepare: Callable[[nn.Module, nn.Module, Split, Place], History],
    place: Place,
) -> Preparation:
    """Run one preparation, or load the result of an earlier process; `model` keeps its mode and gradient flags."""
    mode, learned = model.training, [p for p in model.parameters() if p.requires_grad]

    def make() -> tuple[Tensors, History]:
        torch.manual_seed(place.seed)
        model.to(place.device)
        images, labels = (part.to(place.device) for part in train_split)
        history = prepare(model, start.to(place.device), (images, labels), place)
        try:
            made = Preparation(name=name, history=json.loads(json.dumps(history)))
        except (TypeError, ValueError, RecursionError):
            raise BenchmarkError(
                "its history must be a dict of JSON values with finite numbers and printable text, at most 1 MiB"
            ) from None
        return dict(model.state_dict()), made.history

    try:
        tensors, history = place.kept("whole", make)
    except BenchmarkError as error:
        raise BenchmarkError(f"preparation {name}: {error}") from None
    model.load_state_dict(tensors)
    model.train(mode).requires_grad_(False)
    for parameter in learned:
        parameter.requires_grad_(True)
    return Preparation(name=name, history=history)


def augment_of(spec: Augmentation, data: DataSpec) -> Augment | None:
    """Return the augmentation of these settings, or None."""
    return Augment(spec, data.shape, data.classes) if spec.any else None


def check_recipe(spec: TrainingSpec, submission: str = "") -> None:
    """Raise a BenchmarkError for unknown, missing or wrong parameters of a recipe's components. It imports them."""
    attacks = [training_attack(attack) for attack in spec.attacks]
    training_objective(spec, attacks[0] if spec.attack else None, submission)
    for penalty in spec.penalties:
        methods.component("training/penalties", penalty.name, penalty.parameters, submission)
    for step in spec.prepare:
        methods.component("training/prepare", step.name, step.parameters, submission)


def _certified(by: Selection) -> Score:
    """Return a score: the accuracy that the certificate proves at the radius of `by`, for a float32 model."""
    module = importlib.import_module(f"benchmark.certificates.{by.certificate}")

    def score(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        radii = module.certify(model.eval(), images, labels, largest=by.radius)
        return float((radii >= by.radius).double().mean())

    return score


def fabric_of(run: TrainRun, ranks: Ranks = ALONE) -> Fabric:
    """Return Fabric on the device of `run`; if that names no GPU, ranks take them in turn.

    Raises:
        BenchmarkError: the device or precision is not available, or not portable in portable arithmetic.
    """
    accelerator, _, index = run.device.partition(":")
    if accelerator == "auto":  # of Fabric that would be MPS too, which lacks float64
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    gpus = torch.cuda.device_count() if accelerator == "cuda" else 0
    if not index and gpus and not ranks.alone:
        accelerator, index = "cuda", str(ranks.rank % gpus)
    devices = [int(index)] if accelerator == "cuda" and index else 1  # a plain number is a count
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            precision=run.precision,  # type: ignore[arg-type]
            plugins=LightningEnvironment(),  # otherwise Fabric looks for a cluster, and may start MPI's daemons
        )
    except (ValueError, RuntimeError) as error:
        raise BenchmarkError(f"params.yaml, train: {' '.join(str(error).split())}") from None
    if fabric.device.type == "cpu" and run.precision not in PORTABLE and arithmetic.in_force() == "portable":
        raise BenchmarkError(
            f"params.yaml: precision {run.precision} on the CPU differs by processor; set `arithmetic: native`, or 32-true"
        )
    if fabric.device.type != "cuda" and (given := [name for name in ("tf32", "compile") if getattr(run, name)]):
        raise BenchmarkError(
            f"params.yaml, train: {given[0]} is for a GPU, and training runs on the {fabric.device.type}; set `device: cuda` "
            f"or `{given[0]}: false`"
        )
    return fabric


def training_objective(spec: TrainingSpec, attack: TrainingAttack | None, submission: str = "") -> Objective:
    """Return the objective of a submission's recipe. Raise a BenchmarkError as `methods.component` does, or if it is none."""
    module, parameters = methods.component("training", spec.objective, spec.parameters, submission)
    if getattr(module, "NEEDS_RANDOM_START", False) and spec.attack and not _starts_at_random(spec.attack):
        raise BenchmarkError(f"objective {spec.objective}: its attack needs `random_start: true`")
    objective = module.objective(attack, **parameters)
    if not isinstance(objective, Objective):
        raise BenchmarkError(f"objective {spec.objective}: it is {type(objective).__name__}, not an Objective")
    return objective


def training_penalties(spec: TrainingSpec, submission: str, model: nn.Module) -> dict[str, Penalty]:
    """Return the recipe's penalties of a model that this submission built, by name.

    Raises:
        BenchmarkError: a penalty that cannot be applied to the model.
    """
    if not spec.penalties:
        return {}
    finder = importlib.import_module("benchmark.layers.submitted_attention")  # so that only penalties depend on it
    attention = partial(finder.attention, submission, model)
    penalties = {}
    for penalty in spec.penalties:
        module, parameters = methods.component("training/penalties", penalty.name, penalty.parameters, submission)
        try:
            made = module.penalty(model, attention, **parameters)
        except BenchmarkError as error:
            raise BenchmarkError(f"penalty {penalty.name}: {error}") from None
        if not isinstance(made, Penalty):
            raise BenchmarkError(f"penalty {penalty.name}: it is {type(made).__name__}, not a Penalty")
        penalties[penalty.name] = made
    return penalties


def _starts_at_random(spec: AttackSpec) -> bool:
    parameters = inspect.signature(importlib.import_module(f"benchmark.attacks.{spec.attack}").attack).parameters
    default = parameters["random_start"].default if "random_start" in parameters else False
    return bool(spec.parameters.get("random_start", default))


def overfitting_monitor(trained: AttackSpec, attack: TrainingAttack) -> OverfittingMonitor:
    probe = overfitting.probe(trained)
    return OverfittingMonitor(attack, training_attack(probe), probe)


def training_attack(spec: AttackSpec) -> TrainingAttack:
    """Return the training attack: at `eps_factor` of its radius, drawing from the global generator.

    A `step_size` in pixels shrinks with the radius.
    """
    module = importlib.import_module(f"benchmark.attacks.{spec.attack}")
    check_parameters(module.attack, spec.parameters, f"attack {spec.attack}")
    climbs = "loss" in inspect.signature(module.attack).parameters

    def attack(
        model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float, loss: AttackLoss | None = None, /
    ) -> torch.Tensor:
        if loss is not None and not climbs:
            raise BenchmarkError(f"{spec.attack} climbs its own loss only; trades, mixup and cutmix need fgsm or pgd")
        options = dict(spec.parameters) | ({"loss": loss} if loss is not None else {})
        if "step_size" in options:
            options["step_size"] = float(spec.parameters["step_size"]) * eps_factor
        threat = ThreatModel(norm=spec.norm, eps=spec.eps * eps_factor)
        return module.attack(model, images, labels, threat, seed=None, **options)

    return attack
