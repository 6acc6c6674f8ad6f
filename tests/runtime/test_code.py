"""The static closure of imports, which makes DVC's deps, against what stages really import."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from stage_imports import planned_code, planned_steps, really_imported
from stages import stage_code, stage_names

from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError


def test_closure_follows_imports_and_leaves_inert_packages_out(tmp_path: Path) -> None:
    assert Path("benchmark/runtime/errors.py") in code.closure(Path("benchmark/runtime/files.py"))
    assert Path("benchmark/__init__.py") not in code.closure(Path("benchmark/runtime/files.py"))
    assert Path("benchmark/loading/tracks.py") in code.closure(Path("benchmark/loading/submissions.py"))


def test_a_package_whose_init_does_something_counts_and_one_that_only_gives_names_does_not(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package, module = Path("benchmark/__init__.py"), Path("benchmark/part.py")
    package.parent.mkdir()
    module.write_text("X = 1\n")
    Path("entry.py").write_text("from benchmark import part\n")
    names = (
        '"""Says."""\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from benchmark.other import f\n\n\n'
        "def __getattr__(name):\n    return name\n"
    )
    times = itertools.count(1)
    for text, counts in (
        (names, False),
        (names + "\nX = 1\n", True),
        (names + "\ndef f():\n    return 1\n", True),
        (names + "\nimport benchmark.part\n", True),
    ):
        package.write_text(text)
        os.utime(package, ns=(0, next(times)))
        assert (package in code.closure(Path("entry.py"))) is counts
        assert module in code.closure(Path("entry.py"))


def test_imports_for_type_checkers_alone_are_no_code_of_a_stage() -> None:
    fgsm = code.closure(Path("benchmark/attacks/fgsm.py"))
    assert Path("benchmark/attacks/__init__.py") not in fgsm
    assert Path("benchmark/evaluation/auto_attack.py") not in fgsm
    assert Path("benchmark/attacks/engine/apgd.py") not in fgsm


def test_changing_one_attack_concerns_its_own_stages_only() -> None:
    row, cw = ("digits", "Dosovitskiy2021ViT-standard"), Path("benchmark/attacks/cw.py")
    assert [name for name in stage_names(*row) if cw in stage_code(name, *row)] == ["attack-papers"]


def test_a_comment_or_a_docstring_changes_no_digest_and_every_edit_of_code_does(tmp_path) -> None:
    path = tmp_path / "method.py"

    def digest(text: str) -> str:
        path.write_text(text)
        os.utime(path, ns=(0, next(times)))  # digests are kept by time
        return code.digests(path)[path.as_posix()]

    times = itertools.count(1)
    plain = 'import math\n\n\ndef f(x):\n    """Says."""\n    return math.sqrt(x) + 1\n'
    first = digest(plain)
    assert digest('"""A module."""\n' + plain) == first
    assert digest(plain.replace("Says", "Says more")) == first
    assert digest(plain.replace("return", "# why\n    return").replace("sqrt(x)", "sqrt( x )")) == first
    assert digest(plain.replace('    """Says."""\n', "")) == first
    for old, new in (("+ 1", "+ 1.0"), ("+ 1", "- 1"), ("f(x)", "f(x, y=0)"), ("import math", "import cmath as math")):
        assert digest(plain.replace(old, new)) != first
    assert digest(plain.replace('"""Says."""', '"""Says."""\n    "not a docstring"')) != first


@pytest.mark.slow
@pytest.mark.long
def test_inputs_are_what_the_steps_really_import(project) -> None:
    """Runs every step of a tiny row and compares sys.modules with its inputs file, both ways."""
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
    project.run("benchmark.pipeline.inputs", "tiny")
    for name in ("data", *planned_steps(project, "Tiny2026Net-small")):
        row = "Tiny2026Net-small" if name != "data" else ""
        assert really_imported(project, name, "tiny", row) == planned_code(project, row, name), name


def test_a_syntax_error_names_its_line(tmp_path) -> None:
    from benchmark.runtime import code

    path = tmp_path / "method.py"
    path.write_text("x = 1\ndef build(:\n")
    with pytest.raises(BenchmarkError, match=r"method\.py, line 2: invalid syntax"):
        code.closure(path)
