"""Which rows a change can move: those with a stage whose inputs file is another than at an earlier commit.

The inputs files of that commit are written by its own code, in a copy of it aside, so that a stage counts as changed by
the rule by which DVC would run it: code that it imports, without comments, and settings with their defaults.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark import protocol
from benchmark.loading import tracks
from benchmark.loading.rows import Row, load_row, load_rows
from benchmark.pipeline import inputs
from benchmark.runtime import files, git
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import Frozen
from benchmark.steps.base import inputs_file

Contents = Mapping[str, Any]  # of one inputs file, as JSON values


class ChangedRow(Frozen):
    """A row, and why a stage of it would run again: `<stage>: <file or setting>`, the first of each stage."""

    track: str
    row: str
    why: tuple[str, ...]


def changed_rows(names: Sequence[str], commit: str, everything: bool = False) -> list[ChangedRow]:
    """The rows of these tracks that differ from `commit`, in order.

    Rows with `default: false` count only where their own folder or settings changed, or with `everything`.

    Raises:
        BenchmarkError: an unknown track, a submission that does not load, or inputs that the commit's code cannot write.
    """
    before = _at_commit([tracks.load(name).name for name in names], commit)
    return [row for name in names for row in _of_track(name, before, everything)]


def _of_track(track: str, before: Mapping[Path, Contents], everything: bool) -> list[ChangedRow]:
    rows = load_rows(track)
    if not rows:
        return []
    now = {path: json.loads(files.to_json(content)) for path, content in inputs.contents(track).items()}
    data = inputs_file(track, "", "data")
    of_data = [f"data: {why}" for why in differences(before.get(data), now[data])[:1]]
    found: dict[str, list[str]] = {}
    shown = set()
    for row in rows:
        stages = {one.name: inputs_file(track, row.name, one.name) for one in protocol.plan(row)}
        differing = {name: differences(before.get(path), now[path]) for name, path in stages.items()}
        found[row.name] = of_data + [f"{name}: {every[0]}" for name, every in differing.items() if every]
        if row.default or everything or any(_own(one) for every in differing.values() for one in every):
            shown.add(row.name)
    for row in rows:
        found[row.name] += [f"train: starts from {name}" for name in _starts(row) if found.get(name)]
    return [ChangedRow(track=track, row=name, why=tuple(why)) for name, why in found.items() if why and name in shown]


def _starts(row: Row) -> list[str]:
    """The rows of this track from whose weights the row starts, the nearest first."""
    names: list[str] = []
    while row.settings.training and (start := row.settings.training.init_from) and not start.track:
        names.append(start.row)
        row = load_row(row.track.name, start.row)
    return names


def differences(before: Contents | None, now: Contents) -> list[str]:
    """In what two inputs files differ: files of code, then settings, then the rest; "new" where there was none."""
    if before is None:
        return ["new"]
    found: list[str] = []
    for part in ("code", "settings", "arithmetic", "reads"):
        one, other = before.get(part), now.get(part)
        if isinstance(one, dict) and isinstance(other, dict):
            found += sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
        elif one != other:
            found.append(part)
    return found


def _own(why: str) -> bool:
    """Whether a change is the row's own: new, of its folder, or of a setting, as no file of shared code is."""
    return not why.startswith(("benchmark/", "leaderboard/", "autoattack/"))


def _at_commit(names: Sequence[str], commit: str) -> dict[Path, Contents]:
    """The inputs files of these tracks that the commit's own code writes; none of a track that it does not have."""
    found: dict[Path, Contents] = {}
    with tempfile.TemporaryDirectory(prefix="rvb-base-") as name:
        root = Path(name)
        git.export(commit, root)
        for track in names:
            if not (root / tracks.FOLDER / f"{track}.yaml").exists():
                continue
            command = [sys.executable, "-m", "benchmark.pipeline.inputs", track]
            done = subprocess.run(
                command, cwd=root, capture_output=True, text=True, check=False, env=_environment(root)
            )
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no word"])[-1]
                raise BenchmarkError(
                    f"commit {commit[:12]} cannot say what its rows depend on ({last}); build every row"
                )
            written = sorted((root / inputs.folder(track)).rglob("*.json"))
            found |= {path.relative_to(root): files.read_json(path) for path in written}
    return found


def _environment(root: Path) -> dict[str, str]:
    """This process's, but that `benchmark` is the one in `root`."""
    return {**os.environ, "PYTHONPATH": str(root)}
