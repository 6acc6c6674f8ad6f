"""Data flows one way: which module may import which."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


@cache
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


def test_imports_flow_one_way() -> None:
    """The layers stand in pyproject.toml, under [tool.importlinter]."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_no_submission_is_imported_by_name() -> None:
    named = {
        path: names
        for path in sources("benchmark", "leaderboard")
        if (names := {name for name in imported(path) if name.startswith("submissions")})
    }
    assert not named


def test_submissions_import_only_public_parts() -> None:
    errors = "benchmark.runtime.errors"  # measures tell people what is wrong, too
    public = {
        "specs",
        "results",
        "layers",
        "training",
        "analysis",
        "attacks",
        "certificates",
        "loading",
        "data",
        "verdicts",
    }
    for path in sources("submissions"):
        local = {name.split(".")[1] for name in imported(path) if name.startswith("benchmark.") and name != errors}
        local -= {"runtime"} if path.name.startswith("test_") else set()
        assert local <= public, path
        names = {name.split(".")[0] for name in imported(path)}
        assert "submissions" not in names, f"{path}: a stage's code is followed through benchmark/ only"


def test_what_users_get_by_name_from_the_package_no_module_imports_there() -> None:
    """The code of a stage would not be followed through benchmark/__init__.py."""
    package = Path("benchmark/__init__.py")
    names = {
        f"benchmark.{alias.name}"
        for node in ast.walk(ast.parse(package.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert "benchmark.load_model" in names
    others = [path for path in sources("benchmark", "leaderboard", "submissions") if path != package]
    assert not {path: imported(path) & names for path in others if imported(path) & names}


def test_import_and_help_do_not_import_torch() -> None:
    code = (
        "import sys, benchmark, benchmark.commands.main\n"
        "sys.argv = ['rvb', '--help']\n"
        "try: benchmark.commands.main.main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'dvc'} & {*sys.modules}"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "repro" in result.stdout


@pytest.mark.slow
def test_looking_does_not_import_torch_or_dvc() -> None:
    code = (
        "import sys, benchmark.commands.main as rvb\n"
        "for words in ('list --track sst2', 'repro --track sst2 --dry-run', 'board'):\n"
        "    sys.argv = ['rvb', *words.split()]\n"
        "    try: rvb.main()\n"
        "    except SystemExit as end: assert not end.code, end.code\n"
        "    assert not {'torch', 'dvc'} & {*sys.modules}, words"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Havens2024LoFAST-text") == 3  # a row, and its two stages
    assert "Wong2020Fast-linf" in result.stdout


def test_processes_that_compute_fix_their_arithmetic_before_numpy_is_imported() -> None:
    """Where another program starts them, such as Ray on another machine, nobody has fixed it before."""
    for module in ("benchmark.commands.main", "benchmark.protocol"):
        code = f"import sys, {module}; sys.exit(str([n for n in ('numpy', 'torch') if n in sys.modules] or ''))"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert found.stderr.strip() == "", f"{module} imports {found.stderr.strip()}"
