"""What is done to a row, from its weights to its Record: `python -m benchmark.protocol <stage> <track> [<row or study>]`.

A row is a network with its recipe on a track (specs/rows.py). DVC sees two stages of it (pipeline/generate.py); each is
some steps, a file of benchmark/steps each. A step's result is kept under its key: the code that it imports, its
settings, and what it reads (steps/base.py). So a stage that runs again does again what changed: an edited attack is run on
every row, and nothing is trained. A step that was killed goes on where it was (runtime/scratch.py).

Each step runs in a fork of its own, made before any image or label is read: the sandboxed processes that it forks in turn,
which run the code of submissions, see nothing of the other steps. Steps run side by side where cores are free.

A study is a grid of rows that no board lists, its networks. They are trained and measured in the same way, side by side.
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
OF_NETWORKS = ("train", "measure")  # the steps of a study's networks
CORES = "RVB_CORES"  # the variable that says how many cores rows share; one without it


@cache
def load(name: str) -> type[Step]:
    """The step that does `name`, such as attack-standard. Raises BenchmarkError: there is none; the near miss is
    suggested.
    """
    kind, _, what = name.partition("-")
    step = importlib.import_module(f"benchmark.steps.{kind}").step if kind in STEPS else None
    if step is None or (what and not step.several):
        raise BenchmarkError(f"unknown step {name!r}{near_miss(kind, ('data', *STEPS))}")
    return step


def plan(row: Row) -> list[Step]:
    """The steps of a row, in order."""
    steps: list[Step] = []
    for kind in map(load, OF_NETWORKS if row.network else STEPS):
        earlier = [step.folder for step in steps]
        steps += [kind(row, name, earlier) for name in kind.names(row)]
    return steps


def stages(row: Row) -> dict[str, list[Step]]:
    """The steps of a row by the stage that they are part of, in the order in which stages can run."""
    steps: dict[str, list[Step]] = {}
    for step in plan(row):
        steps.setdefault(STEPS[step.name.partition("-")[0]], []).append(step)
    return steps


def planned(row: Row, name: str) -> Step:
    """One step of a row by name, such as attack-standard. Raises BenchmarkError: there is no such step, or it does not
    apply to the row.
    """
    kind, steps = load(name), {step.name: step for step in plan(row)}
    if name not in steps:
        raise kind.refuse(row, name)
    return steps[name]


def do(steps: Sequence[Step], cores: int) -> Iterator[Step]:
    """Do steps of one row or many, each in a fork, side by side where cores are free and none reads another's results.

    Yield each when it is done. What is done of a step that is killed stands in its scratch folder.
    """
    import_slow(steps)
    by_folder = {str(step.folder): step for step in steps}
    works = {folder: step.execute for folder, step in by_folder.items()}
    after = {
        folder: works.keys() & {str(place) for path in step.reads for place in (path, path.parent)}
        for folder, step in by_folder.items()
    }
    for folder in forks.run_side_by_side(works, after, cores):
        yield by_folder[folder]


def run(stage: str, track: str, subject: str = "") -> None:
    """Do a stage of a row, or the data of a track, or a study; results that stand are kept."""
    if stage == "data":
        importlib.import_module("benchmark.steps.data").execute(track)
    elif stage == "study":
        run_study(track, subject)
    else:
        row = load_row(track, subject)
        known = stages(row)
        if stage not in known:
            raise BenchmarkError(f"{row.name} has no stage {stage!r}{near_miss(stage, known)}")
        list(do(known[stage], _cores()))


def _cores() -> int:
    """How many cores the rows of this machine share. Raise BenchmarkError where the variable is no whole number."""
    text = os.environ.get(CORES, "1")
    if not text.isdecimal() or not int(text):
        raise BenchmarkError(f"{CORES} is {text!r}; give the number of cores that rows share, from 1 on")
    return int(text)


def run_study(track: str, study: str) -> None:
    """Train and measure the networks of a study, as many at a time as there are cores; then write its table. Raises
    BenchmarkError: a study that does not load, or networks, recipes or measures that do not fit; before any is trained.
    """
    from benchmark.studies import building, grids, results

    grid = grids.load(*grids.split_id(study), track)
    if grid.track.name != track:
        raise BenchmarkError(f"{grid.file} is a study on track {grid.track.name}, not {track}")
    networks = grid.networks()
    steps = [step for row in networks for step in plan(row)]
    import_slow(steps)
    forks.run(partial(building.check, grid))
    measured = (step.row.name for step in do(steps, grid.jobs) if step.name == "measure")
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
