"""The static closure of imports, which makes DVC's deps, against what stages really import."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from stage_imports import planned_code, planned_steps, really_imported
from stages import stage_code, stage_names

from benchmark.runtime import code, files
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


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Digest of a file as another process sees it: nothing is remembered but `KEPT`, which it then writes."""
    monkeypatch.chdir(tmp_path)

    def digest(path: Path, keep: bool = True) -> str:
        for cached in (code._kept, code._parsed, code._imports):
            cached.cache_clear()
        found = code.digests(path)[path.as_posix()]
        if keep:
            files.write(code.KEPT, code.to_keep())
        return found

    yield digest
    for cached in (code._kept, code._parsed, code._imports):
        cached.cache_clear()


def test_a_file_is_parsed_once_for_all_processes_and_an_edit_that_keeps_size_and_time_is_seen(
    parse, monkeypatch
) -> None:
    path = Path("method.py")
    path.write_text("X = 1\n")
    os.utime(path, ns=(0, 0))
    first, parsed = parse(path), []
    whole = code._parse
    monkeypatch.setattr(code, "_parse", lambda *given: parsed.append(given[0]) or whole(*given))
    assert parse(path) == first
    assert not parsed
    path.write_text("X = 2\n")
    os.utime(path, ns=(0, 0))
    assert parse(path) != first
    assert parsed == [path]
    path.write_text("X = 1\n")
    assert parse(path) == first
    assert parsed == [path]  # the bytes were seen before


def test_one_process_sees_an_edit_that_keeps_size_and_mtime(tmp_path) -> None:
    path = tmp_path / "method.py"
    path.write_text("X = 1\n")
    os.utime(path, ns=(0, 0))
    first, changed = code.digests(path), path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == changed:  # the file system's clock ticks some hundred times a second
        path.write_text("X = 2\n")
        os.utime(path, ns=(0, 0))
    assert code.digests(path) != first


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: b"",
        lambda kept: kept[:-9],
        lambda kept: kept + b" ",
        lambda kept: kept[:65] + b"[]",
        lambda kept: kept.replace(b"aaaa", b"bbbb"),
        lambda kept: b"\xff" * 100,
    ],
)
def test_a_damaged_table_of_what_was_parsed_is_made_anew(damage, parse) -> None:
    path = Path("method.py")
    path.write_text("import aaaa\n")
    first = parse(path)
    whole = code.KEPT.read_bytes()
    code.KEPT.write_bytes(damage(whole))
    assert code.KEPT.read_bytes() != whole
    assert parse(path) == first
    assert code.KEPT.read_bytes() == whole
    code.KEPT.unlink()
    assert parse(path, keep=False) == first


def test_a_table_of_what_was_parsed_that_grew_too_long_begins_anew(parse) -> None:
    path = Path("method.py")
    path.write_text("X = 1\n")
    parse(path)
    code._kept().update({str(number): ("", True, []) for number in range(5_000)})
    files.write(code.KEPT, code.to_keep())
    first = parse(path)
    assert [digest for digest, *_ in code._kept().values()] == [first]


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
