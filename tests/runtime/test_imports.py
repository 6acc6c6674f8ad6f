"""Submissions import public parts alone, and commands import slow modules only when they need them."""

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
            whole = node.module == "benchmark"
            names |= {f"benchmark.{alias.name}" for alias in node.names} if whole else {node.module}
    return names


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))


@pytest.mark.slow
def test_submissions_and_the_benchmark_know_each_others_public_parts_alone() -> None:
    """The code of a stage is followed through files of benchmark/, never its __init__.py, and within one submission."""
    parts = ("specs", "records", "layers", "training", "attacks", "certificates", "data")
    public = {*parts, "evaluation.pictures", "runtime.errors"}  # of measures, which tell people what is wrong, too
    package = Path("benchmark/__init__.py")
    tree = [node for node in ast.walk(ast.parse(package.read_text())) if isinstance(node, ast.ImportFrom)]
    for_users = {f"benchmark.{alias.name}" for node in tree for alias in node.names}
    assert "benchmark.load_model" in for_users
    for path in sources("benchmark", "leaderboard", "submissions"):
        names = imported(path)
        assert not {name for name in names if name.split(".")[0] == "submissions"}, path
        assert path == package or not names & for_users, path
        if path.parts[0] == "submissions":
            own = {name.removeprefix("benchmark.") for name in names if name.startswith("benchmark.")}
            own -= {name for name in own if path.name.startswith("test_") and name.split(".")[0] == "runtime"}
            assert not {name for name in own if name not in public and name.split(".")[0] not in public}, path


HELP = "import benchmark.commands.main as rvb\nsys.argv = ['rvb', '--help']\ntry: rvb.main()\nexcept SystemExit: pass\n"
PACKAGE = """
import benchmark
assert [name for name in sys.modules if name.startswith("benchmark")] == ["benchmark"]
assert not hasattr(benchmark, "load_modle")
"""
PLANS = """
from benchmark.pipeline import inputs
from benchmark.runtime import code
code.digests = lambda *entries: {str(entry): "" for entry in entries}  # half of the time
inputs.contents("digits")
"""
LOOKING = (
    "import benchmark.commands.main as rvb\n"
    "for words in ('list --track sst2', 'repro --track sst2 --dry-run', 'board'):\n"
    "    sys.argv = ['rvb', *words.split()]\n"
    "    try: rvb.main()\n"
    "    except SystemExit as end: assert not end.code, end.code\n"
)


@pytest.mark.parametrize(
    ("code", "absent", "shown"),
    [
        (HELP, {"torch", "numpy", "dvc"}, {"repro": 1}),
        (PACKAGE, {"torch"}, {}),
        (PLANS, {"torch"}, {}),
        # arithmetic is fixed before numpy is imported, where another program starts the process too, as Ray does
        ("import benchmark.commands.main, benchmark.protocol\n", {"torch", "numpy"}, {}),
        # a row, and its two stages
        pytest.param(LOOKING, {"torch", "dvc"}, {"Havens2024LoFAST-text": 3, "Wong2020Fast-linf": 1}, marks=pytest.mark.slow),
    ],
)
def test_what_is_slow_is_not_imported_before_it_is_needed(code, absent, shown) -> None:
    check = f"assert not {absent} & {{*sys.modules}}, {absent} & {{*sys.modules}}"
    result = subprocess.run([sys.executable, "-c", f"import sys\n{code}{check}"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert {word: min(result.stdout.count(word), times) for word, times in shown.items()} == shown
