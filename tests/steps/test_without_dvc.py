"""Stages need neither DVC nor robustbench: a machine with a GPU may have neither."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tiny_linear_row
from edited_file import edit

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dvc", "dvc_data", "dvc_objects", "robustbench", "git"):
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
"""


@pytest.mark.slow
def test_a_row_is_prepared_trained_and_certified_where_neither_is_installed(tmp_path) -> None:
    project = tiny_linear_row.new(tmp_path / "project")
    track = project.root / "benchmark/tracks/tiny.yaml"
    edit(track, "suites:\n", "suites:\n  standard:\n    - {attack: autoattack, norm: Linf, eps: 0.15}\n")
    edit(track, "certified_radii: []", "certified_radii: [0.1]")
    with (project.root / "submissions/Tiny2026Linear/submission.yaml").open("a") as submission:
        submission.write("        certificate: {name: lipschitz}\n")
    code = (
        f"{BLOCKED}\n"
        "from benchmark.specs.run_settings import run_settings\n"
        "from benchmark.runtime import arithmetic\n"
        "arithmetic.fix(run_settings().arithmetic)\n"
        "from benchmark.pipeline import inputs\n"
        "from benchmark.protocol import run\n"
        "inputs.write('tiny')\n"
        "run('data', 'tiny')\n"
        "for stage in ('train', 'evaluate'):\n"
        "    run(stage, 'tiny', 'Tiny2026Linear-small')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=project.root, env=project.environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert (project.root / "work/tiny/Tiny2026Linear-small/certify/evidence.parquet").exists()
