"""Runs DVC by its command line, with its output in a log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

LOGS = WORK / "logs"
DVC = (sys.executable, "-m", "dvc")
Report = Callable[[str], None]


def changed_stages(files: Sequence[Path]) -> set[str]:
    """The stages, `<dvc.yaml>:<name>`, that DVC would run now for these files and what they depend on; those after them not.

    Raises:
        BenchmarkError: dvc fails.
    """
    command = [*DVC, "status", "--json", "--with-deps", *map(str, files)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    if result.returncode:
        raise BenchmarkError(f"dvc status failed: {last_line(result.stderr or result.stdout)}")
    return {stage if ":" in stage else f"dvc.yaml:{stage}" for stage in json.loads(result.stdout)}


def run(
    arguments: Sequence[str], name: str, report: Report, about: str = "", variables: Mapping[str, str] | None = None
) -> None:
    """Runs dvc; all it prints goes to the log of this name, lines `about` a row or study also to `report`.

    Args:
        variables: of the environment, beside those of this process.

    Raises:
        BenchmarkError: dvc failed: its first error, or else its last line, and the log.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    with (
        subprocess.Popen(
            [*DVC, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment() | dict(variables or {}),
        ) as process,
        log.open("w") as kept,
    ):  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            kept.flush()
            if _is_news(line, about):
                report(line.strip())
    if process.returncode:
        raise BenchmarkError(f"{failure(log.read_text())} [log: {log}]")


def _is_news(line: str, about: str) -> bool:
    return (bool(about) and line.startswith((f"{about}: ", f"{about} is "))) or " is already running " in line


def failure(text: str) -> str:
    """The first error of a program's output, else its last line."""
    errors = [line.strip() for line in text.splitlines() if line.lower().startswith("error: ")]
    return errors[0].removeprefix("error: ").removeprefix("ERROR: ") if errors else last_line(text)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def environment() -> dict[str, str]:
    """This interpreter first on PATH, since stages run `python`; one thread a process unless the caller says more."""
    here = str(Path(sys.executable).parent)
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
    }
