"""Runs DVC by its command line, with its output in a log."""

from __future__ import annotations

import itertools
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
ADVERTISED = "Having any troubles?"  # DVC's last line after an error
Report = Callable[[str], None]


def check_place() -> None:
    """
    Raises:
        BenchmarkError: DVC cannot work in this checkout: it has no git repository, or this user may not write to it.
    """
    here = Path.cwd()
    settings = "".join(path.read_text() for path in Path(".dvc").glob("config*") if path.is_file())
    if "no_scm = true" not in settings and not any((folder / ".git").exists() for folder in (here, *here.parents)):
        raise BenchmarkError(
            "no git repository here, as in a downloaded ZIP, and DVC needs one; run `git init`, or clone the project"
        )
    if not os.access(here, os.W_OK):
        raise BenchmarkError(f"{here} is read-only for this user; copy the checkout to where you may write")


def changed_stages(files: Sequence[Path]) -> set[str]:
    """The stages, `<dvc.yaml>:<name>`, that DVC would run now for these files and what they depend on; none after those."""
    changed = json.loads(ask("status", "--json", "--with-deps", *map(str, files)))
    return {stage if ":" in stage else f"dvc.yaml:{stage}" for stage in changed}


def ask(*arguments: str, cwd: Path | None = None) -> str:
    """What dvc prints. Raise BenchmarkError where it fails."""
    result = subprocess.run([*DVC, *arguments], capture_output=True, text=True, env=environment(), cwd=cwd, check=False)
    if result.returncode:
        raise BenchmarkError(f"dvc {arguments[0]} failed: {failure(result.stderr or result.stdout)}")
    return result.stdout


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
    """The first error of a program's output, with the lines that it announces, else its last line."""
    lines = [line.strip() for line in text.splitlines()]
    place = next((i for i, line in enumerate(lines) if line.lower().startswith("error: ")), None)
    if place is None:
        return last_line(text)
    error = lines[place][len("error: ") :]
    if error.endswith(":"):  # as of who holds a lock
        error += " " + "; ".join(itertools.takewhile(bool, lines[place + 1 :]))
    return error.strip()


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(ADVERTISED)]
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
