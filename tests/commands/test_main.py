"""`rvb` itself: help, version, and what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tiny_project import ROOT

START = "import sys; sys.argv[0] = 'rvb'; from benchmark.commands.main import main; main()"


def rvb(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, *arguments], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_outside_a_checkout_help_and_version_work_and_a_command_is_refused_in_one_line(tmp_path) -> None:
    help_text = rvb("repro", "-h", cwd=tmp_path)
    assert (help_text.returncode, "Usage: rvb" in help_text.stdout) == (0, True)
    assert rvb("--version", cwd=tmp_path).stdout == f"rvb {version('robust-vit-bench')}\n"
    refused = rvb("list", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert refused.stderr.startswith("error: run this inside a checkout")


@pytest.mark.slow
def test_a_shell_completes_rows_and_tracks_anywhere_in_a_checkout(tmp_path) -> None:
    for words, cwd, completions in (
        ("rvb show Wong", ROOT / "docs", ["Wong2020Fast-linf"]),
        ("rvb repro Wong2020Fast-linf Wo", ROOT, []),  # it is named already
        ("rvb repro --track dig", ROOT, ["digits"]),
        ("rvb show Wong", tmp_path, []),
    ):
        place = str(len(words.split(" ")) - 1)
        shell = rvb(cwd=cwd, _RVB_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
        assert (shell.stdout.split(), shell.stderr) == (completions, "")
