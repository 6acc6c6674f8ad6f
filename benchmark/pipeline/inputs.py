"""Write what each step's result depends on: `python -m benchmark.pipeline.inputs <track> [<study>]`.

DVC runs this before anything else, every time (`always_changed`), and makes each stage depend on the files of its steps:
work/<track>/inputs/<row>/<step>.json holds the digests of the code that the step really imports, its settings with their
defaults, the arithmetic, and what it reads. So plain `dvc repro` sees every edit of code or settings; a comment, a
docstring or another row's setting makes nothing stale. The declared papers and studies are written there too.
"""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmark import protocol
from benchmark.records.study import DeclaredPaper
from benchmark.runtime import arithmetic, code, errors, files
from benchmark.runtime.errors import unless_broken
from benchmark.runtime.paths import WORK, papers_file
from benchmark.specs import submissions, tracks
from benchmark.specs.rows import Row, load_rows
from benchmark.specs.run_settings import run_settings
from benchmark.steps import data
from benchmark.studies import grids

Digests = Callable[[Path], dict[str, str]]


def folder(track: str) -> Path:
    return WORK / track / "inputs"


def file(track: str, name: str) -> Path:
    """Return the inputs file of a stage of the whole track: `data` or `leaderboard`."""
    return folder(track) / f"{name}.json"


def write(track: str) -> None:
    """Write the inputs of every step of a track; remove those of steps that no longer exist.

    Raise a BenchmarkError if the track does not load.
    """
    _update(folder(track), contents(track))


def write_study(track: str, study: str) -> None:
    """Write the inputs of the steps of a study's networks. Raise as `write` does."""
    grid, digests = grids.load(*grids.split_id(study), track), cache(code.digests)
    _update(grid.inputs, {path: given for row in grid.networks() for path, given in of_row(row, digests).items()})


def write_row(row: Row) -> None:
    """Write the inputs of one row's steps. Raise as `write` does."""
    _update(row.inputs, of_row(row, code.digests))


def _papers(track: str) -> dict[str, Any]:
    """Return what each submission with a row or a study on `track` declares there, as JSON."""
    studies = grids.load_all(track)
    owners = {owner.name: owner for owner, _ in submissions.rows(track)}
    owners |= {grid.submission.name: grid.submission for grid in studies}
    papers = {}
    for name, owner in sorted(owners.items()):
        own = {grid.name: grid.study for grid in studies if grid.submission.name == name}
        beyond = tuple(name for name, variant in owner.variants.items() if variant.extension)
        about = {"summary": owner.summary, "paper": owner.paper, "claims": owner.claims, "extensions": beyond}
        papers[name] = DeclaredPaper.model_validate(about | {"studies": own}).model_dump(mode="json")
    return papers


def write_papers(track: str) -> None:
    """Write what submissions declare on a track, for its board. Raise as `write` does."""
    files.write_json(papers_file(track), _papers(track))


def _update(home: Path, contents: dict[Path, dict[str, Any]]) -> None:
    inputs_files = {path: files.to_json(content) for path, content in contents.items()} | {code.KEPT: code.to_keep()}
    for path, text in inputs_files.items():
        if not path.exists() or path.read_bytes() != text:
            files.write(path, text)
    for path in sorted(home.rglob("*.json")):
        if path not in inputs_files:
            path.unlink()
    for path in sorted(home.glob("*")):
        if path.is_dir() and not any(path.rglob("*.json")):
            shutil.rmtree(path)


def contents(track: str) -> dict[Path, dict[str, Any]]:
    """Return every inputs file with its content. Broken rows and studies are left out and named on stderr."""
    rules, made = tracks.load(track), {}
    digests = cache(code.digests)  # rows share most of their code: each entry is followed once
    made[file(track, "data")] = _inputs(data.entries(rules), rules.data.model_dump(mode="json"), [], digests)
    made[file(track, "leaderboard")] = _inputs([Path("leaderboard/build.py")], {}, [], digests)
    for row in load_rows(track):
        made |= unless_broken(row.name, partial(of_row, row, digests)) or {}
    made[papers_file(track)] = _papers(track)
    return made


def present_code(track: str) -> dict[str, dict[str, str]]:
    """Return the digest of each step's present code, by row and step."""
    digests: dict[str, dict[str, str]] = defaultdict(dict)
    for path, content in contents(track).items():
        if "code" in content:
            digests[path.parent.name][path.stem] = code.combined(content["code"])
    return digests


def of_row(row: Row, digests: Digests) -> dict[Path, dict[str, Any]]:
    """Return the inputs of a row's steps by file. Raise a BenchmarkError where its code cannot be followed."""
    steps = protocol.plan(row)
    return {step.inputs: _inputs(step.entries, step.settings, list(step.reads), digests) for step in steps}


def _inputs(entries: list[Path], settings: dict[str, Any], reads: list[Path], digests: Digests) -> dict[str, Any]:
    return {
        "code": {path: digest for entry in entries for path, digest in digests(entry).items()},
        "settings": settings,
        "arithmetic": arithmetic.possible(run_settings().arithmetic),
        "reads": [path.as_posix() for path in reads],
    }


if __name__ == "__main__":
    errors.run(lambda: (write if len(sys.argv) == 2 else write_study)(*sys.argv[1:]))
