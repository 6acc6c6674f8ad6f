"""Projects of linear rows, committed and with a DVC remote, as `rvb repro --engine` wants them; and an engine of this process."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tiny_linear_row
from benchmark.pipeline.cluster.engine import Arrived
from benchmark.pipeline.cluster.orders import Answer, Order
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.cluster.site import Shipment
from edited_file import edit
from tiny_project import Project

from benchmark.pipeline import generate, inputs

ROWS = ("Tiny2026Linear-small", "Tiny2026Linear-other")
OTHER = """\
  other:
    title: Linear, one epoch
    tracks:
      tiny:
        training: {objective: standard, epochs: 1, batch_size: 64, learning_rate: 0.01}
"""
TUNED = """\
  tuned:
    title: Fine-tuned
    tracks:
      tiny:
        training: {objective: standard, epochs: 1, batch_size: 64, learning_rate: 0.001, init_from: {row: Tiny2026Linear-small}}
"""


def new(root: Path, *variants: str) -> Project:
    """A project of the linear row and of these variants beside it, committed; its remote is the folder `remote` beside it."""
    project = tiny_linear_row.new(root)
    submission = root / "submissions/Tiny2026Linear/submission.yaml"
    submission.write_text(submission.read_text() + "".join(variants))
    with contextlib.chdir(root):
        generate.write()
        inputs.write("tiny")  # as a coordinator does before it sends an order
    edit(root / ".dvc/config", "[core]\n", "[core]\n    remote = store\n")
    with (root / ".dvc/config").open("a") as config:
        config.write(f"['remote \"store\"']\n    url = {root.parent / 'remote'}\n")
    commit(project)
    return project


def commit(project: Project) -> str:
    """Commits all that is not ignored; the commit's name."""
    git(project, "add", "-A")
    git(project, "-c", "user.name=Nobody", "-c", "user.email=nobody@localhost", "commit", "-qm", "As it stands")
    return git(project, "rev-parse", "HEAD").strip()


def git(project: Project, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=project.root, check=True, capture_output=True, text=True)
    return done.stdout


def locks(project: Project) -> dict[str, bytes]:
    """The bytes of every lock file of the tiny track."""
    found = (project.root / "pipelines/tiny").rglob("dvc.lock")
    return {str(path.relative_to(project.root)): path.read_bytes() for path in found}


def site(project: Project) -> dict[str, bytes]:
    """The board's pages; times.js says how long stages took, and is no result."""
    home = project.root / "work/tiny/site"
    found = (path for path in home.rglob("*") if path.is_file() and path.name != "times.js")
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


class FakeEngine:
    """Answers the orders that were sent, one at each `wait`, by a function; so many places of one core."""

    name = "fake"

    def __init__(self, answer: Callable[[Order], Answer], places: int = 1, most: int = 4) -> None:
        self._answer, self._places, self._most = answer, places, most
        self.sent: list[str] = []  # in order
        self.needs: dict[str, Resources] = {}
        self.together = 0  # the most orders out at a time
        self.ended: bool | None = None
        self.said: list[dict[str, Any]] = []
        self._out: list[Order] = []
        self._begun: dict[str, str] = {}

    def fits(self, needs: Resources) -> bool:
        return needs.cores <= self._most

    def places(self, needs: Resources) -> int:
        return self._places // needs.cores

    def start(self, shipment: Shipment) -> None:
        self.shipment = shipment

    def introduced(self, sent: str) -> list[dict[str, Any]]:
        return self.said

    def submit(self, order: Order, needs: Resources) -> None:
        self.sent.append(order.key)
        self.needs[order.key] = needs
        self._out.append(order)
        self.together = max(self.together, len(self._out))

    def wait(self, seconds: float) -> list[Arrived]:
        order = self._out.pop(0)
        self._begun[order.key] = "here"
        return [Arrived(order.key, self._answer(order))]

    def started(self) -> Mapping[str, str]:
        found, self._begun = self._begun, {}
        return found

    def stop(self, end: bool) -> None:
        self.ended = end
