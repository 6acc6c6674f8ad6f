"""What parts of a stage found, in the DVC remote beside its results: `rvb-parts/<key>/<first>-<end>`.

The key names all that the stage's result depends on (Stage.identity, and all packages), so that whoever does the same stage
takes them up, a run after a kill too. They go once the stage is done; what a run that was given up has left there may be
removed by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.pipeline.cluster import remote
from benchmark.runtime.clock import SECONDS

FOLDER = "rvb-parts"


def known(key: str, part: str, report: remote.Report) -> bool:
    """Whether all of a part is there: its seconds, which are sent last, tell."""

    def look() -> bool:
        with remote.opened() as repo:
            there = repo.cloud.get_remote()
            return bool(there.fs.exists(_place(there, key, part, SECONDS.replace("*", part))))

    return bool(remote.patiently(look, f"look for part {part} in the DVC remote", report))


def send(key: str, part: str, folder: Path, report: remote.Report) -> None:
    """Raises BenchmarkError: the remote could not be reached, or is full."""
    files = sorted(folder.iterdir(), key=lambda path: (path.match(SECONDS), path.name))

    def attempt() -> None:
        with remote.opened() as repo:
            there = repo.cloud.get_remote()
            there.fs.makedirs(_place(there, key, part), exist_ok=True)
            for path in files:
                aside = _place(there, key, part, f".{path.name}.part")
                there.fs.put_file(str(path), aside)
                there.fs.move(aside, _place(there, key, part, path.name))

    remote.patiently(attempt, f"send part {part} to the DVC remote", report)


def bring(key: str, parts: Sequence[str], folder: Path, report: remote.Report) -> None:
    """Puts what the parts found into `folder`; a part that is not there is left to the stage itself.

    Raises:
        BenchmarkError: the remote could not be reached.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def attempt() -> None:
        with remote.opened() as repo:
            there = repo.cloud.get_remote()
            for part in parts:
                if there.fs.exists(_place(there, key, part, SECONDS.replace("*", part))):
                    for source in there.fs.find(_place(there, key, part)):
                        aside = folder / f".{there.fs.name(source)}"
                        there.fs.get_file(source, str(aside))
                        aside.rename(folder / there.fs.name(source))

    remote.patiently(attempt, "fetch what parts found from the DVC remote", report)


def remove(key: str, report: remote.Report) -> None:
    """Raises BenchmarkError: the remote could not be reached."""

    def attempt() -> None:
        with remote.opened() as repo:
            there = repo.cloud.get_remote()
            if there.fs.exists(_place(there, key)):
                there.fs.remove(list(there.fs.find(_place(there, key))))

    remote.patiently(attempt, "remove parts from the DVC remote", report)


def _place(there: Any, *names: str) -> str:
    return str(there.fs.join(there.path, FOLDER, *names))
