"""Each thing that `rvb check` looks for is found in a submission that has it, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_project import edit

from benchmark.commands.submit import write_submission
from benchmark.evaluation import check_submission as checked
from benchmark.specs import submissions

NAME = "Doe2026Tiny"
NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, data):
        super().__init__()
        self.head = nn.Linear(64, data.classes)
        {init}

    def forward(self, x):
        {forward}


def build(data, **model):
    return Net(data)
"""
PLAIN = "return self.head(x.flatten(1))"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A folder of submissions with one new one, which `rvb new` wrote."""
    monkeypatch.setattr(submissions, "FOLDER", tmp_path)
    write_submission(NAME)
    return tmp_path / NAME


def code(forward: str = PLAIN, init: str = "pass") -> str:
    return NET.format(forward=forward.replace("\n", "\n        "), init=init)


def failed() -> dict[str, str]:
    return {check.name: check.found for check in checked.check_submission(NAME).failed}


def test_a_linear_model_passes_and_each_row_is_told_of_before_it_is_checked(folder) -> None:
    (folder / "method.py").write_text(code())
    lines: list[str] = []
    assert not checked.check_submission(NAME, report=lines.append).failed
    assert lines == [f"checking {NAME}-small on digits"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "forward", "init", "words"),
    [
        ("each image by itself", "x = x.flatten(1)\nreturn self.head(x - x.mean(0))", "pass", "over the batch"),
        ("each image by itself", "z = self.head(x.flatten(1))\nreturn z * (len(z) / 4)", "pass", "16 of 16 images get logits that differ"),
        ("noise", "return self.head(x.flatten(1) ** 2.2)", "pass", "begin with x = x.clamp(0, 1)"),
        ("builds", "x.data.sub_(0.5)\nreturn self.head(x.flatten(1))", "pass", "changes its input in place"),
        ("input is left alone", "x.data.sub_(0.5 * (len(x) > 8))\nreturn self.head(x.flatten(1))", "pass", "by up to 0.5"),
        ("division", "return self.head(x.flatten(1) + torch.randn(64))", "pass", "declare `division: open`"),
        ("division", "return self.head((x.flatten(1) - x.flatten(1).detach()).sqrt() + x.flatten(1))", "pass", "on 16 of 16 images"),
        ("division", "return self.head(x.flatten(1)).softmax(1)", "pass", "let it return logits"),
        ("division", "return self.head(self.bn.train()(x).flatten(1))", "self.bn = nn.BatchNorm2d(1)", "changes its own weights or buffers"),
        ("gradients", "x = x.flatten(1)\nreturn self.head(torch.where(x[:, :1] < 0.01, x.detach(), x))", "pass", "on 1 of 16 images"),
        ("output", "return self.head(x.flatten(1)).double()", "pass", "return float32"),
        ("builds", "return self.head(x.flatten(1))[:, :3]", "pass", "logits of shape (2, 10) are needed"),
        ("same seed, same weights", PLAIN, "import secrets; self.head.bias.data[0] = secrets.randbelow(10**9)", "head.bias"),
        ("weights are the model", "return self.head(x.flatten(1) + self.a)", "self.a = torch.randn(64)", "persistent buffer"),
        ("output", "return self.head(x.flatten(1)[:2])", "pass", "give shape (2, 10)"),
        ("training", PLAIN, "self.head.requires_grad_(False); self.idle = nn.Parameter(torch.zeros(1))", "no parameter gets a gradient"),
        ("training", "self.m += self.training\nreturn self.head(self.m * x.flatten(1))", "self.m = 1.0", "the state_dict is all that is kept"),
    ],
)  # fmt: skip
def test_each_defect_is_found(folder, name, forward, init, words) -> None:
    (folder / "method.py").write_text(code(forward, init))
    problems = failed()
    assert words in problems[name]
    assert all("\n" not in text for text in problems.values())


def test_an_exception_of_submitted_code_is_named_with_its_line(folder) -> None:
    (folder / "method.py").write_text(code("if len(x) > 2: raise KeyError('a\\nb')\n" + PLAIN))
    problems = failed()
    assert set(problems) == {"model", "training", "size"}
    assert problems["model"].startswith(f"{folder}/method.py, line 12: KeyError: ")


OBJECTIVE = """\
from benchmark.training.standard import Standard


