"""A submission's own objective, penalty and preparation: found in its folder, imported in the sandbox alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import scaling_preparation
import yaml
from stages import run_stage, run_study, stage_code
from tiny_linear_row import NAMES, SUBMISSION
from tiny_project import ROOT, edit

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.confinement import PARTS, available
from benchmark.specs import components, methods
from benchmark.specs.rows import load_row
from benchmark.studies import grids

pytestmark = pytest.mark.slow

sandboxed = pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the sandbox")
FOLDER = Path("submissions/Tiny2026Linear")
TUNED = ("tiny", "Tiny2026Linear-tuned")
OBJECTIVE = """\
from benchmark.training.objective import Positive
from benchmark.training.standard import Standard

from .scales import SCALE


class Scaled(Standard):
    selected_by = "validation accuracy of my own"

    def __init__(self, attack, *, factor: Positive = 1.0):
        super().__init__()
        self.factor = SCALE * factor

    def loss(self, model, images, labels, eps_factor):
        return self.factor * super().loss(model, images, labels, eps_factor)


objective = Scaled
"""
PENALTY = """\
from benchmark.training.objective import Penalty
from .method import nn


def penalty(model, attention, *, factor: float = 0.1):
    return Ridge(model, factor)


class Ridge(Penalty):
    def __init__(self, model, factor):
        super().__init__()
        self.weights, self.factor = [*model.parameters()], factor

    def forward(self):
        return self.factor * sum(weight.square().sum() for weight in self.weights)
"""
OWN = {"scaled.py": OBJECTIVE, "ridge.py": PENALTY, "scales.py": "SCALE = 0.5\n"}
STUDY = {
    "title": "A study", "source": "Table 1", "track": "tiny", "variant": "small", "seeds": [0],
    "measures": [{"measure": "clean"}],
    "cells": [
        {"name": "plain"},
        {
            "name": "tuned",
            "set": {
                "training.init_from": {"cell": "plain"}, "training.objective": "scaled",
                "training.prepare": [{"name": "scaling"}], "training.epochs": 1,
            },
        },
    ],
}  # fmt: skip


@pytest.fixture
def own(linear_row) -> None:
    """Give the linear model's submission components of its own, in the working directory."""
    for name, text in OWN.items():
        (FOLDER / name).write_text(text)
    scaling_preparation.install()
    tune()


def tune(**changes) -> None:
    """Declare a row that starts from the linear one, with a recipe of the submission's own components."""
    recipe = {"objective": "scaled", "epochs": 1, "batch_size": 64, "learning_rate": 0.01}
    recipe |= {"init_from": {"row": "Tiny2026Linear-small"}, "prepare": [{"name": "scaling"}]}
    recipe |= {"penalties": [{"name": "ridge", "parameters": {"factor": 0.01}}], **changes}
    content = yaml.safe_load(SUBMISSION)
    content["variants"]["tuned"] = {"title": "Tuned", "tracks": {"tiny": {"training": recipe}}}
    (FOLDER / "submission.yaml").write_text(yaml.safe_dump(content))


def train() -> dict[str, Any]:
    """Train the tuned row; return what its step adds to the Record."""
    run_stage("train", *TUNED)
    return files.read_json(Path("work/tiny/Tiny2026Linear-tuned/train/fields.json"))


def own_code(stage: str, row: tuple[str, str]) -> set[str]:
    return {path.name for path in stage_code(stage, *row) if path.parts[0] == "submissions"}


def test_they_train_and_their_files_are_dependencies_of_the_stage_alone(own) -> None:
    trained = train()["training"]
    assert trained["selected_by"] == "validation accuracy of my own"
    assert [prepared["name"] for prepared in trained["prepared"]] == ["scaling"]
    assert own_code("train", TUNED) == {"method.py", "scaled.py", "scales.py", "ridge.py", "scaling.py"}
    assert own_code("train", NAMES) == own_code("attack-papers", TUNED) == {"method.py"}
    weights = {}
    for factor in (1, 2):
        tune(parameters={"factor": factor}, prepare=[], penalties=[], optimizer="sgd")
        weights[factor] = train()["sha256"]["weights"]
    assert weights[1] != weights[2]
    assert trained["init_sha256"] == files.sha256_file(load_row(*TUNED).source.weights)


