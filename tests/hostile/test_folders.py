"""A submission's folder that is broken, on purpose or not, stops its own rows alone, with one line."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_linear_row import METHOD, NAMES, SUBMISSION
from tiny_project import edit
from typer.testing import CliRunner

from benchmark.commands.main import app
from benchmark.evaluation import check_submission as source
from benchmark.pipeline import generate, inputs, repro
from benchmark.runtime import code, errors
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.rows import load_row, load_rows
from benchmark.studies import grids

OTHER = Path("submissions/Other2026Net")
ROW = "Other2026Net-small"


def to_folder(name: str) -> Callable[[], None]:
    def change() -> None:
        (OTHER / name).unlink()
        (OTHER / name).mkdir()

    return change


def settings(old: str, new: str) -> Callable[[], object]:
    return lambda: edit(OTHER / "submission.yaml", old, new)


def method(text: str) -> Callable[[], object]:
    return lambda: (OTHER / "method.py").write_text(text)


BROKEN: dict[str, tuple[Callable[[], object], str]] = {
    "a link to itself": (lambda: (OTHER / "data.bin").symlink_to("data.bin"), "data.bin is a link that leads nowhere"),
    "a link to a link to it": (lambda: [(OTHER / "a").symlink_to("b"), (OTHER / "b").symlink_to("a")], "is a link that leads nowhere"),
    "settings that are a folder": (to_folder("submission.yaml"), "submission.yaml is no file"),
    "a method that is a folder": (to_folder("method.py"), "method.py is no file"),
    "a number of 5,000 digits": (settings("epochs: 2", f"epochs: 1{'0' * 5000}"), "not valid YAML: Exceeds the limit"),
    "the same in sixteens": (settings("epochs: 2", f"epochs: 0x1{'0' * 5000}"), "a number above 9223372036854775807"),
    "settings nested without end": (settings("epochs: 2", f"epochs: {'[' * 1500}"), "not valid YAML"),
    "no settings": (settings("objective: standard", "objective: nothing_like_it"), "no objective named"),
    "no Python": (method("def build(:\n"), "method.py, line 1: invalid syntax"),
    "no text": (method("\0"), "null bytes"),
    "another's code": (method("from submissions.Tiny2026Linear import method\n" + METHOD), "imports Tiny2026Linear, which is another submission"),
    "code nested deeper than Python goes": (method(METHOD + f"X = {'(' * 5000}1{')' * 5000}\n"), "method.py"),
    "a study of nothing": (lambda: [(OTHER / "studies").mkdir(), (OTHER / "studies/one.yaml").write_text("title: [\n")], "one.yaml: not valid YAML"),
}  # fmt: skip
# which Python itself takes
DEEP = {
    "400 elif": "def f(x):\n    if x == 0:\n        return 0\n"
    + "".join(f"    elif x == {n}:\n        return {n}\n" for n in range(1, 400)),
    "900 attributes in a row": "def f(x):\n    return x" + ".a" * 900 + "\n",
    "500 added strings": "X = " + " + ".join(["'a'"] * 500) + "\n",
    "a long number": f"X = 0x1{'0' * 5000}\n",
}


@pytest.fixture
def other(linear_row):
    OTHER.mkdir()
    (OTHER / "method.py").write_text(METHOD)
    (OTHER / "submission.yaml").write_text(SUBMISSION.replace("Tiny2026Linear", OTHER.name))
    errors.LEFT_OUT.clear()
    generate.write()


@pytest.mark.sweep
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_stops_its_own_row_alone(other, capfd, monkeypatch, name) -> None:
    change, words = BROKEN[name]
    own = (generate.FOLDER / "tiny" / ROW / "dvc.yaml").read_text()
    change()
    assert "Tiny2026Linear-small" in [row.name for row in load_rows("tiny")]
    assert generate.write() is not None
    inputs.write("tiny")
    assert "Tiny2026Linear-small-seeds" in [f"{grid.id}" for grid in grids.load_all("tiny")]
    assert (inputs.folder("tiny") / "Tiny2026Linear-small/attack-papers.json").exists()
    kept = (generate.FOLDER / "tiny" / ROW / "dvc.yaml").read_text()
    assert kept == own  # its locks stay, to be used when it is mended
    told = capfd.readouterr().err.splitlines()
    assert all(line.startswith("warning: left out: ") for line in told)
    assert words in told[0]
    assert len(told) == len({*told}) <= 2  # its row, and the study of its seeds
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == 0
    assert "Tiny2026Linear-small" in listed.stdout
    monkeypatch.setattr(repro, "repro", lambda *_: None)
    built = [CliRunner().invoke(app, ["repro", *rows, "--track", "tiny"]).exit_code for rows in ([], [NAMES[1]])]
    assert built == [name not in ("a study of nothing", "settings that are a folder"), 0], "a row is not on the board"
    checked = CliRunner().invoke(app, ["pipeline", "--check"])
    assert checked.exit_code, "it is no pull request"
    assert isinstance(checked.exception, BenchmarkError)
    assert words in str(checked.exception) or "no longer fit" in str(checked.exception)
    assert "\n" not in str(checked.exception)
    if name not in ("another's code", "a study of nothing"):
        with pytest.raises(BenchmarkError, match=re.escape(words)):
            load_row("tiny", ROW)


@pytest.mark.parametrize("name", DEEP)
def test_code_that_python_takes_is_followed_however_deep(other, capfd, name) -> None:
    path = OTHER / "method.py"
    path.write_text(METHOD + DEEP[name])
    digest = code.digests(path)[path.as_posix()]
    path.write_text(METHOD + DEEP[name].replace("1", "2").replace("'a'", "'b'", 1).replace(".a", ".b", 1) + "\n")
    assert code.digests(path)[path.as_posix()] != digest
    assert ROW in [row.name for row in load_rows("tiny")]
    inputs.write("tiny")
    assert (inputs.folder("tiny") / ROW / "train.json").exists()
    assert capfd.readouterr().err == ""


def test_what_is_shown_of_deep_code_need_not_go_as_deep(other) -> None:
    (OTHER / "method.py").write_text(METHOD + DEEP["900 attributes in a row"])
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own, which another test's library may have raised
    try:
        with pytest.raises(BenchmarkError, match="nested too deeply to be read; write them flat"):
            source.accesses(OTHER)
    finally:
        sys.setrecursionlimit(limit)


def test_a_mended_folder_is_back(other) -> None:
    shutil.copy(OTHER / "method.py", "kept.py")
    (OTHER / "method.py").write_text("(")
    assert [row.name for row in load_rows("tiny")] == [NAMES[1]]
    shutil.copy("kept.py", OTHER / "method.py")
    assert [row.name for row in load_rows("tiny")] == [ROW, NAMES[1]]
