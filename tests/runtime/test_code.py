"""The static closure of imports, which makes DVC's deps, against what stages really import."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage_imports import local_code, really_imported

from benchmark.loading.rows import load_row
from benchmark.pipeline import generate
from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError


def test_closure_follows_imports_and_leaves_inert_packages_out(tmp_path: Path) -> None:
    assert Path("benchmark/runtime/errors.py") in code.closure(Path("benchmark/runtime/files.py"))
    assert Path("benchmark/__init__.py") not in code.closure(Path("benchmark/runtime/files.py"))
    assert Path("benchmark/loading/tracks.py") in code.closure(Path("benchmark/loading/submissions.py"))


def test_imports_for_type_checkers_alone_are_no_code_of_a_stage() -> None:
    fgsm = code.closure(Path("benchmark/attacks/fgsm.py"))
    assert Path("benchmark/attacks/__init__.py") not in fgsm
    assert Path("benchmark/evaluation/auto_attack.py") not in fgsm
    assert Path("benchmark/attacks/engine/apgd.py") not in fgsm


def test_changing_one_attack_concerns_its_own_stages_only() -> None:
    row = load_row("digits", "Dosovitskiy2021ViT-standard")
    cw = Path("benchmark/attacks/cw.py")
    assert [stage for stage in row.stages() if cw in row.code(stage)] == ["attack-papers"]


STAGES = ["train", "attack-standard", "attack-papers", "reliability", "certify", "smooth", "collect"]


@pytest.mark.slow
def test_deps_are_what_the_stages_really_import(project) -> None:
    """Runs every stage of a tiny row and compares sys.modules with the deps in its dvc.yaml, both ways."""
    project.add("Tiny2026Net", epochs=1)
    brought = "from benchmark.attacks import fgsm\n\n\ndef attack(model, *inputs, seed):\n    return fgsm.attack(model, *inputs, seed=seed)\n"
    project.bring(
        "Tiny2026Net",
        "brought",
        brought,
        "attack: brought, norm: L2, eps: 0.3",
        "attack: cw, norm: L2, eps: 0.5, parameters: {steps: 2, step_size: 0.01, c: 1.0}",
    )
    project.rvb("pipeline")
    import json

    stages = json.loads((project.root / generate.row_file("tiny", "Tiny2026Net-small")).read_text())["stages"]
    data = json.loads((project.root / generate.data_file("tiny")).read_text())["stages"]["data"]
    for name, stage in {"data": data, **stages}.items():
        module, *arguments = stage["cmd"].removeprefix("python -m ").split()
        assert really_imported(project, module, arguments) == local_code(stage["deps"]), name


def test_a_syntax_error_names_its_line(tmp_path) -> None:
    from benchmark.runtime import code

    path = tmp_path / "method.py"
    path.write_text("x = 1\ndef build(:\n")
    with pytest.raises(BenchmarkError, match=r"method\.py, line 2: invalid syntax"):
        code.closure(path)
