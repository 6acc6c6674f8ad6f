"""Rows that fail beside rows that stand: what is built, what the board says, and the exit status."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import tiny_linear_row

pytestmark = [pytest.mark.slow, pytest.mark.long]
TUNED = """\
  tuned:
    title: Fine-tuned
    tracks:
      tiny:
        training: {objective: standard, epochs: 1, batch_size: 64, learning_rate: 0.001, init_from: {row: Tiny2026Broken-small}}
"""
STANDS, BROKEN, WAITS = "Tiny2026Linear-small", "Tiny2026Broken-small", "Tiny2026Linear-tuned"


def test_the_rows_that_stand_have_a_board_that_names_the_others(tmp_path) -> None:
    project = tiny_linear_row.new(tmp_path / "project")
    folder, broken = (project.root / "submissions" / name for name in ("Tiny2026Linear", "Tiny2026Broken"))
    shutil.copytree(folder, broken)
    text = (folder / "submission.yaml").read_text()
    (broken / "submission.yaml").write_text(text.replace("Tiny2026Linear", "Tiny2026Broken"))
    (folder / "submission.yaml").write_text(text + TUNED)
    method = broken / "method.py"
    good = method.read_text()
    method.write_text(good.replace("Linear(64, 10)", "Linear(64, 11)"))

    result = project.rvb("repro", "--track", "tiny", check=False)
    assert result.returncode == 1
    assert re.search(rf"two images give .*missing of 3 rows: {BROKEN}, {WAITS}; `--keep-going` ", result.stderr)
    assert result.stderr.count("\n") == 1
    work = project.root / "work/tiny"
    assert (work / STANDS / "record/record.json").exists(), "another row's failure does not end it"
    assert not (work / "site").exists()
    assert not (work / "partial").exists()

    result = project.rvb("repro", "--track", "tiny", "--keep-going", check=False)
    assert result.returncode == 1
    assert "the board of the rows that stand, 1 of 3: open work/tiny/partial/site/index.html" in result.stdout
    assert re.search(rf"missing of 3 rows: {BROKEN}, {WAITS}$", result.stderr)
    index = (work / "partial/site/index.html").read_text()
    assert f'data-row="{STANDS}"' in index
    assert "<h2>2 rows are missing</h2>" in index
    assert f"<code>{BROKEN}</code>: submissions/Tiny2026Broken: two images give" in index
    assert f"<code>{WAITS}</code>: starts from the weights of a row that failed" in index
    assert [*json.loads((work / "partial/leaderboard.json").read_text())] == [STANDS]
    assert not (work / "site").exists(), "the whole board is DVC's"

    result = project.rvb("repro", BROKEN, "--track", "tiny", "--keep-going", check=False)
    assert result.returncode == 1
    assert "missing of" not in result.stderr, "it is the only one"

    method.write_text(good)
    output = project.rvb("repro", "--track", "tiny", "--keep-going").stdout
    assert f" of {STANDS}, " not in output, "it was built before"
    assert "done: open work/tiny/site/index.html" in output
    assert (work / "site/index.html").read_text().count("data-row=") == 3
    assert not (work / "partial").exists()
    assert "up to date" in project.rvb("repro", "--track", "tiny").stdout
