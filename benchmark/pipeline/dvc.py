"""Runs dvc: one command at a time to the end, its output to a log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmark.pipeline.locks import mend_locks
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

LOGS = WORK / "logs"
Report = Callable[[str], None]


def changed_stages(board: Path, report: Report) -> set[str]:
    """The stages, `<dvc.yaml>:<name>`, that DVC would run now for this board; those after them not among them."""
    command = [*_command(), "status", "--json", str(board), "--with-deps"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment())
    if result.returncode and mend_locks(report):
        result = subprocess.run(command, capture_output=True, text=True, env=environment())
    if result.returncode:
        raise BenchmarkError(f"dvc status failed: {_last_line(result.stderr or result.stdout)}")
    return {stage if ":" in stage else f"dvc.yaml:{stage}" for stage in json.loads(result.stdout)}


def run(
    arguments: list[str], name: str, report: Report, extra: Mapping[str, str] | None = None, about: str = ""
) -> None:
    """Runs dvc; all it prints goes to the log of this name, lines `about` a row or study and errors also to `report`.

    Raises:
        BenchmarkError: dvc failed: its first error, or else its last line, and the log.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    log, error = LOGS / f"{name}.log", ""
    with (
        log.open("w") as kept,
        subprocess.Popen(
            [*_command(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**environment(), **(extra or {})},
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            kept.flush()
            if line.lower().startswith("error: ") and not error:
                error = line.strip()
            elif _is_news(line, about):
                report(line.strip())
    if process.returncode:
        message = error.removeprefix("error: ").removeprefix("ERROR: ") or _last_line(log.read_text())
        raise BenchmarkError(f"{message} [log: {log}]")


def _is_news(line: str, about: str) -> bool:
    return line.startswith((f"{about}: ", f"{about} is ", "resuming ")) or " is already running " in line


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _command() -> list[str]:
    return [sys.executable, "-m", "dvc"]


def environment() -> dict[str, str]:
    """This interpreter first on PATH, since stages run `python`; one thread a process unless the caller says more."""
    here = str(Path(sys.executable).parent)
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
    }