def test_the_example_in_the_docs_is_one(own) -> None:
    text = (ROOT / "docs/training.md").read_text()
    (FOLDER / "scaled.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    tune(prepare=[], penalties=[], parameters={"factor": 0.5})
    assert train()["training"]["selected_by"] == "validation accuracy"


def test_a_cell_of_a_study_that_starts_from_another_has_them(own) -> None:
    (FOLDER / "studies").mkdir()
    (FOLDER / "studies/one.yaml").write_text(yaml.safe_dump(STUDY))
    run_study("tiny", "Tiny2026Linear-one")
    plain, tuned = files.read_json(Path("work/tiny/studies/Tiny2026Linear-one/study.json"))["runs"]
    assert tuned["training"]["init_sha256"] == plain["weights"]
    assert tuned["training"]["selected_by"] == "validation accuracy of my own"
    assert [prepared["name"] for prepared in tuned["training"]["prepared"]] == ["scaling"]


@pytest.mark.parametrize("kind", ["training", "training/penalties"])
def test_no_file_has_the_name_of_a_component_of_the_benchmark(own, kind) -> None:
    for name in components.names(kind):
        file = FOLDER / f"{name}.py"
        for text in (OBJECTIVE, "HELPS = 1\n"):
            file.write_text(text)
            words = f"{file} has the name of the benchmark's {components.ENTRIES[kind][1]} {name}; rename the file"
            with pytest.raises(BenchmarkError, match=f"^{re.escape(words)}$"):
                load_row(*NAMES)
        file.unlink()
    assert load_row(*TUNED)


def test_a_file_that_defines_no_attack_is_none(own) -> None:
    for name, text in (("pgd", PENALTY), ("autoattack", "attack = None\n"), ("mine", "def attack(model): ...\n")):
        (FOLDER / f"{name}.py").write_text(text)
        assert methods.own_attack(name, FOLDER.name) is (name == "mine")


HIDDEN = "__import__('importlib').import_module('submissions.Tiny2026Linear.hidden')"
# a text of the objective's file, another in its place, and words of the refusal
REFUSED = [
    ("objective = Scaled", "objection = Scaled", r"scaled\.py has no line `def objective\(` or `objective = `, so it is no objective"),
    ("objective = Scaled", "objective = Scaled\ndel objective", r"scaled\.py must define objective"),
    ("objective = Scaled", "def objective(attack):\n    return attack", "objective scaled: it is NoneType, not an Objective"),
    ("objective = Scaled", "objective = 1 / 0", r"scaled\.py, line 19 does not import: ZeroDivisionError"),
    ("factor: Positive", "factor: Positif", r"scaled\.py: the parameters of objective cannot be read: NameError"),
    ("factor: Positive = 1.0", "factor: Positive", "objective scaled: the parameter 'factor' is missing"),
    ("from .scales", "from ..Other.scales", "imports Other, which is another submission"),
    ("return self.factor", "return None", r"scaled\.py, line 16: TypeError"),
    ("return self.factor", f"{HIDDEN}; return self.factor", "imports submissions/Tiny2026Linear/hidden.py by other means"),
    ("self.factor = SCALE", f"{HIDDEN}; self.factor = SCALE", "imports submissions/Tiny2026Linear/hidden.py by other means"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words"), REFUSED)
def test_what_is_wrong_is_one_line(own, old, new, words) -> None:
    assert old in OBJECTIVE
    (FOLDER / "hidden.py").write_text("HELPS = 1\n")
    (FOLDER / "scaled.py").write_text("from __future__ import annotations\n" + OBJECTIVE.replace(old, new, 1))
    tune(prepare=[], penalties=[])
    with pytest.raises(BenchmarkError, match=words):
        train()


def test_parameters_are_checked_by_their_types(own) -> None:
    for parameters, words in (
        ({"factor": -1.0}, "factor -1.0 should be greater than 0"),
        ({"faktor": 1}, "unknown parameter 'faktor'"),
        ({"factor": 1.0}, "the parameter 'factor' has no type annotation$"),
    ):
        if "annotation" in words:
            (FOLDER / "scaled.py").write_text(OBJECTIVE.replace("factor: Positive", "factor"))
        tune(parameters=parameters)
        with pytest.raises(BenchmarkError, match=f"objective scaled: {words}"):
            train()


def test_without_a_submission_a_component_is_the_benchmarks(own) -> None:
    Path("submissions/scaled.py").write_text(OBJECTIVE)
    with pytest.raises(BenchmarkError, match="no objective named 'scaled'"):
        methods.component("training", "scaled", {}, "")


@pytest.mark.parametrize("history", ["[]", "{'loss': float('nan')}", "{'loss': place}", "{'loss': '\\x1b[2J'}", "None"])
def test_the_history_of_a_preparation_is_json_of_finite_numbers(own, history) -> None:
    edit(FOLDER / "scaling.py", "return history", f"return {history}")
    with pytest.raises(BenchmarkError, match=r"preparation scaling: its history must be a dict of JSON values[^\n]+$"):
        train()


HOSTILE = """\
import os
import pathlib

import benchmark.runtime.files as files


def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__


def raid(moment):
    files.sha256_bytes = lambda data: "0" * 64
    home = pathlib.Path(HOME)
    attempt(lambda: (home / moment).write_text("reached"))
    print(moment, os.getpid(), attempt((home / "work/tiny/data/test.safetensors").read_bytes))


raid("imported")
"""


@sandboxed
def test_none_reaches_the_evaluator(own, capfd) -> None:
    """Each tries, when it is imported and when it is called, to write files, read test images and change the evaluator."""
    hostile = HOSTILE.replace("HOME", repr(str(Path.cwd())))
    calls = {
        "scaled.py": "        return self.factor",
        "ridge.py": "        return self.factor",
        "scaling.py": "    history = {}",
    }
    for name, call in calls.items():
        indent = call[: len(call) - len(call.lstrip())]
        edit(FOLDER / name, call, f"{indent}raid('called')\n{call}")
        (FOLDER / name).write_text(hostile + (FOLDER / name).read_text())
    (FOLDER / "studies").mkdir()
    (FOLDER / "studies/one.yaml").write_text(yaml.safe_dump(STUDY))
    digest = files.sha256_bytes(b"")
    train()
    run_study("tiny", "Tiny2026Linear-one")
    assert grids.load("Tiny2026Linear", "one")
    assert not Path("imported").exists()
    assert not Path("called").exists()
    assert files.sha256_bytes(b"") == digest != "0" * 64
    raids = re.findall(r"(imported|called) (\d+) (\w+)", capfd.readouterr().out)
    assert {moment for moment, _, _ in raids} == {"imported", "called"}
    assert {outcome for _, _, outcome in raids} == {"PermissionError"}
    assert str(os.getpid()) not in {pid for _, pid, _ in raids}
