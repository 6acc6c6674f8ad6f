"""Stage `train`: one row's weights. `python -m benchmark.stages.train <track> <submission> <variant>`"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from lightning_fabric import Fabric
from safetensors.torch import save

from benchmark.data.images import load_split
from benchmark.loading import methods
from benchmark.loading.rows import Entry, entry
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import start_from, tensors
from benchmark.results.training import TrainingResult
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.base import to_json
from benchmark.specs.run import TrainRun
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.training import TrainingSpec
from benchmark.stages.base import Clock, finish
from benchmark.training import overfitting, selection
from benchmark.training.augment import Augment
from benchmark.training.checkpoint import TrainingProgress
from benchmark.training.loop import train
from benchmark.training.objective import AttackLoss, Objective, TrainingAttack
from benchmark.training.overfitting import OverfittingMonitor


def train_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/train: model.safetensors, training.json, history.json."""
    row, run = entry(track, submission, variant), run_settings().train
    if row.settings.training is None:
        raise BenchmarkError(f"{row.row} has weights that were trained elsewhere; run `rvb stage train {row.row}`")
    set_up(run.device)
    inputs = {
        "settings": row.settings.model_dump(mode="json", include={"model", "training"}),
        "run": run.model_dump(),
        "data": files.read_json(row.data / "data.json"),
        "start": files.sha256_file(start) if (start := _start(row)) and start.exists() else "",
        "code": files.sha256_files(row.code("train")),
        "torch": torch.__version__,
    }
    with scratch.locked(f"{track}/{row.row}/train", inputs, row.folder / "train") as folder:
        if folder is not None:
            _train(row, row.settings.training, run, folder, inputs["code"])


