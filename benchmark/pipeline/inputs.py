"""What each step's result depends on, in a file of its own: `python -m benchmark.pipeline.inputs <track>`.

DVC runs this before anything else, every time (`always_changed`), and makes each stage depend on the files of its steps:
work/<track>/inputs/<row>/<step>.json holds the digests of the code that the step really imports, its settings with their
defaults, the arithmetic, and what it reads. So plain `dvc repro` sees every edit of code or settings, and a comment, a
docstring or a setting of somebody else makes nothing stale. What papers and studies are declared is written there too.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from benchmark import protocol
from benchmark.loading import tracks
from benchmark.loading.rows import load_rows
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import arithmetic, code, errors, files
from benchmark.runtime.paths import WORK
from benchmark.steps import data
from benchmark.steps.base import inputs_file
from benchmark.studies import grids
from benchmark.studies.declared import declared_papers, papers_file

Digests = Callable[[Path], dict[str, str]]


def folder(track: str) -> Path:
    return WORK / track / "inputs"


def write(track: str) -> None:
    """Writes the inputs of every step of a track, and removes those of steps that are gone.

    Raises:
        BenchmarkError: a submission, study or file of code that does not load.
    """
    wanted = {path: files.to_json(content) for path, content in contents(track).items()}
    wanted[code.KEPT] = code.to_keep()
    for path, text in wanted.items():
        if not path.exists() or path.read_bytes() != text:
            files.write(path, text)
    for path in sorted(folder(track).rglob("*.json")):
        if path not in wanted:
            path.unlink()
    for path in sorted(folder(track).glob("*")):
        if path.is_dir() and not any(path.rglob("*.json")):
            shutil.rmtree(path)


def contents(track: str) -> dict[Path, dict[str, Any]]:
    """Every file and what it should hold."""
    rules, found = tracks.load(track), {}
    digests = cache(code.digests)  # rows share most of their code: each entry is followed once
    found[inputs_file(track, "", "data")] = _inputs(
        [protocol.step_file("data"), *data.step.components(rules)], data.step.settings(rules), [], digests
    )
    found[inputs_file(track, "", "leaderboard")] = _inputs([Path("leaderboard/build.py")], {}, [], digests)
    for row in load_rows(track):
        for one in protocol.plan(row):
            found[inputs_file(track, row.name, one.name)] = _inputs(one.entries, one.settings, list(one.reads), digests)
    studies = grids.load_all(track)
    for grid in studies:
        place = inputs_file(track, f"_studies/{grid.id}", "study")
        found[place] = _inputs(grid.entries, grid.settings, [grid.data, *grid.starts], digests)
    found[papers_file(track)] = declared_papers(track, studies)
    return found


def _inputs(entries: list[Path], settings: dict[str, Any], reads: list[Path], digests: Digests) -> dict[str, Any]:
    return {
        "code": {path: digest for entry in entries for path, digest in digests(entry).items()},
        "settings": settings,
        "arithmetic": arithmetic.possible(run_settings().arithmetic),
        "reads": [path.as_posix() for path in reads],
    }


if __name__ == "__main__":
    errors.run(lambda: write(*sys.argv[1:]))
