"""A submission's own files are inputs of its stages if a method imports them; another submission's are refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from stages import stage_code
from tiny_linear_row import NAMES, ROW
from tiny_project import Project

from benchmark.pipeline import inputs
from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import methods, submissions, tracks
from benchmark.specs.rows import load_row

METHOD = "from .layers import linear\n\n\ndef build(data):\n    return linear()\n"
LAYERS = "from torch import nn\n\n\ndef linear():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
NAME = "Tiny2026Linear"


@pytest.fixture
def helped(linear_new) -> Project:
    """A submission whose method.py imports layers.py, with a data file, in the working directory."""
    write("method.py", METHOD)
    write("layers.py", LAYERS)
    write("tables/means.csv", "0.5\n")
    return linear_new


def write(file: str, text: str, name: str = NAME) -> None:
    path = Path("submissions", name, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    now = path.stat().st_mtime_ns
    os.utime(path, ns=(now, max(now, before + 1)))  # files are written within one tick of the clock


def digests() -> dict[str, str]:
    """Of the code of each stage of the row."""
    found = inputs.of_row(load_row(*NAMES), code.digests)
    return {path.stem: code.combined(about["code"]) for path, about in found.items() if ROW.name in path.parts}


def built() -> object:
    return methods.build(submissions.load(NAME), "small", tracks.load("tiny"))


@pytest.mark.slow
def test_an_edit_of_a_file_that_the_method_imports_or_may_read_makes_its_stages_stale_and_no_other_does(helped) -> None:
    assert built()
    before = digests()
    for file in ("README.md", "test_method.py", "measures.py", "studies/table.csv", ".notes", "__pycache__/layers.pyc"):
        write(file, "x = 1\n")
    assert digests() == before
    edits = {"layers.py": LAYERS.replace("Flatten()", "Flatten(1)"), "tables/means.csv": "0.25\n", "new.npz": "1"}
    for file, text in edits.items():
        before = digests()
        write(file, text)
        after = digests()
        assert {name for name in before if before[name] != after[name]} == {*before} - {"collect"}, file


def test_however_it_is_imported_it_is_followed(helped) -> None:
    full = "from submissions.Tiny2026Linear.layers import linear"
    for statement in ("from . import layers", full, "import layers", "from .layers import *"):
        write("method.py", f"{statement}\n" + METHOD.partition("\n")[2])
        assert Path("submissions/Tiny2026Linear/layers.py") in stage_code("train", *NAMES), statement


def test_another_submission_is_refused_in_one_line(helped) -> None:
    write("method.py", METHOD, "Other")
    words = r"layers\.py, line 8: imports Other, which is another submission; import benchmark and files of its own folder"
    full = "from submissions.Other.method import build"
    for statement in (full, "from ..Other import method", "import submissions.Other.method"):
        write("layers.py", f"{LAYERS}\n\n{statement}\n")
        for refused in (digests, built):
            with pytest.raises(BenchmarkError, match=words):
                refused()


# puts what was the newest module last again, behind those of the block
REORDERS = "    sys.modules[last] = sys.modules.pop(last)\n"


@pytest.mark.parametrize("reorders", ["", REORDERS], ids=["plain", "reorders the modules"])
@pytest.mark.parametrize("target", ["Tiny2026Linear", "Other"])
def test_an_import_that_cannot_be_followed_is_refused(helped, monkeypatch, target, reorders) -> None:
    write("hidden.py", LAYERS, target)
    name = f"submissions.{target}.hidden"
    monkeypatch.delitem(sys.modules, name, raising=False)  # of another case
    write(
        "method.py",
        "import importlib, sys\n\n\ndef build(data):\n    last = next(reversed(sys.modules))\n"
        f"    made = importlib.import_module({name!r}).linear()\n{reorders}    return made\n",
    )
    words = rf"imports submissions/{target}/hidden\.py by other means than an import statement, so its edits would go unseen"
    with pytest.raises(BenchmarkError, match=words):
        built()


def test_a_bare_name_that_stands_beside_gets_the_right_form(helped) -> None:
    write("method.py", METHOD.replace("from .layers", "from layers"))
    with pytest.raises(BenchmarkError, match=r"No module named 'layers'; write `from \.layers import \.\.\.`"):
        built()


def test_two_checkouts_in_one_process_do_not_share_a_submissions_files(helped, tmp_path, monkeypatch) -> None:
    built()
    monkeypatch.chdir(helped.copy(tmp_path / "other").root)
    write("layers.py", LAYERS.replace("10)", "10, bias=False)"))
    assert "bias=False" in str(built())


def test_a_file_in_no_utf_8_is_one_line(helped) -> None:
    Path("submissions/Tiny2026Linear/layers.py").write_bytes(LAYERS.encode() + b"NAME = 'na\xefve'\n")
    with pytest.raises(BenchmarkError, match=r"layers\.py.*utf-8"):
        digests()
