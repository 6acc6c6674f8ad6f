"""Steps run in this process, as `rvb step` runs them, and the code that one depends on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmark import protocol
from benchmark.attacks.prediction import Predictions
from benchmark.commands.pipeline import step
from benchmark.pipeline import inputs
from benchmark.runtime import code
from benchmark.runtime.clock import Clock
from benchmark.specs.rows import load_row
from benchmark.steps.base import Work
from benchmark.steps.evaluation import Subject
from benchmark.studies import grids


def run_stage(name: str, track: str, row: str = "") -> None:
    step(name, row, track, "")


def run_study(track: str, study: str) -> None:
    """Do a study as its DVC stages do it. Raise SystemExit where a network or the check fails; its process prints the error."""
    inputs.write_study(track, study)
    protocol.run("study", track, study)


def run_networks(track: str, study: str, count: int) -> None:
    """Do the first networks of a study, as a run does that is killed before the others."""
    inputs.write_study(track, study)
    networks = grids.load(*grids.split_id(study), track).networks()[:count]
    list(protocol.do([step for row in networks for step in protocol.plan(row)], 1))


def failed_study(capfd, track: str, study: str) -> str:
    """The error of a study whose check or network fails, of which no network may be trained."""
    with pytest.raises(SystemExit):
        run_study(track, study)
    printed = capfd.readouterr()
    assert "epoch" not in printed.out, "something was trained"
    return printed.err


def resumable(function: Callable, kind: str, images: torch.Tensor, labels: torch.Tensor, rules, folder: Path) -> Callable:
    """Return what computes a row's columns of evidence with a model, in a folder of this name, as its stage does."""
    row = load_row("digits", "Wong2020Fast-linf")

    def columns(model: torch.nn.Module, name: str) -> dict[str, torch.Tensor]:
        (folder / name).mkdir(exist_ok=True)
        clean = Predictions(labels, torch.ones(len(labels)))
        subject = Subject(model, images, labels, row.track.evaluation.batch_size, clean)
        return function(Work(row, kind, {}, (), folder / name, Clock(folder)), subject, rules)

    return columns


def stage_names(track: str, row: str) -> list[str]:
    """The stages of a row, in order."""
    return [step.name for step in protocol.plan(load_row(track, row))]


def stage_code(name: str, track: str, row: str) -> list[Path]:
    """The project files that this stage of the row depends on."""
    return code.closure(*protocol.planned(load_row(track, row), name).entries)


def study_entries(grid: grids.Grid) -> set[Path]:
    """The files from which the code of a study's networks is followed."""
    return {path for row in grid.networks() for step in protocol.plan(row) for path in step.entries}


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> object:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"no {what} after {seconds} s")


def stage_processes(project, stage: str, forks: bool = False) -> list[int]:
    """Python processes that run this stage in this project: not the shells around them, nor, unless asked for, their forks,
    in which steps and sandboxed code run.
    """
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            here = os.readlink(entry / "cwd")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        named = any(word.partition(b"-")[0] == stage.encode() for word in words)
        if b"benchmark.protocol" in words and named and here == str(project.root):
            found[int(entry.name)] = parent
    return [pid for pid, parent in found.items() if forks or parent not in found]


LAZY = {"benchmark/layers/timm_networks.py"}  # imported where a network is timm's
LOADS_STUDY = "from benchmark.studies import grids"


def planned_code(project, subject: str, name: str) -> set[str]:
    """Return the files of code in the step's inputs file, but `LAZY`."""
    places = (f"work/*/inputs/{subject}/{name}.json", f"work/*/studies/inputs/{subject}/{name}.json")
    data = [project.root / f"work/tiny/inputs/{name}.json"]
    (path,) = (path for place in places for path in project.root.glob(place)) if subject else data
    return {*json.loads(path.read_text())["code"]} - LAZY


def really_imported(project, name: str, track: str, subject: str = "") -> set[str]:
    """Return the project files in sys.modules when a step ends, without inert packages.

    The step runs without a sandbox, whose process would hide what a submission imports.
    """
    params = project.root / "params.yaml"
    text = params.read_text()
    params.write_text(text.replace("wall: full", "wall: none"))
    loads, row = "from benchmark.specs.rows import load_row", f"load_row({track!r}, {subject!r})"
    if subject.endswith(("-grid", "-seeds")):  # the first network of a study
        loads, row = LOADS_STUDY, f"grids.load(*grids.split_id({subject!r}), {track!r}).networks()[0]"
    run = (
        f"from benchmark.runtime import arithmetic\narithmetic.fix('portable')\n{loads}\n"
        f"from benchmark.steps.{name.partition('-')[0]} import step\nstep({row}, {name!r}).execute(again=True)\n"
    )
    script = (
        "import sys, pathlib\n"
        f"{run if subject else f'from benchmark.steps import data; data.execute({track!r})'}\n"
        "root = pathlib.Path.cwd()\n"
        "files = {pathlib.Path(m.__file__) for m in list(sys.modules.values()) if getattr(m, '__file__', None)}\n"
        "print('MODULES', *sorted(str(f.relative_to(root)) for f in files if f.is_relative_to(root)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=project.root, env=project.environment(), capture_output=True, text=True
    )
    params.write_text(text)
    assert result.returncode == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("MODULES"))
    found = [name for name in line.split()[1:] if name.endswith(".py")]
    return {name for name in found if not code.inert(project.root / name)}
