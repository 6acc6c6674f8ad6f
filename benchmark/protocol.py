"""What is done to a row, from its weights to its Record: `python -m benchmark.protocol <stage> <track> [<row>]`.

A row is a network with its recipe on a track (loading/rows.py). DVC sees two stages of it (pipeline/generate.py); each is
some steps, a file of benchmark/steps each. A step's result is kept under its key: the code that it imports, its
settings, and what it reads (steps/base.py). So a stage that runs again does again what changed: an edited attack is run on
every row, and nothing is trained. A step that was killed goes on where it was (runtime/scratch.py).

Each step runs in a fork of its own, made before any image or label is read: the sandboxed processes that it forks in turn,
which run the code of submissions, see nothing of the steps before it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.loading.rows import Row, load_row
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.wall.confinement import die_with_parent

if TYPE_CHECKING:
    from benchmark.steps.base import Step

# Each step of a row with the stage that it is part of. The evidence of a row is merged in this order.
STEPS = {
    "train": "train",  # weights by the row's recipe, on training images alone
    "pretrained": "train",  # or weights that were trained elsewhere
    "attack": "evaluate",  # attack-<suite>: each suite of the track, and the attacks brought against the row
    "certify": "evaluate",  # l2 radii proven by the row's certificate, and the audit that tried to break them
    "formula": "evaluate",  # what a paper's unsound formula would claim, beside it
    "reliability": "evaluate",  # whether the attacks can be trusted: probes of the model
    "smooth": "evaluate",  # the smoothed version, certified by sampling
    "pictures": "evaluate",  # what perturbations look like
    "corrupt": "evaluate",  # accuracy on corrupted copies
    "attention": "evaluate",  # what the attention does
    "collect": "evaluate",  # all evidence held against itself (certified <= robust <= clean, by image), and the Record
}
SHARED = {"data": "", "study": "study"}  # what works on a track, or on a study
# what is slow to import, once for all steps of a stage
TRAINING = ("benchmark.loading.walled_training", "torch._dynamo")
EVALUATING = ("pyarrow.dataset", "pyarrow.parquet", "safetensors.torch", "scipy.stats", "rich.console", "torch._dynamo")


@dataclass(frozen=True)
class Planned:
    """What one step does on a row: `folder` holds its outputs, `reads` are the files and folders that it reads."""

    step: Step
    row: Row
    name: str
    folder: Path
    reads: tuple[Path, ...]

    @property
    def stage(self) -> str:
        return STEPS[self.step.name]

    @property
    def entries(self) -> list[Path]:
        """The files from which its code is followed."""
        return [step_file(self.step.name), *self.step.components(self.row, self.name)]

    @property
    def settings(self) -> dict[str, Any]:
        return self.step.settings(self.row, self.name)


def step_file(name: str) -> Path:
    return Path("benchmark/steps") / f"{name}.py"


@cache
def load(name: str) -> Any:
    """The step that does `name`, such as attack-standard, of those of rows, tracks and studies.

    Raises:
        BenchmarkError: there is none; the near miss is suggested.
    """
    kind, _, what = name.partition("-")
    step = importlib.import_module(f"benchmark.steps.{kind}").step if kind in STEPS | SHARED else None
    if step is None or (what and not getattr(step, "several", False)):
        raise BenchmarkError(f"unknown step {name!r}{near_miss(kind, STEPS | SHARED)}")
    return step


def plan(row: Row) -> list[Planned]:
    """The steps of a row, in order."""
    planned: list[Planned] = []
    for step in map(load, STEPS):
        earlier = [one.folder for one in planned]
        for name in step.names(row):
            planned.append(Planned(step, row, name, step.folder(row, name), tuple(step.reads(row, name, earlier))))
    return planned


def stages(row: Row) -> dict[str, list[Planned]]:
    """The steps of a row by the stage that they are part of, in the order in which stages can run."""
    planned = plan(row)
    found = {stage: [one for one in planned if one.stage == stage] for stage in dict.fromkeys(STEPS.values())}
    return {stage: steps for stage, steps in found.items() if steps}


def planned(row: Row, name: str) -> Planned:
    """One step of a row by name, such as attack-standard.

    Raises:
        BenchmarkError: there is no such step, or it does not apply to the row.
    """
    step = load(name)
    for one in plan(row):
        if one.name == name:
            return one
    if name in SHARED:
        raise BenchmarkError(f"step {name} does not work on rows")
    raise step.refuse(row, name)


def run(stage: str, track: str, subject: str = "") -> None:
    """Do a stage: of a row its steps one after another, but for those whose results stand."""
    if stage in SHARED:
        load(stage).execute(stage, track, subject)
        return
    row = load_row(track, subject)
    steps = stages(row).get(stage)
    if not steps:
        raise BenchmarkError(f"{row.name} has no stage {stage!r}{near_miss(stage, stages(row))}")
    _import_all(row, steps)
    for one in steps:
        _apart(one)


def _import_all(row: Row, steps: list[Planned]) -> None:
    """Import, once for all steps, what is slow to import; no code of submissions."""
    from benchmark.runtime import files
    from benchmark.steps.base import inputs_file

    names = dict.fromkeys(TRAINING if steps[0].stage == "train" else EVALUATING)
    names |= {"timm": None} if "timm" in row.method.read_text() else {}
    for one in steps if steps[0].stage == "evaluate" else ():
        code = map(Path, files.read_json(inputs_file(row.track.name, row.name, one.name))["code"])
        own = [path for path in code if path.parts[0] == "benchmark" and path.name != "__init__.py"]
        names |= dict.fromkeys(".".join(path.with_suffix("").parts) for path in own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own modules
        for name in names:
            importlib.import_module(name)


def _apart(one: Planned) -> None:
    """In a fork, which ends when this process does; what is done of the step then stands in its scratch folder."""
    from benchmark.runtime import errors

    def work() -> None:
        die_with_parent()
        errors.run(lambda: one.step.execute(one.name, one.row.track.name, one.row.name))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    if status := process.exitcode:
        sys.exit(status if status > 0 else 128 - status)


def main(arguments: list[str]) -> None:
    from benchmark.loading.run_settings import run_settings
    from benchmark.runtime import arithmetic, errors

    def work() -> None:
        arithmetic.fix(run_settings().arithmetic)
        run(*arguments)

    errors.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
