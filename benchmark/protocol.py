"""What is done to a row, from its weights to its Record: `python -m benchmark.protocol <stage> <track> [<row or study>]`.

A row is a network with its recipe on a track (loading/rows.py). DVC sees two stages of it (pipeline/generate.py); each is
some steps, a file of benchmark/steps each. A step's result is kept under its key: the code that it imports, its
settings, and what it reads (steps/base.py). So a stage that runs again does again what changed: an edited attack is run on
every row, and nothing is trained. A step that was killed goes on where it was (runtime/scratch.py).

Each step runs in a fork of its own, made before any image or label is read: the sandboxed processes that it forks in turn,
which run the code of submissions, see nothing of the other steps. Steps run side by side where cores are free.

A study is a grid of rows that no board lists, its networks. They are trained and measured by the same steps, side by side.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.loading.rows import Row, load_row
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.sandbox import forks

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
    "measure": "evaluate",  # what a study measures of one of its networks
    "collect": "evaluate",  # all evidence held against itself (certified <= robust <= clean, by image), and the Record
}
CORES = "RVB_CORES"  # the variable that says how many cores rows share; one without it
OF_NETWORKS = ("train", "measure")  # the steps of a study's networks
# what is slow to import, once for all steps of a stage
TRAINING = ("benchmark.sandbox.training", "torch._dynamo")
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

    @property
    def inputs(self) -> Path:
        """Its inputs file: code by file, settings, arithmetic, and what it reads."""
        return self.row.inputs / f"{self.name}.json"


def step_file(name: str) -> Path:
    return Path("benchmark/steps") / f"{name}.py"


@cache
def load(name: str) -> Any:
    """The step that does `name`, such as attack-standard; `data` works on a track, the others on rows.

    Raises:
        BenchmarkError: there is none; the near miss is suggested.
    """
    kind, _, what = name.partition("-")
    step = importlib.import_module(f"benchmark.steps.{kind}").step if kind in STEPS or kind == "data" else None
    if step is None or (what and not getattr(step, "several", False)):
        raise BenchmarkError(f"unknown step {name!r}{near_miss(kind, ('data', *STEPS))}")
    return step


def plan(row: Row) -> list[Planned]:
    """The steps of a row, in order."""
    planned: list[Planned] = []
    for step in (load(name) for name in (OF_NETWORKS if row.network else STEPS)):
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
    raise step.refuse(row, name)


def run(stage: str, track: str, subject: str = "") -> None:
    """Do a stage of a row, or the data of a track, or a study; results that stand are kept."""
    if stage == "data":
        load("data").execute(track)
    elif stage == "study":
        run_study(track, subject)
    else:
        run_row(stage, load_row(track, subject))


def run_row(stage: str, row: Row) -> None:
    """Do the steps of a stage of a row, side by side where cores are free and no step reads another's results."""
    steps = stages(row).get(stage)
    if not steps:
        raise BenchmarkError(f"{row.name} has no stage {stage!r}{near_miss(stage, stages(row))}")
    _import_all(steps)
    folders = {one.name: one.folder for one in steps}
    after = {one.name: {name for name, folder in folders.items() if folder in one.reads} for one in steps}
    works = {one.name: partial(one.step.execute, one.name, row) for one in steps}
    # what is done of a step that is killed stands in its scratch folder
    list(forks.run_side_by_side(works, after, _cores()))


def _cores() -> int:
    """Return how many cores the rows of this machine share.

    Raises:
        BenchmarkError: the variable is no whole number.
    """
    text = os.environ.get(CORES, "1")
    if not text.isdecimal() or not int(text):
        raise BenchmarkError(f"{CORES} is {text!r}; give the number of cores that rows share, from 1 on")
    return int(text)


def run_study(track: str, study: str) -> None:
    """Train and measure the networks of a study, as many at a time as there are cores; then write its table.

    Raises:
        BenchmarkError: a study that does not load, or networks, recipes or measures that do not fit; before any is trained.
    """
    from benchmark.studies import building, grids, results

    grid = grids.load(*grids.split_id(study), track)
    if grid.track.name != track:
        raise BenchmarkError(f"{grid.file} is a study on track {grid.track.name}, not {track}")
    networks = {row.name: row for row in grid.networks()}
    _import_all([one for row in networks.values() for one in plan(row)])
    forks.run(partial(building.check, grid))
    after = {name: {row.source.name} for name, row in networks.items() if row.source and row.source.network}
    works = {name: partial(run_network, row) for name, row in networks.items()}
    for number, name in enumerate(forks.run_side_by_side(works, after, grid.jobs), 1):
        print(f"{name}: {number} of {len(works)} are done", flush=True)
    results.write(grid)


def run_network(row: Row) -> None:
    for one in plan(row):
        forks.run(partial(one.step.execute, one.name, one.row))


def _import_all(steps: Sequence[Planned]) -> None:
    """Import, once for all steps, what is slow to import; no code of submissions."""
    from benchmark.runtime import files

    names: dict[str, None] = {}
    for one in steps:
        names |= dict.fromkeys(TRAINING if one.stage == "train" else EVALUATING)
        names |= {"timm": None} if "timm" in one.row.method.read_text() else {}
        code = map(Path, files.read_json(one.inputs)["code"]) if one.stage == "evaluate" else ()
        own = [path for path in code if path.parts[0] == "benchmark" and path.name != "__init__.py"]
        names |= dict.fromkeys(".".join(path.with_suffix("").parts) for path in own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own modules
        for name in names:
            importlib.import_module(name)


def main(arguments: list[str]) -> None:
    from benchmark.loading.run_settings import run_settings
    from benchmark.runtime import arithmetic, errors

    def work() -> None:
        arithmetic.fix(run_settings().arithmetic)
        run(*arguments)

    errors.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
