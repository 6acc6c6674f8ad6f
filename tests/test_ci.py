"""What `.ci/run` asserts of a built board: run here on small boards, right and wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_project import ROOT, git

from benchmark.records.record import Record, headline

ROWS = ("Dosovitskiy2021ViT-standard", "Debenedetti2022XCiT-small", "Havens2024LoFAST-mean_pool")
WEIGHTS = {"training": None, "weights": {"path": "weights/given.pt", "sha256": None}}


def check(folder: Path, trust: str, settings: dict) -> subprocess.CompletedProcess[str]:
    """Runs the script's look at the site on published Records, the first with these settings and this trust."""
    site = folder / "work/digits/site"
    numbers = {}
    for row in ROWS:
        record = json.loads((ROOT / "leaderboard/results/digits" / f"{row}.json").read_text())
        if row == ROWS[0]:
            record["trust"] = trust
            record["settings"] |= settings
        page = site / "models" / row
        page.mkdir(parents=True)
        (page / "record.json").write_text(json.dumps(record))
        (page / "index.html").touch()
        (page / "evidence.csv").touch()
        numbers[row] = {name: p.value for name, p in headline(Record.model_validate(record)).items()}
    (site / "index.html").write_text("".join(f'<tr data-row="{row}">' for row in ROWS))
    (folder / "pipelines/digits").mkdir(parents=True)
    (folder / "pipelines/digits/rows.json").write_text(json.dumps(ROWS))
    (folder / "pipelines/digits/leaderboard.json").write_text(json.dumps(numbers))
    script = (ROOT / ".ci/run").read_text().partition("<<'PY'\n")[2].partition("\nPY\n")[0]
    return subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("trust", "settings", "words"),
    [
        ("rebuilt", {}, ""), ("re-evaluated", WEIGHTS, ""),
        ("re-evaluated", {}, "was trained here"), ("rebuilt", WEIGHTS, "has weights from elsewhere"),
    ],
)  # fmt: skip
def test_a_row_passes_that_says_how_it_was_made(tmp_path, trust, settings, words) -> None:
    result = check(tmp_path, trust, settings)
    assert (result.returncode == 0) == (result.stderr == "") == (not words)
    assert words in result.stderr


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("https://name:secret@example.org/me/bench.git", "https://example.org/me/bench"),
        ("https://example.org/me/bench", "https://example.org/me/bench"), ("git@example.org:me/bench.git", ""), ("/srv/b.git", ""),
    ],
)  # fmt: skip
def test_the_site_links_the_web_address_of_origin_without_credentials(tmp_path, origin, address) -> None:
    for words in (["init", "-q"], ["remote", "add", "origin", origin]):
        git(*words, cwd=tmp_path)
    lines = [line for line in (ROOT / ".ci/pages").read_text().splitlines() if "origin" in line and line[0] != "#"]
    script = "\n".join(["set -euo pipefail", *lines, 'echo "$SITE_REPOSITORY"'])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == address
