"""`rvb check`: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import new_submission
import pytest
from command import error, rvb
from new_submission import NAME

CUT_OFF = """\
from torch import nn


class Net(nn.Module):
    def __init__(self, data):
        super().__init__()
        self.head = nn.Linear(64, data.classes)

    def forward(self, x):
        return self.head(x.flatten(1).detach())


def build(data, **model):
    return Net(data)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    return new_submission.write(tmp_path, monkeypatch)


def test_exit_status_and_json(folder) -> None:
    (folder / "method.py").write_text(CUT_OFF)
    result = rvb("check", NAME, "--json")
    assert result.exit_code == 1
    assert [check["name"] for check in json.loads(result.stdout)["checks"] if not check["ok"]] == ["division"]
    shown = rvb("check", NAME)
    assert shown.exit_code == 1
    assert "  FAIL  division: " in shown.output
    assert f"{NAME}: 1 of " in shown.output


def test_names_that_are_none() -> None:
    assert "did you mean 'Doe2026Tiny'" in error("check", "Doe2026Tini")
    assert "has no variant 'smal'; did you mean 'small'?" in error("check", "Doe2026Tiny-smal")
