"""The static closure of imports, compared with the modules that stages really import."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from stages import planned_code, really_imported, stage_code, stage_names

from benchmark.protocol import STEPS
from benchmark.runtime import code, files
from benchmark.runtime.errors import BenchmarkError


def test_closure_follows_imports_that_run() -> None:
    assert Path("benchmark/runtime/errors.py") in code.closure(Path("benchmark/runtime/files.py"))
    assert Path("benchmark/__init__.py") not in code.closure(Path("benchmark/runtime/files.py")), "it does nothing"
    assert Path("benchmark/specs/tracks.py") in code.closure(Path("benchmark/specs/submissions.py"))
    fgsm = code.closure(Path("benchmark/attacks/fgsm.py"))
    for_type_checkers = ("attacks/__init__.py", "evaluation/auto_attack.py", "attacks/engine/apgd.py")
    assert not {Path("benchmark", path) for path in for_type_checkers} & {*fgsm}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file with an mtime of its own: digests are cached by it."""
    monkeypatch.chdir(tmp_path)
    times = itertools.count(1)

    def written(path: str, text: str) -> Path:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
        os.utime(path, ns=(0, next(times)))
        return Path(path)

    return written


NAMES = (
    '"""Says."""\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from benchmark.other import f\n\n\n'
    "def __getattr__(name):\n    return name\n"
)


@pytest.mark.parametrize(
    ("more", "counts"),
    [("", False), ("\nX = 1\n", True), ("\ndef f():\n    return 1\n", True), ("\nimport benchmark.part\n", True)],
)
def test_a_package_whose_init_does_something_counts_and_one_that_only_gives_names_does_not(write, more, counts) -> None:
    module = write("benchmark/part.py", "X = 1\n")
    entry, package = write("entry.py", "from benchmark import part\n"), write("benchmark/__init__.py", NAMES + more)
    assert (package in code.closure(entry)) is counts
    assert module in code.closure(entry)


def test_changing_one_attack_concerns_its_own_stages_only() -> None:
    row, cw = ("digits", "Dosovitskiy2021ViT-standard"), Path("benchmark/attacks/cw.py")
    assert [name for name in stage_names(*row) if cw in stage_code(name, *row)] == ["attack-papers"]
    fgsm = cw.with_name("fgsm.py")
    assert [name for name in stage_names(*row) if fgsm in stage_code(name, *row)] == ["attack-papers", "reliability"]


PLAIN = 'import math\n\n\ndef f(x):\n    """Says."""\n    return math.sqrt(x) + 1\n'


def test_a_comment_or_a_docstring_changes_no_digest_and_every_edit_of_code_does(write) -> None:
    def digest(text: str) -> str:
        return code.digests(write("method.py", text))["method.py"]

    first = digest(PLAIN)
    assert digest('"""A module."""\n' + PLAIN) == first
    assert digest(PLAIN.replace("Says", "Says more")) == first
    assert digest(PLAIN.replace("return", "# why\n    return").replace("sqrt(x)", "sqrt( x )")) == first
    assert digest(PLAIN.replace('    """Says."""\n', "")) == first
    assert digest("") == digest('"""A module."""\n')
    for old, new in (("+ 1", "+ 1.0"), ("+ 1", "- 1"), ("f(x)", "f(x, y=0)"), ("import math", "import cmath as math")):
        assert digest(PLAIN.replace(old, new)) != first
    assert digest(PLAIN.replace('"""Says."""', '"""Says."""\n    "not a docstring"')) != first
    calls = ["f(1, (2, 3))", "f(1, 2, 3)", "f([1, 2], [])", "f([1], [2])", "f('1', 2)", "f(1, '2')", "g(f, 1)", "f(g, 1)"]
    assert len({digest(f"{call}\n") for call in calls}) == 8


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Return a file's digest as another process computes it: nothing is cached but `KEPT`, which is then written."""
    monkeypatch.chdir(tmp_path)

    def forget() -> None:
        for cached in (code._kept, code._parsed, code._imports):
            cached.cache_clear()

    def digest(path: Path) -> str:
        forget()
        found = code.digests(path)[path.as_posix()]
        files.write(code.KEPT, code.to_keep())
        return found

    yield digest
    forget()


def test_a_file_is_parsed_once_for_all_processes_and_an_edit_that_keeps_size_and_time_is_seen(parse, monkeypatch) -> None:
    path, parsed = Path("method.py"), []
    whole = code._parse
    monkeypatch.setattr(code, "_parse", lambda *given: parsed.append(given[0]) or whole(*given))
    seen = []
    for text in ("X = 1\n", "X = 1\n", "X = 2\n", "X = 1\n"):
        path.write_text(text)
        os.utime(path, ns=(0, 0))
        seen.append(parse(path))
    assert parsed == [path, path], "bytes that were seen before are not parsed again"
    assert seen[0] == seen[1] == seen[3] != seen[2]


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
    first, whole = parse(path), code.KEPT.read_bytes()
    code.KEPT.write_bytes(damage(whole))
    assert code.KEPT.read_bytes() != whole
    assert parse(path) == first
    assert code.KEPT.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.long
def test_inputs_are_what_the_steps_really_import(project) -> None:
    """Runs every step of a tiny row and compares sys.modules with its inputs file, both ways."""
    project.add("Tiny2026Net", epochs=1)
    contributed = "from benchmark.attacks import fgsm\n\n\ndef attack(model, *inputs, seed):\n    return fgsm.attack(model, *inputs, seed=seed)\n"
    cw = "attack: cw, norm: L2, eps: 0.5, parameters: {steps: 2, step_size: 0.01, c: 1.0}"
    project.bring("Tiny2026Net", "contributed", contributed, "attack: contributed, norm: L2, eps: 0.3", cw)
    project.rvb("pipeline")
    project.run("benchmark.pipeline.inputs", "tiny")
    names = {path.stem for path in project.root.glob("work/tiny/inputs/Tiny2026Net-small/*.json")}
    for name in ("data", *sorted(names, key=lambda name: [*STEPS].index(name.partition("-")[0]))):
        row = "Tiny2026Net-small" if name != "data" else ""
        assert really_imported(project, name, "tiny", row) == planned_code(project, row, name), name


def test_a_syntax_error_names_its_line(write) -> None:
    with pytest.raises(BenchmarkError, match=r"method\.py, line 2: invalid syntax"):
        code.closure(write("method.py", "x = 1\ndef build(:\n"))
