"""`rvb new`: the folder that it makes passes `rvb check` as it is, and its own tests; `rvb check` of one that does not."""

from __future__ import annotations

import json
import shutil

import pytest
from command import error, rvb
from tiny_project import ROOT, append

from benchmark.specs import submissions

CUT_OFF = """
from torch import nn


class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x.detach())


def build(data, **model):
    return Net(nn.Flatten(), nn.Linear(64, data.classes))
"""
FILES = ["README.md", "method.py", "submission.yaml", "test_method.py"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(submissions, "FOLDER", tmp_path)


@pytest.mark.slow
def test_the_folder_loads_and_passes_every_check_and_a_failing_check_is_printed(tmp_path) -> None:
    result = rvb("new", "Doe2026Tiny")
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "Doe2026Tiny").iterdir()) == FILES
    assert "rvb check Doe2026Tiny" in result.output
    checked = rvb("check", "Doe2026Tiny", "--json")
    assert checked.exit_code == 0
    report = json.loads(checked.stdout)
    assert all(check["ok"] for check in report["checks"])
    assert {check["name"] for check in report["checks"]} >= {"license", "citation", "training", "each image by itself"}
    assert {note["name"] for note in report["notes"]} >= {"size", "time", "modules of its own"}
    assert "all 15 checks passed" in rvb("check", "Doe2026Tiny-small").output

    append(tmp_path / "Doe2026Tiny/method.py", CUT_OFF)
    result = rvb("check", "Doe2026Tiny", "--json")
    assert result.exit_code == 1
    assert [check["name"] for check in json.loads(result.stdout)["checks"] if not check["ok"]] == ["division"]
    shown = rvb("check", "Doe2026Tiny")
    assert shown.exit_code == 1
    assert "  FAIL  division: " in shown.output
    assert "Doe2026Tiny: 1 of " in shown.output
    assert "did you mean 'Doe2026Tiny'" in error("check", "Doe2026Tini")
    assert "has no variant 'smal'; did you mean 'small'?" in error("check", "Doe2026Tiny-smal")


def test_what_is_given_stands_in_the_citation() -> None:
    title, url = 'Robust "ViTs": all of $them, a\\b', "https://a.org/b"
    assert not rvb("new", "Doe2026Tiny", "--title", title, "--authors", "Doe and Müller", "--url", url).exit_code
    paper = submissions.load("Doe2026Tiny").paper
    assert (paper.title, paper.authors, paper.year, paper.url) == (title, "Doe and Müller", 2026, url)


@pytest.mark.parametrize(
    "name", ["doe2026Tiny", "Doe26Tiny", "Doe2026", "Doe-2026Tiny", "../Doe2026Tiny", "Doe2026" + "T" * 60, ""]
)
def test_bad_names_are_refused_in_one_line(tmp_path, name) -> None:
    message = error("new", name)
    assert message.startswith("bad name ")
    assert "such as Doe2026Tiny" in message
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_left_alone(tmp_path) -> None:
    shutil.copytree(ROOT / "submissions/Wong2020Fast", tmp_path / "Wong2020Fast")
    before = (tmp_path / "Wong2020Fast/method.py").read_bytes()
    for name in ("Wong2020Fast", "Wong2020FAST"):
        assert "Wong2020Fast exists; choose another word" in error("new", name)
    assert (tmp_path / "Wong2020Fast/method.py").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["Wong2020Fast"]
