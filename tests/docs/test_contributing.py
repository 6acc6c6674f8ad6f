"""CONTRIBUTING.md's example, followed to the letter in a copy of the project."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tiny_project import ROOT, Project

NAME = "Doe2026Tiny"


def blocks() -> list[tuple[str, str]]:
    """(language, text) of each code block of the example, in order."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    example = text.partition("## A model, from start to pull request\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", example, re.DOTALL | re.MULTILINE)


def run(project: Project, command: list[str], given: str = "") -> str:
    done = subprocess.run(
        command, cwd=project.root, env=project.environment(), input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def newcomers_checkout(folder: Path) -> Project:
    """A clone of a project without rows, whose origin can be pushed to."""
    source = Project.new(folder / "source")
    for name in ("README.md", "pyproject.toml", ".dvc/.gitignore"):
        shutil.copy(ROOT / name, source.root / name)
    run(source, ["git", "add", "--all"])
    run(source, ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"])
    run(source, ["git", "branch", "-M", "main"])
    run(source, ["git", "clone", "-q", "--bare", ".", str(folder / "origin.git")])
    run(source, ["git", "clone", "-q", str(folder / "origin.git"), str(folder / "clone")])
    (folder / "clone/submissions").mkdir(exist_ok=True)  # git keeps no empty folder
    clone = Project(folder / "clone")
    for key, value in (("user.name", "Doe"), ("user.email", "doe@example.org")):
        run(clone, ["git", "config", key, value])
    return clone


def test_the_example_has_every_step() -> None:
    commands = "".join(text for language, text in blocks() if language == "sh")
    for step in ("rvb new", "rvb check", "rvb submit", "git push"):
        assert f"\n{step} " in f"\n{commands}"
    assert {language for language, _ in blocks()} == {"sh", "diff"}


@pytest.mark.slow
@pytest.mark.long
def test_the_example_works_as_it_is_written(tmp_path) -> None:
    project, output = newcomers_checkout(tmp_path), ""
    for language, text in blocks():
        if language == "diff":
            run(project, ["git", "apply", "-"], text)
        else:
            output += run(project, ["bash", "-xeuo", "pipefail", "-c", text])
    assert re.search(rf"{NAME}: all \d+ checks passed", output)
    assert "1 new, 0 removed, 0 changed, 0 same" in output
    assert f"| {NAME}-small on digits, new | clean |" in output
    record = json.loads((project.root / f"work/digits/{NAME}-small/record/record.json").read_text())
    assert record["settings"]["training"]["objective"] == "adversarial", "the change was made"
    assert record["robust"][0]["accuracy"]["value"] > 0.3, "and shows: an undefended one has 0.04"
    pushed = run(project, ["git", "ls-tree", "-r", "--name-only", f"origin/{NAME}"]).splitlines()
    assert f"leaderboard/results/digits/{NAME}-small.json" in pushed
    assert f"leaderboard/results/digits/weights/{NAME}-small.safetensors" in pushed
    assert f"pipelines/digits/{NAME}-small/dvc.lock" in pushed
    assert f"submissions/{NAME}/method.py" in pushed
    left = run(project, ["git", "status", "--short"]).splitlines()
    assert not left, "all that commands wrote is committed"
    assert f"](submissions/{NAME})" in (project.root / "README.md").read_text()
