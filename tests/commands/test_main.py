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
        [sys.executable, "-c", START, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )


def completed(words: str, cwd: Path = ROOT) -> list[str]:
    """What bash completes the last of `words` to."""
    count = str(len(words.split(" ")) - 1)
    result = rvb(cwd=cwd, _RVB_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=count)
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.parametrize("arguments", [["repro", "-h"]])
def test_help_has_a_short_name_and_works_outside_a_checkout(arguments, tmp_path) -> None:
    result = rvb(*arguments, cwd=tmp_path)
    assert result.returncode == 0
    assert "Usage: rvb" in result.stdout


def test_the_version_is_the_packages(tmp_path) -> None:
    assert rvb("--version", cwd=tmp_path).stdout == f"rvb {version('robust-vit-bench')}\n"


def test_a_command_outside_a_checkout_is_one_line(tmp_path) -> None:
    result = rvb("list", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: run this inside a checkout")
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_shell_completes_rows_and_tracks_anywhere_in_a_checkout(tmp_path) -> None:
    assert completed("rvb show Wong", cwd=ROOT / "docs") == ["Wong2020Fast-linf"]
    assert completed("rvb repro Wong2020Fast-linf Wo") == [], "it is named already"
    assert completed("rvb repro --track dig") == ["digits"]
    assert completed("rvb show Wong", cwd=tmp_path) == []
