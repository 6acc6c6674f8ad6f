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
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmark import protocol
from benchmark.loading import tracks
from benchmark.loading.rows import Row, load_rows
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import arithmetic, code, errors, files
from benchmark.runtime.errors import unless_broken
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
        BenchmarkError: the track does not load.
    """
    wanted = {path: files.to_json(content) for path, content in contents(track).items()}
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
    """Every file and what it should hold, but for rows and studies that are broken, which are named on stderr."""
    rules, found = tracks.load(track), {}
    digests = cache(code.digests)  # rows share most of their code: each entry is followed once
    found[inputs_file(track, "", "data")] = _inputs(
        [protocol.step_file("data"), *data.step.components(rules)], data.step.settings(rules), [], digests
    )
    found[inputs_file(track, "", "leaderboard")] = _inputs([Path("leaderboard/build.py")], {}, [], digests)
    for row in load_rows(track):
        found |= unless_broken(row.name, partial(of_row, row, digests)) or {}
    studies = grids.load_all(track)
    for grid in studies:
        found |= unless_broken(grid.id, partial(_of_study, grid, digests)) or {}
    found[papers_file(track)] = declared_papers(track, studies)
    return found


def of_row(row: Row, digests: Digests) -> dict[Path, dict[str, Any]]:
    """Those of a row.

    Raises:
        BenchmarkError: its code cannot be followed.
    """
    return {
        inputs_file(row.track.name, row.name, one.name): _inputs(one.entries, one.settings, list(one.reads), digests)
        for one in protocol.plan(row)
    }


def _of_study(grid: grids.Grid, digests: Digests) -> dict[Path, dict[str, Any]]:
    place = inputs_file(grid.track.name, f"_studies/{grid.id}", "study")
    return {place: _inputs(grid.entries, grid.settings, [grid.data, *grid.starts], digests)}


def _inputs(entries: list[Path], settings: dict[str, Any], reads: list[Path], digests: Digests) -> dict[str, Any]:
    return {
        "code": {path: digest for entry in entries for path, digest in digests(entry).items()},
        "settings": settings,
        "arithmetic": arithmetic.possible(run_settings().arithmetic),
        "reads": [path.as_posix() for path in reads],
    }


if __name__ == "__main__":
    errors.run(lambda: write(*sys.argv[1:]))
