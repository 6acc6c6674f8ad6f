"""The wheel: what it holds suffices outside of a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """\
import sys
from pathlib import Path

import benchmark
from benchmark.attacks.engine import square

square.QUERIES = 20
assert Path(benchmark.__file__).is_relative_to(sys.argv[1]), benchmark.__file__
images, labels = benchmark.load_images("digits", count=10)
for row, track in (("Wong2020Fast-linf", "digits"), ("Leino2021GloRo-cnn", "cifar10_jpeg")):
    model = benchmark.load_model(row, track=track)
report = benchmark.evaluate(benchmark.load_model("Wong2020Fast-linf"), images, labels, attacks=[("Linf", 0.15)])
report.save("report.html")
print(report)
"""


@pytest.mark.slow
def test_an_installed_wheel_loads_and_evaluates_models_outside_of_a_checkout(tmp_path) -> None:
    beside = {".git", ".venv", "work", "build", "dist", "data", "tests", ".dvc", ".gpu"}
    shutil.copytree(ROOT, tmp_path / "source", ignore=lambda folder, _: beside if Path(folder) == ROOT else {"__pycache__"})

    def pip(*arguments: str | Path) -> None:
        quiet = ("--quiet", "--disable-pip-version-check")
        subprocess.run([sys.executable, "-m", "pip", *quiet, *map(str, arguments)], check=True)

    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "dist", tmp_path / "source")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.stat().st_size < 100e6  # what package indexes take
    pip("install", "--no-deps", "--no-compile", "--target", tmp_path / "installed", wheel)
    assert not [*(tmp_path / "installed/submissions").rglob("test_*.py")]
    place = tmp_path / "elsewhere"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "installed")], cwd=place, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "AutoAttack Linf 0.15" in done.stdout
    assert (place / "report.html").exists()
