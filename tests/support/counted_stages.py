"""A project whose stages say in a folder beside it that they begin, wherever their checkout is, and wait if asked to."""

from __future__ import annotations

from pathlib import Path

from edited_file import edit
from stage_processes import wait_for
from tiny_project import Project

BEGINS = "    arithmetic.fix(run_settings().arithmetic)\n"
COUNTS = """\
    import os
    import pathlib
    import time

    beside = pathlib.Path({beside!r})
    with (beside / "begun").open("a") as file:
        file.write(f"{{name}} {{subject[:2][-1]}} {{os.getpid()}}\\n")
    while (beside / f"hold-{{name}}").exists():
        time.sleep(0.05)
"""


class Counted:
    """The folder. Results depend on its place, as on all code: compare projects that have the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def watch(self, project: Project) -> None:
        edit(project.root / "benchmark/steps/__main__.py", BEGINS, BEGINS + COUNTS.format(beside=str(self.folder)))

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def begun(self, stage: str = "") -> list[tuple[str, str, int]]:
        """Stage, row and process of each that began, in order."""
        path = self.folder / "begun"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(name, row, int(process)) for name, row, process in lines if stage in ("", name)]

    def times(self) -> dict[tuple[str, str], int]:
        """How often each stage of each row began."""
        names = [(name, row) for name, row, _ in self.begun()]
        return {name: names.count(name) for name in names}

    def hold(self, stage: str) -> None:
        """From now on a stage of this name waits where it begins."""
        (self.folder / f"hold-{stage}").touch()

    def release(self, stage: str) -> None:
        (self.folder / f"hold-{stage}").unlink()

    def wait(self, stage: str, count: int = 1) -> int:
        """Until such stages have begun so often; the process of the last."""
        found = wait_for(lambda: len(self.begun(stage)) >= count and self.begun(stage), f"{stage} that began", 400)
        return found[-1][2]
