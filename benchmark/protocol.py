"""What is done to a row, from its weights to its Record: `python -m benchmark.protocol <stage> <track> [<row or study>]`.

A row is a network with its recipe on a track (specs/rows.py). DVC sees two stages of a row (pipeline/generate.py); each
stage is several steps, one file of benchmark/steps each. A step's result is kept under its key: the code that it imports,
its settings, and what it reads (steps/base.py). So a stage that runs again repeats only the steps that changed: an edited
attack runs on every row, and nothing is trained. A killed step resumes (runtime/scratch.py).

Each step runs in a fork of its own, made before any image or label is read. Its sandboxed processes are forks of that fork,
so they see nothing of other steps. Steps run side by side on free cores.

A study is a grid of networks that no board lists. They are trained and measured in the same way, side by side.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial

from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.sandbox import forks
from benchmark.specs.rows import Row, load_row
from benchmark.steps.base import Step, import_slow

# Each step of a row with its stage. The evidence of a row is merged in this order.
STEPS = {
    "train": "train",  # weights by the row's recipe, on training images alone
    "pretrained": "train",  # or weights that were trained elsewhere
    "attack": "evaluate",  # attack-<suite>: each suite of the track, and attacks contributed against the row
    "certify": "evaluate",  # l2 radii proven by the row's certificate, and the audit that tries to break them
    "formula": "evaluate",  # what a paper's unsound formula would claim
    "reliability": "evaluate",  # whether the attacks can be trusted: probes of the model
    "smooth": "evaluate",  # the smoothed version, certified by sampling
    "pictures": "evaluate",  # what perturbations look like
    "corrupt": "evaluate",  # accuracy on corrupted copies
    "attention": "evaluate",  # what the attention does
    "measure": "evaluate",  # a study's measures of one of its networks
    "collect": "evaluate",  # checks certified <= robust <= clean for each image, and writes the Record
}
OF_NETWORKS = ("train", "measure")  # the steps of a study's networks
CORES = "RVB_CORES"  # the variable with the number of cores that rows share; 1 if it is not set


@cache
def load(name: str) -> type[Step]:
    """Return the step named `name`, such as attack-standard. Raise BenchmarkError for an unknown name, with the near miss."""
    kind, _, what = name.partition("-")
    step = importlib.import_module(f"benchmark.steps.{kind}").step if kind in STEPS else None
    if step is None or (what and not step.several):
        raise BenchmarkError(f"unknown step {name!r}{near_miss(kind, ('data', *STEPS))}")
    return step


def plan(row: Row) -> list[Step]:
    """Return the steps of a row, in order."""
    steps: list[Step] = []
    for kind in map(load, OF_NETWORKS if row.network else STEPS):
        earlier = [step.folder for step in steps]
        steps += [kind(row, name, earlier) for name in kind.names(row)]
    return steps


def stages(row: Row) -> dict[str, list[Step]]:
    """Return the steps of a row by stage, in the order in which stages can run."""
    steps: dict[str, list[Step]] = {}
    for step in plan(row):
        steps.setdefault(STEPS[step.name.partition("-")[0]], []).append(step)
    return steps


def planned(row: Row, name: str) -> Step:
    """Return one step of a row by name, such as attack-standard. Raise BenchmarkError if it is unknown or does not apply."""
    kind, steps = load(name), {step.name: step for step in plan(row)}
    if name not in steps:
        raise kind.refuse(row, name)
    return steps[name]


def do(steps: Sequence[Step], cores: int, go_on: bool = False) -> Iterator[Step]:
    """Do steps of one row or many, each in a fork; steps run side by side on free cores unless one reads another's results.

    Yield each step when it is done. A killed step keeps its partial work in its scratch folder. A step that fails ends the
    others; with `go_on`, those that read its results alone.
    """
    import_slow(steps)
    by_folder = {str(step.folder): step for step in steps}
    works = {folder: step.execute for folder, step in by_folder.items()}
    after = {
        folder: works.keys() & {str(place) for path in step.reads for place in (path, path.parent)}
        for folder, step in by_folder.items()
    }
    for folder in forks.run_side_by_side(works, after, cores, go_on):
        yield by_folder[folder]


def run(stage: str, track: str, subject: str = "") -> None:
    """Do a stage of a row, or the data of a track, or a study; up-to-date results are kept."""
    if stage == "data":
        importlib.import_module("benchmark.steps.data").execute(track)
    elif stage == "study":
        run_study(track, subject)
    else:
        row = load_row(track, subject)
        steps = stages(row)
        if stage not in steps:
            raise BenchmarkError(f"{row.name} has no stage {stage!r}{near_miss(stage, steps)}")
        list(do(steps[stage], _cores()))


def _cores() -> int:
    """Return how many cores the rows of this machine share. Raise BenchmarkError if the variable is no whole number."""
    text = os.environ.get(CORES, "1")
    if not text.isdecimal() or not int(text):
        raise BenchmarkError(f"{CORES} is {text!r}; give the number of cores that rows share, from 1 on")
    return int(text)


def run_study(track: str, study: str) -> None:
    """Train and measure the networks of a study, as many at a time as there are cores; then write its table.

    A network that fails, such as one that diverges, ends no other. Raise BenchmarkError before any training if the study
    does not load, or if networks, recipes or measures do not fit.
    """
    from benchmark.studies import building, grids, results

    grid = grids.load(*grids.split_id(study), track)
    if grid.track.name != track:
        raise BenchmarkError(f"{grid.file} is a study on track {grid.track.name}, not {track}")
    networks = grid.networks()
    steps = [step for row in networks for step in plan(row)]
    import_slow(steps)
    forks.run(partial(building.check, grid))
    measured = (step.row.name for step in do(steps, grid.jobs, go_on=True) if step.name == "measure")
    for number, name in enumerate(measured, 1):
        print(f"{name}: {number} of {len(networks)} are done", flush=True)
    results.write(grid)


def main(arguments: list[str]) -> None:
    from benchmark.runtime import arithmetic, errors
    from benchmark.specs.run_settings import run_settings

    def work() -> None:
        arithmetic.fix(run_settings().arithmetic)
        run(*arguments)

    errors.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
