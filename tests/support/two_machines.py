"""Two small DVC repositories of two stages each, as two machines with the same files and the same remote."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

FILE = "pipelines/tiny/row/dvc.yaml"
FIRST, SECOND = f"{FILE}:first", f"{FILE}:second"
STAGES = """\
stages:
  first:
    cmd: mkdir -p work/first && cp source work/first/copy && echo 1 > work/first/one && echo first >> ran
    wdir: ../../..
    deps: [source]
    outs: [work/first]
  second:
    cmd: mkdir -p work/second && cat work/first/* > work/second/all && echo second >> ran
    wdir: ../../..
    deps: [work/first/copy, work/first/one]
    outs: [work/second]
"""


class Machine:
    """A DVC repository, to be worked in as the working directory."""

    def __init__(self, root: Path, remote: Path) -> None:
        self.root, self.remote = root, remote
        (root / ".dvc").mkdir(parents=True)
        (root / "pipelines/tiny/row").mkdir(parents=True)
        (root / FILE).write_text(STAGES)
        (root / "source").write_text("what everything comes from\n" * 1000)
        (root / ".dvc/config").write_text(
            f"[core]\n    no_scm = true\n    analytics = false\n    remote = store\n['remote \"store\"']\n    url = {remote}\n"
        )

    def repro(self, *keys: str) -> None:
        from dvc.repo import Repo

        with contextlib.chdir(self.root), Repo() as repo:
            for key in keys:
                repo.reproduce([key], single_item=True)

    @property
    def ran(self) -> list[str]:
        """The stages that ran here, in order."""
        path = self.root / "ran"
        return path.read_text().split() if path.exists() else []

    @property
    def lock(self) -> Path:
        return (self.root / FILE).with_name("dvc.lock")

    def results(self, stage: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.root / "work" / stage).iterdir()}


@contextlib.contextmanager
def out_of_reach(remote: Path):
    """The remote's folder is away, and its place taken, so that it can be neither read nor made anew."""
    away = remote.with_name("away")
    if remote.exists():
        remote.rename(away)
    else:
        away.mkdir()
    remote.write_text("")
    try:
        yield lambda: _bring_back(remote, away)
    finally:
        _bring_back(remote, away)


def _bring_back(remote: Path, away: Path) -> None:
    if away.exists():
        remote.unlink()
        shutil.move(away, remote)
