"""Runs a track's pipeline through DVC, submissions side by side.

DVC runs the stages of one file in order; separate files may run at once if each `dvc` waits for the others' short locks.
So: the shared data stage first, then one worker a stale row (`dvc --wait-for-lock repro -s FILE`), then one plain
`dvc repro`, which finds the rows done, renders the board and leaves the locks as a serial run would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmark.loading import submissions, tracks
from benchmark.loading.rows import entry_of_row
from benchmark.pipeline import generate
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK
from benchmark.studies import grids
from benchmark.studies.grids import Grid

LOGS = WORK / "logs"
Report = Callable[[str], None]


def repro(track: str, jobs: int, report: Report) -> None:
    """Brings the track's rows and board up to date with `jobs` rows at a time.

    Raises:
        BenchmarkError: unknown track, a stage that failed (its last line and its log are named), or DVC in a state that
            a person must mend.
    """
    tracks.load(track)
    mend_rwlock(report)
    for line in generate.write():
        report(line)
    board = generate.board_file(track)
    if not board.exists():
        raise BenchmarkError(f"no submission enters track {track!r} yet; add a variant for it to a submission.yaml")
    changed = _changed_files(board, report)
    if not changed:
        report(f"everything is up to date: open {WORK / track / 'site' / 'index.html'}")
        return
    if str(generate.data_file(track)) in changed:
        _dvc(["repro", "-s", str(generate.data_file(track))], f"{track}-data", report)
    rows = [f"{submission.name}-{variant}" for submission, variant in submissions.rows(track)]
    todo = [row for row in rows if str(generate.row_file(track, row)) in changed]
    fine_tuned = [row for row in todo if entry_of_row(track, row).source]
    others = [row for row in todo if row not in fine_tuned]
    _run_rows(track, sorted(others, key=lambda row: -_seconds(track, row)), jobs, report)
    for row in fine_tuned:  # their files depend on other rows', so DVC brings those up to date too, one after another
        _dvc(["repro", str(generate.row_file(track, row))], f"{track}-{row}", report)
    _dvc(["repro", str(board)], f"{track}-board", report)
    # DVC keeps no times, so a board that it brought back from its cache lacks them
    subprocess.run([sys.executable, "-m", "leaderboard.build", track, "times"], check=True)
    report(f"done: open {WORK / track / 'site' / 'index.html'}")


def repro_study(submission: str, name: str, report: Report) -> Grid:
    """Brings a study up to date, with the data that it needs and nothing else.

    Raises:
        BenchmarkError: the same, or a study that does not load.
    """
    grid = grids.load(submission, name)
    mend_rwlock(report)
    for line in generate.write():
        report(line)
    _dvc(["repro", str(generate.study_file(grid.track.name, grid.id))], f"{grid.track.name}-{grid.id}", report)
    return grid


def _run_rows(track: str, rows: list[str], jobs: int, report: Report) -> None:
    failures: list[str] = []

    def work(row: str) -> None:
        started = time.monotonic()
        report(f"{row}: started")
        try:
            _dvc(["--wait-for-lock", "repro", "-s", str(generate.row_file(track, row))], f"{track}-{row}", report)
        except BenchmarkError as error:
            failures.append(str(error))
            report(f"{row}: failed")
        else:
            report(f"{row}: done in {time.monotonic() - started:.0f} s")

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        list(pool.map(work, rows))
    if failures:
        more = f" (and {len(failures) - 1} more rows failed)" if len(failures) > 1 else ""
        raise BenchmarkError(failures[0] + more)


def _seconds(track: str, row: str) -> float:
    """How long the row took last time, so that the longest starts first; unknown ones before all."""
    paths = list((WORK / track / row / "times").glob("*.json"))
    return sum(json.loads(path.read_text())["wall_seconds"] for path in paths) if paths else float("inf")


def _changed_files(board: Path, report: Report) -> set[str]:
    """The dvc.yaml files with a stage that DVC would run."""
    command = [*_command(), "status", "--json", str(board), "--with-deps"]
    result = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if result.returncode and mend_locks(report):
        result = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if result.returncode:
        raise BenchmarkError(f"dvc status failed: {_last_line(result.stderr or result.stdout)}")
    return {stage.rpartition(":")[0] or "dvc.yaml" for stage in json.loads(result.stdout)}


def _dvc(arguments: list[str], name: str, report: Report) -> None:
    """Runs dvc; all it prints goes to a log, lines about a row and errors also to `report`."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log, error = LOGS / f"{name}.log", ""
    with (
        log.open("w") as kept,
        subprocess.Popen(
            [*_command(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment()
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            kept.flush()
            if line.lower().startswith("error: ") and not error:
                error = line.strip()
            elif _is_news(line, name):
                report(line.strip())
    if process.returncode:
        message = error.removeprefix("error: ").removeprefix("ERROR: ") or _last_line(log.read_text())
        raise BenchmarkError(f"{message} [log: {log}]")


def _is_news(line: str, name: str) -> bool:
    row = name.split("-", 1)[1]
    return line.startswith((f"{row}: ", f"{row} is ", "resuming ")) or " is already running " in line


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _command() -> list[str]:
    return [sys.executable, "-m", "dvc"]


def _environment() -> dict[str, str]:
    """This interpreter first on PATH, since stages run `python`; one thread a process unless the caller says more."""
    here = str(Path(sys.executable).parent)
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def mend_rwlock(report: Report) -> None:
    """Removes the list of running commands that a killed dvc left cut short, when no dvc runs here.

    Raises:
        BenchmarkError: it is cut short and a dvc runs, with what to do.
    """
    path = Path(".dvc/tmp/rwlock")
    try:
        json.loads(path.read_text())
    except FileNotFoundError:
        return
    except ValueError:
        running = [p.pid for p in psutil.process_iter(["cmdline", "cwd"]) if _is_dvc_here(p.info)]
        if running:
            raise BenchmarkError(
                f"{path} is cut short and dvc runs as process {running[0]}; wait for it or end it, then run this again"
            ) from None
        path.unlink()
        report(f"removed {path}, which a killed dvc had left cut short")


def mend_locks(report: Report) -> bool:
    """Removes lock files that a killed dvc left cut short; their stages come back from DVC's run-cache or run again."""
    broken = [
        path for path in (Path("dvc.lock"), *generate.FOLDER.rglob("dvc.lock")) if path.exists() and _is_cut(path)
    ]
    for path in broken:
        path.unlink()
        report(f"removed {path}, which a killed dvc had left cut short")
    return bool(broken)


def _is_cut(lock: Path) -> bool:
    try:
        content = yaml.safe_load(lock.read_text())
    except yaml.YAMLError:
        return True
    return not isinstance(content, dict) or "stages" not in content


def _is_dvc_here(process: dict[str, Any]) -> bool:
    words = [Path(word).name for word in process["cmdline"] or []]
    return "dvc" in words[:4] and process["cwd"] == str(Path.cwd())