def _train(row: Entry, spec: TrainingSpec, run: TrainRun, folder: Path, code_digest: str) -> None:
    clock, epochs = Clock(folder), spec.epochs

    def on_epoch(done: TrainingProgress) -> None:
        clock.lap()
        if done.epoch % max(1, epochs // 4) == 0:
            print(f"{row.row}: epoch {done.epoch} of {epochs}, score {done.scores[-1]:.3f}", flush=True)

    best, done, result = fit(row, run, folder / "checkpoint.safetensors", on_epoch)
    out = folder / "out"
    files.write(out / "model.safetensors", save(best))
    files.write(out / "training.json", to_json(result))
    files.write_json(out / "history.json", _history(done))
    finish(row, "train", out, code_digest, clock)
    if done.epoch < epochs:
        patience = spec.selection.patience
        print(f"{row.row}: stopped after epoch {done.epoch} of {epochs}, nothing better in {patience}")
    print(f"{row.row}: {result.selected_by} {result.validation_score:.3f} at epoch {result.selected_epoch}")
    if result.overfitting:
        print(f"{row.row}: {result.overfitting.words}")


def fit(
    row: Entry, run: TrainRun, checkpoint: Path, on_epoch: Callable[[TrainingProgress], None]
) -> tuple[dict[str, torch.Tensor], TrainingProgress, TrainingResult]:
    """Trains a network by the row's settings: its best weights, its history and what is said of it; resumes."""
    spec, rules = row.settings.training, row.track.data
    assert spec is not None  # both callers have looked
    attack = _attack(spec.attack) if spec.attack else None
    objective = _objective(spec, attack)
    metric = selection.selection_metric(
        spec.selection, objective, _attack(spec.selection.attack) if spec.selection.attack else None
    )
    monitor = _watch(spec.attack, attack) if spec.attack and attack else None
    torch.manual_seed(run.seed)
    validation = tensors(load_split(row.data, "validation"))
    model, start = methods.build_model(row.submission, row.settings, row.track), _start(row)
    started = start_from(model, start, spec.init_from.new) if start and spec.init_from else None
    best, done = train(
        model,
        objective,
        spec,
        tensors(load_split(row.data, "train")),
        validation,
        fabric=_fabric(run),
        seed=run.seed,
        checkpoint=checkpoint,
        metric=metric,
        augment=Augment(spec.augmentation, rules.shape, rules.classes) if spec.augmentation.any else None,
        monitor=monitor,
        on_epoch=on_epoch,
    )
    seen = monitor.verdict(done.watched, done.best_epoch, spec.warmup_epochs, len(validation[1])) if monitor else None
    result = TrainingResult(
        epochs=done.epoch,
        selected_epoch=done.best_epoch,
        selected_by=metric.selected_by,
        validation_score=done.best_score,
        init_sha256=started,
        overfitting=seen,
        **run.model_dump(),
    )
    return best, done, result


def check_recipe(spec: TrainingSpec) -> None:
    """A BenchmarkError for parameters of a recipe's attacks or objective that are unknown or missing."""
    attacks = [_attack(attack) for attack in spec.attacks]
    _objective(spec, attacks[0] if spec.attack else None)


def _start(row: Entry) -> Path | None:
    return row.source / "train" / "model.safetensors" if row.source else None


def _history(done: TrainingProgress) -> dict[str, list[float]]:
    """By epoch; where training was against an attack also the accuracy that it left, and that it and PGD left."""
    watched = {"trained": [a for a, _ in done.watched], "pgd": [b for _, b in done.watched]} if done.watched else {}
    return {"loss": done.losses, "score": done.scores, **watched}


def _fabric(run: TrainRun) -> Fabric:
    try:
        return Fabric(accelerator=run.device.split(":")[0], devices=1, precision=run.precision)  # type: ignore[arg-type]
    except (ValueError, RuntimeError) as error:
        raise BenchmarkError(f"params.yaml, train: {' '.join(str(error).split())}") from None


def _objective(spec: TrainingSpec, attack: TrainingAttack | None) -> Objective:
    module = importlib.import_module(f"benchmark.training.{spec.objective}")
    _check_parameters(module.objective, spec.parameters, f"training objective {spec.objective}")
    if getattr(module, "NEEDS_RANDOM_START", False) and spec.attack and not _starts_at_random(spec.attack):
        raise BenchmarkError(f"training objective {spec.objective}: its attack needs `random_start: true`")
    return module.objective(attack, **spec.parameters)


def _starts_at_random(spec: AttackSpec) -> bool:
    known = inspect.signature(importlib.import_module(f"benchmark.attacks.{spec.attack}").attack).parameters
    default = known["random_start"].default if "random_start" in known else False
    return bool(spec.parameters.get("random_start", default))


def _watch(trained: AttackSpec, attack: TrainingAttack) -> OverfittingMonitor:
    probe = overfitting.probe(trained)
    return OverfittingMonitor(attack, _attack(probe), probe)


def _attack(spec: AttackSpec) -> TrainingAttack:
    """The attack that training is handed: at `eps_factor` of its radius, drawing from the running generator.

    A `step_size` in pixels shrinks with the radius.
    """
    module = importlib.import_module(f"benchmark.attacks.{spec.attack}")
    _check_parameters(module.attack, spec.parameters, f"training attack {spec.attack}")
    climbs = "loss" in inspect.signature(module.attack).parameters

    def attack(model, images, labels, eps_factor: float, loss: AttackLoss | None = None, /) -> torch.Tensor:
        if loss is not None and not climbs:
            raise BenchmarkError(f"{spec.attack} climbs its own loss only; trades, mixup and cutmix need fgsm or pgd")
        given = dict(spec.parameters) | ({"loss": loss} if loss is not None else {})
        if "step_size" in given:
            given["step_size"] = float(spec.parameters["step_size"]) * eps_factor
        threat = ThreatModel(norm=spec.norm, eps=spec.eps * eps_factor)
        return module.attack(model, images, labels, threat, seed=None, **given)

    return attack


def _check_parameters(function: Callable, given: Mapping[str, object], where: str) -> None:
    """A BenchmarkError for a parameter that `function` does not know or that is missing."""
    known = {n: p for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    known = {name: p for name, p in known.items() if name not in ("seed", "loss")}
    for name in given:
        if name not in known:
            raise BenchmarkError(f"{where}: unknown parameter {name!r}{near_miss(name, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise BenchmarkError(f"{where}: the parameter {name!r} is missing")


if __name__ == "__main__":
    errors.run(lambda: train_row(*sys.argv[1:]))
