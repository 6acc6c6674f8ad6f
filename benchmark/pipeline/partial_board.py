"""`rvb repro --keep-going`: the board of the rows that stand where others failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmark.pipeline import dvc, generate
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

Report = Callable[[str], None]


def folder(track: str) -> Path:
    """Where the board stands that lacks rows which failed; the whole one is left as it was."""
    return WORK / track / "partial"


def render(track: str, stand: Sequence[str], failed: Mapping[str, str], everything: bool, report: Report) -> None:
    """Renders the board of the rows that stand."""
    home = folder(track)
    wanted = files.read_json(generate.rows_file(track, everything))
    lacking = {name: why for name, why in failed.items() if name in wanted}
    files.write_json(home / "missing.json", lacking)
    which = ["all"] if everything else []
    command = [sys.executable, "-m", "leaderboard.build", track, *which, "--partial"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"the board of the rows that stand failed: {dvc.last_line(done.stderr)}")
    share = f"{len(stand)} of {len(stand) + len(lacking)}"
    report(f"the board of the rows that stand, {share}: open {home / 'site' / 'index.html'}")


def missing(failed: Mapping[str, str], rows: int, hint: bool) -> BenchmarkError:
    """One line: what went wrong first, and every row that is missing."""
    first = next(iter(failed.values()))
    if len(failed) == 1 == rows:
        return BenchmarkError(first)
    more = "; `--keep-going` renders a board of the others" if hint else ""
    return BenchmarkError(f"{first}; missing of {rows} rows: {', '.join(failed)}{more}")
