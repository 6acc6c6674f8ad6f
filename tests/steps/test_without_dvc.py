"""Stages need neither DVC nor robustbench: a machine with a GPU may have neither."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dvc", "dvc_data", "dvc_objects", "robustbench", "git"):
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
"""


def test_a_row_is_prepared_trained_and_certified_where_neither_is_installed(project) -> None:
    project.add("Tiny2026Net", epochs=1)
    code = (
        f"{BLOCKED}\n"
        "from benchmark.loading.run_settings import run_settings\n"
        "from benchmark.runtime import arithmetic\n"
        "arithmetic.fix(run_settings().arithmetic)\n"
        "from benchmark.pipeline import inputs\n"
        "from benchmark.protocol import run\n"
        "inputs.write('tiny')\n"
        "run('data', 'tiny')\n"
        "for stage in ('train', 'certify'):\n"
        "    run(stage, 'tiny', 'Tiny2026Net-small')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=project.root, env=project.environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert (project.root / "work/tiny/Tiny2026Net-small/certify/evidence.parquet").exists()