class Centred(Standard):
    looks_at = 2

    def attach(self, model, images):
        assert len(images) == 2
        self.mean = images.mean()

    def advance(self):
        self.scale = 1.0

    def loss(self, model, images, labels, eps_factor):
        return self.scale * super().loss(model, images - self.mean, labels, eps_factor)


objective = Centred
"""
PENALTY = """\
from benchmark.runtime.errors import BenchmarkError


def penalty(model, attention):
    raise BenchmarkError("there is no attention")
"""


def test_a_step_is_prepared_as_in_training(folder) -> None:
    (folder / "method.py").write_text(code())
    (folder / "centred.py").write_text(OBJECTIVE)
    edit(folder / "submission.yaml", "objective: standard", "objective: centred")
    assert not failed()
    (folder / "ridge.py").write_text(PENALTY)
    edit(folder / "submission.yaml", "objective: centred", "objective: centred\n          penalties: [{name: ridge}]")
    assert failed() == {"training": "penalty ridge: there is no attention"}


def test_an_open_model_may_be_random_and_without_gradients(folder) -> None:
    edit(folder / "submission.yaml", "summary:", "division: open\nsummary:")
    (folder / "method.py").write_text(code("return self.head((x.flatten(1) + 0.1 * torch.randn(64)).mul(16).round())"))
    report = checked.check_submission(NAME)
    assert not report.failed
    division = next(check.found for check in report.checks if check.name == "division")
    assert division.startswith("open: the model is random")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("old", "new", "name", "words"),
    [
        ("small vision", "small\n bad: [", "schema", "not valid YAML"),
        ("epochs: 20", "epoch: 20", "schema", "did you mean 'epochs'?"),
        ("year: 2026", "year: 2025", "citation", "is 2025, not the year of the folder's name"),
        ("objective: standard", "objective: standard\n          parameters: {smooth: 1}", "training", "unknown parameter 'smooth'"),
        ("objective: standard", "objective: adversarial\n          attack: {attack: pgd, norm: Linf, eps: 0.1}", "training", "steps"),
        ("        training:", "        certificate: {name: local}\n        training:", "certificate", "this certificate needs"),
        ("width: 32", "width: 33", "builds", "do not divide"),
    ],
)  # fmt: skip
def test_a_bad_submission_yaml_is_found(folder, old, new, name, words) -> None:
    edit(folder / "submission.yaml", old, new)
    assert words in failed()[name]
    (folder / "submission.yaml").rename(folder / "submission.yml")
    assert failed()["schema"].endswith("/submission.yaml is missing, but submission.yml is there; rename it")
    (folder / "submission.yml").unlink()
    assert failed()["schema"].endswith("submission.yaml is missing")


@pytest.mark.slow
def test_missing_files_fail(folder) -> None:
    (folder / "test_method.py").unlink()
    (folder / "README.md").write_text("# nothing\n")
    assert set(failed()) == {"tests", "license"}
    (folder / "README.md").write_text("License: Apache-2.0\n")
    report = checked.check_submission(NAME)
    assert [check.name for check in report.failed] == ["tests"]
    assert any("Apache-2.0, not this repository's MIT" in note.found for note in report.notes)


def test_a_maintainer_sees_what_the_code_does_beside_computing(folder) -> None:
    (folder / "method.py").write_text(code("self.seen = x.sum()\n" + PLAIN))
    (folder / "layers.py").write_text(
        "import requests\nfrom urllib.request import urlopen\nimport timm\n"
        "timm.create_model('a', pretrained=True)\nopen('b').read()\ntorch.manual_seed(0)\n"
    )
    notes = [(note.name, note.found) for note in checked.check_submission(NAME).notes]
    assert [found for name, found in notes if name == "beside computing"] == [
        "network: import of requests (layers.py, line 1)",
        "network: import of urllib.request (layers.py, line 2)",
        "network: pretrained=True (layers.py, line 4)",
        "global state: torch.manual_seed (layers.py, line 6)",
        "file: open() (layers.py, line 5)",
    ]
    assert ("modules of its own", "Net") in notes
    assert ("a pass leaves traces", "attribute seen") in notes
    assert any(name == "size" and found.startswith("650 parameters, 0.00 MiB") for name, found in notes)
