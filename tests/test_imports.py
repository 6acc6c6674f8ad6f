"""Data flows one way: which module may import which, read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

# Each group may import groups listed for it, itself included; everything may import records, errors and files.
BASE = {"threats", "certified", "claimed", "corrupted", "pictured", "signals", "recipes", "records", "errors", "files"}
ALLOWED = {
    "threats": set(),
    "certified": {"threats"},
    "claimed": {"threats"},
    "pictured": {"threats"},
    "corrupted": {"threats", "errors"},
    "signals": {"threats"},
    "recipes": {"threats"},
    "records": {"threats", "certified", "claimed", "corrupted", "pictured", "signals", "recipes"},
    "studied": {"threats", "certified", "recipes"},
    "headline": {"records"},
    "errors": set(),
    "files": {"errors"},
    "code": {"errors"},
    "tracks": BASE,
    "data": BASE | {"data"},
    "layers": BASE | {"layers"},
    "training": BASE | {"data", "layers", "training"},
    "attacks": BASE | {"data", "layers", "attacks", "verdicts"},
    "certificates": BASE | {"data", "layers", "certificates"},
    "submissions": BASE | {"tracks"},
    "studies": BASE | {"code", "studied", "submissions", "tracks"},
    "scratch": {"files"},
    "interchange": BASE,
    "verdicts": BASE,
    "inspection": BASE | {"training"},
    "evaluate": BASE | {"inspection", "training", "verdicts"},
    "measures": BASE | {"evaluate", "studied"},
    "auto_attack": BASE | {"evaluate", "inspection"},
    "analysis": BASE | {"analysis", "attacks", "verdicts"},
    "audit": BASE | {"attacks", "audit", "certificates", "evaluate", "layers", "training", "verdicts"},
    "reliability": BASE | {"attacks", "evaluate", "reliability", "training", "verdicts"},
    "evidence": BASE,
}
ALLOWED["stages"] = {*ALLOWED, "stages"}
ALLOWED["printed"] = {"studied", "stages"}
ALLOWED["pipeline"] = {*ALLOWED}
ALLOWED["repro"] = {*ALLOWED}
ALLOWED["exchange_commands"] = {*ALLOWED}
ALLOWED["cli"] = {*ALLOWED}


def imported(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "benchmark" else {node.module}
            )
    return names


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources("benchmark"), ids=str)
def test_benchmark_imports_flow_one_way(path: Path) -> None:
    group = path.relative_to("benchmark").parts[0].removesuffix(".py")
    if group == "__init__":
        assert not imported(path)
        return
    local = {name.split(".")[1] for name in imported(path) if name.startswith("benchmark.")}
    if path == Path("benchmark/attacks/__init__.py"):
        local -= {"auto_attack"}  # the public name of the call above it, for type checkers alone
    assert local <= ALLOWED[group], f"{path} may not import {sorted(local - ALLOWED[group])}"


@pytest.mark.parametrize("path", sources("benchmark", "leaderboard"), ids=str)
def test_no_submission_is_imported_by_name(path: Path) -> None:
    assert not {name for name in imported(path) if name.startswith("submissions")}


@pytest.mark.parametrize("path", sources("leaderboard"), ids=str)
def test_leaderboard_imports_only_records_studied_and_headline(path: Path) -> None:
    local = {name for name in imported(path) if name.split(".")[0] == "benchmark"}
    assert local <= {"benchmark.records", "benchmark.studied", "benchmark.results.headline"}


@pytest.mark.parametrize("path", sources("submissions"), ids=str)
def test_submissions_import_only_public_parts(path: Path) -> None:
    local = {name.split(".")[1] for name in imported(path) if name.startswith("benchmark.")}
    local -= {"errors"} if path.name.startswith("test_") else set()
    public = {"records", "layers", "training", "analysis", "attacks", "certificates", "submissions", "tracks", "data"}
    assert local <= public
    names = {name.split(".")[0] for name in imported(path)}
    assert "submissions" not in names, "a stage's code is followed through benchmark/ only"


def test_import_and_help_do_not_import_torch() -> None:
    code = (
        "import sys, benchmark, benchmark.cli\n"
        "sys.argv = ['rvb', '--help']\n"
        "try: benchmark.commands.main.main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'benchmark.pipeline.repro' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "repro" in result.stdout
