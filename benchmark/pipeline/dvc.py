"""Run DVC's command line, with its output in a log, and find the files that a killed dvc left truncated."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

LOGS = WORK / "logs"
DVC = (sys.executable, "-m", "dvc")
RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's list of running commands
ADVERTISED = "Having any troubles?"  # DVC's last line after an error
Report = Callable[[str], None]


def check_place() -> None:
    """Raise a BenchmarkError where DVC cannot work: this checkout has no git repository, or the user may not write to it."""
    here = Path.cwd()
    settings = "".join(path.read_text() for path in Path(".dvc").glob("config*") if path.is_file())
    if "no_scm = true" not in settings and not any((folder / ".git").exists() for folder in (here, *here.parents)):
        raise BenchmarkError(
            "no git repository here, as in a downloaded ZIP, and DVC needs one; run `git init`, or clone the project"
        )
    if not os.access(here, os.W_OK):
        raise BenchmarkError(f"{here} is read-only for this user; copy the checkout to where you may write")


def check_rwlock() -> None:
    """Raise a BenchmarkError where a killed dvc truncated its list of running commands: every later dvc would fail."""
    try:
        whole = isinstance(json.loads(RWLOCK.read_text() or "{}"), dict)
    except FileNotFoundError:
        return
    except ValueError:
        whole = False
    if not whole:
        raise BenchmarkError(f"{RWLOCK} is cut short, as by a killed dvc; once no dvc runs here, remove it")


def cut_short() -> list[Path]:
    """Return the dvc.lock files that a killed dvc truncated. Raise a BenchmarkError for a merge's conflict markers in one."""
    locks = (Path("dvc.lock"), *Path("pipelines").rglob("dvc.lock"))
    return [path for path in locks if path.exists() and not _whole(path)]


def remove_cut(report: Callable[[str], None]) -> None:
    """Remove truncated dvc.lock files. Their stages run again, and find the results of their steps."""
    for path in cut_short():
        path.unlink()
        report(f"removed {path}, which a killed dvc had left cut short")


def _whole(lock: Path) -> bool:
    if b"\n<<<<<<< " in b"\n" + lock.read_bytes():
        raise BenchmarkError(
            f"{lock} holds the conflict markers of a merge; take one side, as by `git checkout --ours {lock}`, and run the "
            "same command again"
        )
    try:
        content = yaml.load(lock.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return False
    return isinstance(content, dict) and isinstance(content.get("stages"), dict)


def changed_stages(files: Sequence[Path]) -> set[str]:
    """Return the stages, `<dvc.yaml>:<name>`, that DVC would run for these files and what they depend on.

    Stages that read what those write are not among them, nor the stages `inputs`, which always run.
    """
    changed = json.loads(ask("status", "--json", "--with-deps", *map(str, files)))
    stages = {stage if ":" in stage else f"dvc.yaml:{stage}" for stage in changed}
    return {stage for stage in stages if not stage.endswith("_data/dvc.yaml:inputs")}


def ask(*arguments: str, cwd: Path | None = None) -> str:
    """Return what dvc prints. Raise a BenchmarkError where it fails."""
    result = subprocess.run([*DVC, *arguments], capture_output=True, text=True, env=environment(), cwd=cwd, check=False)
    if result.returncode:
        raise BenchmarkError(f"dvc {arguments[0]} failed: {failure(result.stderr or result.stdout)}")
    return result.stdout


def run(
    arguments: Sequence[str], name: str, report: Report, about: str = "", variables: Mapping[str, str] | None = None
) -> None:
    """Run dvc. All that it prints goes to the log `name`; lines `about` a row or study also to `report`.

    Args:
        variables: of the environment, beside those of this process.

    Raises:
        BenchmarkError: dvc failed; the message has its first error, or else its last line, and the log.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    news = (f"{about}: ", f"{about} is ") if about else ()
    with (
        subprocess.Popen(
            [*DVC, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment() | dict(variables or {}),
        ) as process,
        log.open("w", buffering=1) as kept,
    ):  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            if line.startswith(news) or " is already running " in line:
                report(line.strip())
    if process.returncode:
        raise BenchmarkError(f"{failure(log.read_text())} [log: {log}]")


def failure(text: str) -> str:
    """Return the first error of a program's output, with the lines that it announces, else its last line."""
    lines = [line.strip() for line in text.splitlines()]
    place = next((i for i, line in enumerate(lines) if line.lower().startswith("error: ")), None)
    if place is None:
        return last_line(text)
    error = lines[place][len("error: ") :]
    if error.endswith(":"):  # names who holds a lock, on the lines below
        error += " " + "; ".join(itertools.takewhile(bool, lines[place + 1 :]))
    return error.strip()


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(ADVERTISED)]
    return lines[-1] if lines else "no output"


def environment() -> dict[str, str]:
    """Return the variables of a stage: this interpreter first on PATH; one thread a process unless the caller sets more."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, "PATH": path}
