"""The imports of a step: by its inputs file, and by sys.modules when it ends."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmark.protocol import STEPS
from benchmark.runtime import code

LOADS_STUDY = "from benchmark.studies import grids"


def planned_steps(project, row: str) -> list[str]:
    """Return the steps of a row that have inputs files, in order."""
    names = [path.stem for path in project.root.glob(f"work/*/inputs/{row}/*.json")]
    return sorted(names, key=lambda name: ([*STEPS].index(name.partition("-")[0]), name))


def planned_code(project, subject: str, name: str) -> set[str]:
    """Return the files of code in the step's inputs file."""
    places = (f"work/*/inputs/{subject}/{name}.json", f"work/*/studies/inputs/{subject}/{name}.json")
    data = [project.root / f"work/tiny/inputs/{name}.json"]
    (path,) = (path for place in places for path in project.root.glob(place)) if subject else data
    return {*json.loads(path.read_text())["code"]}


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
