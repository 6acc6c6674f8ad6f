"""The same bytes on other processors, emulated: `apt-get install qemu-user`.

What differs between real processors differs from the emulated ones too: these take the exact value for the approximate
reciprocal roots, in which Intel and AMD differ, have the other vendor's name and caches of other sizes, and no AVX-512.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from tiny_project import Project, edit

from benchmark.runtime import arithmetic

EMULATOR = shutil.which("qemu-x86_64")
ROW = "Tiny2026Net-small"
# one process for all steps, since importing torch is most of an emulated one
RUN = (
    "from benchmark.specs.rows import load_row\nfrom benchmark.protocol import planned\n"
    "from benchmark.runtime import arithmetic\narithmetic.fix('portable')\n"
    "for name in {stages}: planned(load_row('tiny', '{row}'), name).execute()"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(not EMULATOR, reason="needs qemu-x86_64 (Debian: qemu-user)"),
    pytest.mark.skipif(arithmetic.possible("portable") == "native", reason="portable arithmetic needs AVX2"),
]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project.new(tmp_path_factory.mktemp("native") / "project")
    project.add("Tiny2026Net", epochs=3)
    edit(project.root / "params.yaml", "wall: full", "wall: none")  # the emulator has no landlock
    project.rvb("repro", "--track", "tiny")
    return project


@pytest.mark.parametrize(
    ("processor", "stages"),
    [("Haswell", ("train", "attack-standard", "certify")), ("EPYC-Rome", ("train", "attack-standard"))],
)
def test_an_emulated_processor_trains_attacks_and_certifies_to_the_same_bytes(processor, stages, native, tmp_path) -> None:
    project = native.copy(tmp_path / "project")
    for stage in stages:
        shutil.rmtree(project.root / "work" / "tiny" / ROW / stage)
    assert EMULATOR
    result = subprocess.run(
        [EMULATOR, "-cpu", processor, sys.executable, "-c", RUN.format(stages=stages, row=ROW)],
        cwd=project.root, env=project.environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    found, expected = project.results(ROW), native.results(ROW)
    assert {f"{stage}/evidence.parquet" for stage in stages[1:]} | {"train/model.safetensors"} <= found.keys()
    assert [name for name in expected if found.get(name) != expected[name]] == []
