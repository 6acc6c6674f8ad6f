"""A copy of the project with a tiny track, in a git and DVC repository of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TINY_TRACK = """\
version: 1
title: Tiny digits
description: A few digits, for tests.
data: {source: digits, seed: 0, validation: 40, test: 40, shape: [1, 8, 8], classes: 10}
evaluation: {images: 8, seed: 0, batch_size: 5}
suites:
  standard:
    - {attack: autoattack, norm: Linf, eps: 0.15}
  papers:
    - {attack: fgsm, norm: Linf, eps: 0.1}
    - {attack: pgd, norm: L2, eps: 0.5, parameters: {steps: 3, step_size: 0.2}}
certified_radii: [0.1]
smoothing: {sigma: 0.1, n0: 10, n: 64, looks: 3, alpha: 0.05, seed: 0}
"""

TINY_SUBMISSION = """\
name: {name}
summary: A tiny network for tests.
paper: {{title: None, authors: Nobody, year: 2026}}
variants:
  small:
    title: "{name}, small"
    tracks:
      tiny:
        model: {{patch_size: 4, width: 16, depth: 1, heads: 2, qk_norm: 1.0, vo_norm: 0.25, radius: 1.0}}
        training:
          objective: margin
          parameters: {{margin: 0.2, temperature: 20}}
          epochs: {epochs}
          batch_size: 64
          learning_rate: 0.01
        certificate: {{name: local}}
"""


class Project:
    """A copy of the project in its own git and DVC repository, with the track `tiny` and given submissions."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def new(cls, root: Path) -> Project:
        """A project without submissions."""
        published = str(ROOT / "leaderboard" / "results")
        for name in ("benchmark", "leaderboard"):
            shutil.copytree(
                ROOT / name,
                root / name,
                ignore=lambda folder, names: [n for n in names if n == "__pycache__" or f"{folder}/{n}" == published],
            )
        for name in ("params.yaml", ".dvcignore", ".gitignore"):
            shutil.copy(ROOT / name, root / name)
        (root / ".dvc").mkdir()
        for name in ("config", "plots.html"):
            shutil.copy(ROOT / ".dvc" / name, root / ".dvc" / name)
        (root / "submissions").mkdir()
        for track in (root / "benchmark" / "tracks").glob("*.yaml"):
            if track.stem != "digits":
                track.unlink()
        (root / "benchmark" / "tracks" / "tiny.yaml").write_text(TINY_TRACK)
        git("init", "-q", cwd=root)
        return cls(root)

    def copy(self, root: Path) -> Project:
        """This project with all that it has computed, elsewhere."""
        shutil.copytree(self.root, root)
        return Project(root)

    def add(self, name: str, epochs: int = 40) -> None:
        folder = self.root / "submissions" / name
        folder.mkdir()
        (folder / "submission.yaml").write_text(TINY_SUBMISSION.format(name=name, epochs=epochs))
        for file in ("method.py", "content.py", "grid.py"):  # which it imports
            shutil.copy(ROOT / "submissions" / "Havens2024LoFAST" / file, folder / file)

    def bring(self, name: str, attack: str, code: str, *specs: str) -> None:
        """Contribute attacks against a submission: its file `attack`.py and, as YAML flow mappings, its `adaptive` list."""
        folder = self.root / "submissions" / name
        (folder / f"{attack}.py").write_text(code)
        text, _, _ = (folder / "submission.yaml").read_text().partition("        adaptive:")
        lines = "".join(f"          - {{{spec}}}\n" for spec in specs)
        (folder / "submission.yaml").write_text(text + ("        adaptive:\n" + lines if specs else ""))

    def remember(self, other: Project, row: str, track: str = "tiny") -> None:
        """Copy results of a row's steps from `other` where they are missing; a step keeps them if the key is right."""
        for folder in (other.root / "work" / track / row).iterdir():
            if not (here := self.root / "work" / track / row / folder.name).exists():
                shutil.copytree(folder, here)

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        packages = os.pathsep.join(filter(None, (str(self.root), os.environ.get("PYTHONPATH", ""))))
        return {**os.environ, "PATH": path, "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `python -m <arguments>` here."""
        result = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=self.root, env=self.environment(), capture_output=True, text=True
        )
        if check and result.returncode:
            raise AssertionError(f"{arguments} failed:\n{result.stdout}\n{result.stderr}")
        return result

    def rvb(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("benchmark.commands.main", *arguments, check=check)

    def results(self, row: str) -> dict[str, bytes]:
        """Return all tracked bytes of a row, by file."""
        folder = self.root / "work" / "tiny" / row
        found = (p for p in folder.rglob("*") if p.is_file() and "times" not in p.parts)
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(found)}


def git(*arguments: str, cwd: Path | None = None) -> str:
    """Run git, with a committer of no particular name; return what it prints."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def edit(path: Path | str, old: str, new: str) -> None:
    """Write `new` wherever the file has `old`, which it must have."""
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def append(path: Path | str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text)


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], Project]) -> Project:
    """What `build` makes of a folder. The first worker that needs it builds it, and the others wait. Not to be changed."""
    base = factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "done").exists():
            shutil.rmtree(home / "project", ignore_errors=True)  # what a worker left that failed
            build(home / "project")
            (home / "done").touch()
    return Project(home / "project")
