"""Runs dvc: one command at a time to the end, its output to a log."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from benchmark.pipeline.locks import mend_locks
from benchmark.runtime import warm_client
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
        raise BenchmarkError(f"dvc status failed: {last_line(result.stderr or result.stdout)}")
    return {stage if ":" in stage else f"dvc.yaml:{stage}" for stage in json.loads(result.stdout)}


def run(
    arguments: list[str], name: str, report: Report, warm: str = "", about: str = "", gpu: str | None = None
) -> None:
    """Runs dvc; all it prints goes to the log of this name, lines `about` a row or study and errors also to `report`.

    Args:
        warm: the socket of a warm process, which then forks to be dvc.
        gpu: the only one that its stages see, as CUDA_VISIBLE_DEVICES names it.

    Raises:
        BenchmarkError: dvc failed: its first error, or else its last line, and the log.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    output, wait = _started(arguments, warm, gpu)
    with log.open("w") as kept, output:
        for line in output:
            kept.write(line)
            kept.flush()
            if _is_news(line, about):
                report(line.strip())
    if wait():
        raise BenchmarkError(f"{failure(log.read_text())} [log: {log}]")


def _started(arguments: list[str], warm: str, gpu: str | None) -> tuple[IO[str], Callable[[], int]]:
    """What dvc prints, and how to wait for its exit status once that has ended."""
    reading, writing = os.pipe()
    connection = warm_client.ask(warm, "dvc", arguments, (writing, writing, writing), gpu) if warm else None
    if connection is not None:
        os.close(writing)
        return os.fdopen(reading), lambda: _status(connection)
    seen = {} if gpu is None else {warm_client.GPUS: gpu}
    process = subprocess.Popen(
        [*_command(), *arguments], stdout=writing, stderr=subprocess.STDOUT, env=environment() | seen
    )
    os.close(writing)
    return os.fdopen(reading), process.wait


def _status(connection: socket.socket) -> int:
    try:
        ended = warm_client.status(connection)
    except EOFError as error:
        raise BenchmarkError(str(error)) from None
    assert ended is not None  # it was started for this folder
    return ended


def _is_news(line: str, about: str) -> bool:
    return line.startswith((f"{about}: ", f"{about} is ", "resuming ")) or " is already running " in line


def failure(text: str) -> str:
    """The first error of a program's output, else its last line."""
    errors = [line.strip() for line in text.splitlines() if line.lower().startswith("error: ")]
    return errors[0].removeprefix("error: ").removeprefix("ERROR: ") if errors else last_line(text)


def last_line(text: str) -> str:
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
