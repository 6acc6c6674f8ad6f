"""Stage `train`: one row's weights. `python -m benchmark.stages.train <track> <submission> <variant>`"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric
from safetensors.torch import save

from benchmark import errors, files, scratch, submissions
from benchmark.data.images import load_split
from benchmark.errors import BenchmarkError
from benchmark.records import AttackSpec, ThreatModel, TrainingResult, TrainingSpec, to_json
from benchmark.stages.context import Clock, Entry, TrainRun, entry, finish, run_settings
from benchmark.stages.model import set_up, tensors
from benchmark.training.loop import Progressed, train
from benchmark.training.objective import Objective, TrainingAttack


def train_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/train: model.safetensors, training.json, history.json."""
    row, run = entry(track, submission, variant), run_settings().train
    set_up(run.device)
    inputs = {
        "settings": row.settings.model_dump(mode="json", include={"model", "training"}),
        "run": run.model_dump(),
        "data": files.read_json(row.data / "data.json"),
        "code": files.sha256_files(row.code("train")),
        "torch": torch.__version__,
    }
    with scratch.locked(f"{track}/{row.row}/train", inputs, row.folder / "train") as folder:
        if folder is not None:
            _train(row, run, folder, inputs["code"])


def _train(row: Entry, run: TrainRun, folder: Path, code_digest: str) -> None:
    clock, spec = Clock(folder), row.settings.training
    objective = _objective(spec)

    def on_epoch(done: Progressed) -> None:
        clock.lap()
        if done.epoch % max(1, spec.epochs // 4) == 0:
            print(f"{row.row}: epoch {done.epoch} of {spec.epochs}, score {done.scores[-1]:.3f}", flush=True)

    torch.manual_seed(run.seed)
    best, done = train(
        submissions.build(row.submission, row.variant, row.track),
        objective,
        spec,
        tensors(load_split(row.data, "train")),
        tensors(load_split(row.data, "validation")),
        fabric=_fabric(run),
        seed=run.seed,
        checkpoint=folder / "checkpoint.safetensors",
        on_epoch=on_epoch,
    )
    result = TrainingResult(
        epochs=done.epoch,
        selected_epoch=done.best_epoch,
        selected_by=objective.selected_by,
        validation_score=done.best_score,
        **run.model_dump(),
    )
    out = folder / "out"
    files.write(out / "model.safetensors", save(best))
    files.write(out / "training.json", to_json(result))
    files.write_json(out / "history.json", {"loss": done.losses, "score": done.scores})
    finish(row, "train", out, code_digest, clock)
    print(f"{row.row}: {result.selected_by} {result.validation_score:.3f} at epoch {result.selected_epoch}")


def _fabric(run: TrainRun) -> Fabric:
    try:
        return Fabric(accelerator=run.device.split(":")[0], devices=1, precision=run.precision)  # type: ignore[arg-type]
    except (ValueError, RuntimeError) as error:
        raise BenchmarkError(f"params.yaml, train: {' '.join(str(error).split())}") from None


def _objective(spec: TrainingSpec) -> Objective:
    module = importlib.import_module(f"benchmark.training.{spec.objective}")
    attack = _training_attack(spec.attack) if spec.attack else None
    try:
        return module.objective(attack, **spec.parameters)
    except TypeError as error:
        raise BenchmarkError(f"training objective {spec.objective}: {error}") from None


def _training_attack(spec: AttackSpec) -> TrainingAttack:
    """The attack that training is handed: at `strength` of its radius, drawing from the running generator."""
    module = importlib.import_module(f"benchmark.attacks.{spec.attack}")

    def attack(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, strength: float) -> torch.Tensor:
        threat = ThreatModel(norm=spec.norm, eps=spec.eps * strength)
        return module.attack(model, images, labels, threat, seed=None, **spec.parameters)

    return attack


if __name__ == "__main__":
    errors.run(lambda: train_row(*sys.argv[1:]))
