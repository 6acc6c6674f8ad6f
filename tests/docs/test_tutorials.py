"""Tutorials are followed literally: one evaluates a model of one's own, one reproduces a published network."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from tiny_project import ROOT, Project
from torch import nn
from typer.testing import CliRunner

from benchmark.attacks.engine import square
from benchmark.commands.main import app

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs/evaluate.md"
TEXT = PAGE.read_text()


def test_a_newcomer_follows_the_page(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(square, "QUERIES", 20)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(block, names)
    assert "AutoAttack L2 0.5" in capsys.readouterr().out
    assert "AutoAttack Linf 0.00784" in (tmp_path / "report.html").read_text()
    assert names["report"].numbers["clean"].n == 20
    assert (names["certified"].certified.radii >= 0).all()
    network = "nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"
    (tmp_path / "model.py").write_text(f"from torch import nn\n\n\ndef build():\n    return {network}\n")
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).state_dict(), "weights.pt")
    (command,) = re.findall(r"```sh\nrvb (.*)\n```", TEXT)
    done = CliRunner().invoke(app, [*shlex.split(command), "--count", "20"])
    sys.modules.pop("model", None)
    assert done.exit_code == 0, done.exception
    assert "wrote report.html" in done.stdout


@pytest.mark.long
def test_the_notebook_runs_cell_by_cell(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(square, "QUERIES", 20)
    notebook = json.loads(PAGE.with_suffix(".ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict = {}
    for cell in cells:
        exec(cell, names)
    assert len(cells) == 3
    robust = [names[name].numbers["AutoAttack Linf 0.15"].value for name in ("report", "compared")]
    assert robust[0] > 0.4 > robust[1]
    assert "<td>" in names["report"]._repr_html_()


REPRODUCE = (ROOT / "docs/reproduce.md").read_text()
STUDY = "leaderboard/results/digits/studies/Havens2024LoFAST-figure3.json"


@pytest.mark.slow
@pytest.mark.long
def test_a_newcomer_retrains_a_published_network(tmp_path) -> None:
    versions = json.loads((ROOT / STUDY).read_text())["result"]["environment"]
    if other := [name for name in ("torch", "numpy") if versions[name] != version(name)]:
        pytest.skip(f"published with another version of {', '.join(other)}")
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the published bytes need a processor with AVX2")
    project = Project.new(tmp_path / "checkout")
    for folder in ("submissions/Havens2024LoFAST", "benchmark/tracks"):
        shutil.copytree(ROOT / folder, project.root / folder, dirs_exist_ok=True)
    (project.root / STUDY).parent.mkdir(parents=True)
    shutil.copy(ROOT / STUDY, project.root / STUDY)
    looking, checking = re.findall(r"```sh\nrvb (.*)\n```", REPRODUCE)[:2]
    assert "figure3" in project.rvb(*looking.split()).stdout
    (expected,) = re.findall(r"```text\n(.*)\n```", REPRODUCE)
    assert expected in project.rvb(*checking.split()).stdout
