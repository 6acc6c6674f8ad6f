"""docs/reproduce.md, followed literally in a checkout that has computed nothing: its retraining and what it prints."""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from tiny_project import ROOT, Project

TEXT = (ROOT / "docs/reproduce.md").read_text()
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
    looking, checking = re.findall(r"```sh\nrvb (.*)\n```", TEXT)[:2]
    assert "figure3" in project.rvb(*looking.split()).stdout
    (expected,) = re.findall(r"```text\n(.*)\n```", TEXT)
    assert expected in project.rvb(*checking.split()).stdout
