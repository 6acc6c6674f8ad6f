"""The step `train` with a recipe that uses everything: its files, its messages and its refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_linear_row
import yaml
from stages import run_stage, stage_code
from tiny_linear_row import NAMES, ROW
from tiny_project import ROOT, edit

from benchmark.records.training import TrainingResult
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.training import TrainingSpec, recipe_problem
from benchmark.training import checkpoint, loop

PLAIN = "{objective: standard, epochs: 2, batch_size: 64, learning_rate: 0.01}"
RECIPE = """\
{objective: trades, parameters: {beta: 3, label_smoothing: 0.1}, epochs: 3, warmup_epochs: 1, batch_size: 64, learning_rate: 0.05,
         attack: {attack: fgsm, norm: Linf, eps: 0.1, parameters: {step: 1.5, steps: 2, random_start: true}},
         optimizer: sgd, sam: 0.05, ema: 0.5, clip_norm: 1, schedule: cosine, rate_warmup_epochs: 1, weight_decay_on: weights,
         augmentation: {crop: 1, flip: true, randaugment: 1, erasing: 0.2, mixup: 0.2, cutmix: 0.5},
         selection: {by: robust, attack: {attack: pgd, norm: Linf, eps: 0.1, parameters: {steps: 4, step_size: 0.05}}}}
"""


@pytest.fixture
def recipe(linear_new):
    """Write a recipe into the submission of a project with data, not yet trained."""
    run_stage("data", "tiny")
    path = Path("submissions/Tiny2026Linear/submission.yaml")
    assert PLAIN in path.read_text()
    return lambda text: path.write_text(tiny_linear_row.SUBMISSION.replace(PLAIN, text))


@pytest.mark.slow
def test_a_recipe_with_everything_trains_to_the_same_bytes(recipe, capsys) -> None:
    recipe(RECIPE)
    run_stage("train", *NAMES)
    first = {path.name: path.read_bytes() for path in (ROW / "train").iterdir()}
    printed = capsys.readouterr().out
    result = TrainingResult.model_validate(files.read_json(ROW / "train/fields.json")["training"])
    assert result.selected_by == "validation accuracy under pgd-Linf-0.1 (step_size 0.05, steps 4)"
    assert result.overfitting is not None
    assert result.overfitting.probe.parameters == {"steps": 10, "step_size": 0.025}
    assert result.overfitting.images == 40
    assert f"Tiny2026Linear-small: {result.overfitting.words}" in printed
    history = json.loads(first["history.json"])
    assert {name: len(values) for name, values in history.items()} == {"loss": 3, "score": 3, "trained": 3, "pgd": 3}
    assert history["score"][result.selected_epoch - 1] == result.validation_score == max(history["score"])
    run_stage("train", *NAMES)
    assert {path.name: path.read_bytes() for path in (ROW / "train").iterdir()} == first


@pytest.mark.slow
def test_processes_that_share_batches_go_on_after_one_has_died(recipe, monkeypatch, capsys) -> None:
    recipe(RECIPE)
    edit(Path("params.yaml"), "  precision: 32-true", "  processes: 2\n  precision: 32-true")
    run_stage("train", *NAMES)
    first = {path.name: path.read_bytes() for path in (ROW / "train").iterdir()}
    assert files.read_json(ROW / "train/fields.json")["training"]["processes"] == 2
    with monkeypatch.context() as killed:

        def write(path, *arguments) -> None:
            checkpoint.write(path, *arguments)
            os._exit(1)

        killed.setattr(loop, "checkpoints", SimpleNamespace(write=write, resume=checkpoint.resume))
        words = r"^submissions/Tiny2026Linear: .* failed: it ended with exit status 1$"
        with pytest.raises(BenchmarkError, match=words):
            run_stage("train", *NAMES)
    capsys.readouterr()
    run_stage("train", *NAMES)
    assert "resuming after epoch 1" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in (ROW / "train").iterdir()} == first


def test_every_file_that_a_recipe_runs_is_a_dependency_of_its_stage(recipe) -> None:
    def code() -> set[str]:
        paths = [path for path in stage_code("train", *NAMES) if path.parts[0] == "benchmark"]
        return {path.relative_to("benchmark").as_posix() for path in paths}

    pgd = "attack: pgd, norm: Linf, eps: 0.1, parameters: {steps: 4, step_size: 0.05}"
    recipe(RECIPE.replace(pgd, "attack: cw, norm: L2, eps: 1"))
    parts = {"training/trades.py", "training/augment.py", "training/steps.py", "attacks/fgsm.py", "attacks/cw.py"}
    assert parts | {"attacks/pgd.py"} <= code(), "pgd probes for overfitting"
    recipe(PLAIN)
    assert not code() & {f"attacks/{name}.py" for name in ("apgd", "autoattack", "cw", "fgsm", "pgd", "quick")}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("attack: fgsm, norm: Linf, eps: 0.1", "attack: fgsm, norm: L2, eps: 32", "L2 eps 32 is above 8, the diameter of 1x8x8"),
        ("{beta: 3", "{beta: -3", "beta -3.0 should be greater than 0"),
        ("random_start: true", "random_start: false", "needs `random_start: true`"),
        ("learning_rate: 0.05", "learning_rate: 1.0e+38", r"in epoch \d; lower the learning rate"),
    ],
)  # fmt: skip
def test_bad_recipes_are_refused(recipe, old, new, message) -> None:
    assert old in RECIPE
    recipe(RECIPE.replace(old, new, 1).replace("clip_norm: 1", "clip_norm: 0").replace("sam: 0.05", "sam: 0"))
    with pytest.raises(BenchmarkError, match=message):
        run_stage("train", *NAMES)
    assert not (ROW / "train").exists()


@pytest.mark.slow
def test_the_last_epochs_of_a_row_are_augmented_as_its_recipe_says(recipe) -> None:
    found = []
    for words in ("{}", "{erasing: 1.0}"):
        recipe(PLAIN.replace("0.01}", f"0.01, closing: {{epochs: 1, augmentation: {words}}}}}"))
        run_stage("train", *NAMES)
        found.append(files.read_json(ROW / "train/history.json")["loss"])
    assert found[0][0] == found[1][0]
    assert found[0][1] < found[1][1]


def test_the_recipe_in_the_docs_is_one() -> None:
    text = (ROOT / "docs/training.md").read_text()
    given = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])["training"]
    spec = TrainingSpec.model_validate(given)
    assert recipe_problem(spec, (1, 8, 8)) is None
    assert spec.objective == "trades"
    assert given.keys() == TrainingSpec.model_fields.keys(), "docs/training.md shows every option"
