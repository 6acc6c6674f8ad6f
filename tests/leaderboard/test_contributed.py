"""The board and README count what others broke, and name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import site_rows
from tiny_record import record

from benchmark.records.contributed import BrokenImage, BrokenRow, Contribution, lowered_all
from benchmark.records.record import Record
from benchmark.specs import tracks
from benchmark.specs.base import to_json
from leaderboard import build, readme
from leaderboard.rank import Row, rank

pytestmark = pytest.mark.slow

TRACK = tracks.load("digits")
HOSTILE = "<b>Jane</b> | [Doe](x)"
IMAGES = {"A-v": {"robust Linf 0.15": "1" * 70 + "0" * 30}, "B-v": {"robust Linf 0.15": "1" * 40 + "0" * 60}}


def rows(folder: Path, images: range, certified: float = 0) -> list[Row]:
    """A of 70 and B of 40 robust images; others broke `images` of A within Linf 0.15."""
    made: list[Record] = [record("A", 70, 30, certified=20), record("B", 40, 10)]
    made = [contributed.model_copy(update={"sha256": {"weights": "a" * 64}}) for contributed in made]
    if images:
        broken = [
            BrokenImage(
                image=i, threat="Linf 0.15", linf=0.15, l2=0.5, prediction=1, margin=-1, lost=("Linf 0.15",),
                certified=certified,
            )
            for i in images
        ]  # fmt: skip
        contributed = Contribution(credit=HOSTILE, sha256="b" * 64, weights="a" * 64, images=broken)
        (folder / "A-v.json").write_text(
            to_json(BrokenRow(track="digits", track_version=1, row="A-v", contributions=(contributed,)))
        )
    counted, scores, contributed = lowered_all(folder, made, IMAGES)
    return rank(counted, TRACK, scores, (), contributed)


def page(tmp_path: Path, board_rows: list[Row], name: str) -> str:
    for row in board_rows:
        site_rows.write(row.record, tmp_path, images=2)
    site_rows.render(tmp_path / "site", TRACK, board_rows, tmp_path)
    return (tmp_path / "site" / name).read_text()


def test_a_row_falls_by_what_others_broke(tmp_path) -> None:
    assert [(row.record.row, row.rank) for row in rows(tmp_path, range(0))] == [("A-v", "1"), ("B-v", "2")]
    board_rows = rows(tmp_path, range(35))
    assert [(row.record.row, row.rank) for row in board_rows] == [("B-v", "1–2"), ("A-v", "1–2")]
    assert board_rows[1].credits == {"robust Linf 0.15": f"−35 {HOSTILE}"}
    assert build.metrics(board_rows)["A-v"]["robust Linf 0.15"] == 0.35
    assert build.table(board_rows, TRACK).splitlines()[2].startswith("A-v,0.97,0.35,0.3,")


def test_the_page_names_who_broke_what_escaped(tmp_path) -> None:
    text = page(tmp_path, rows(tmp_path, range(2)), "index.html")
    cell = site_rows.board_row(text, "A-v")
    assert "<b>68.0</b>" in cell
    assert "−2 &lt;b&gt;Jane&lt;/b&gt; | [Doe](x)</bdi></small>" in cell
    assert "is that of the person whose adversarial images broke so many more" in " ".join(text.split())
    assert "contradicted" not in cell
    model = (tmp_path / "site/models/A-v/index.html").read_text()
    assert "Broken by others" in model
    assert "<td>0, 1</td><td>Linf 0.15</td>" in model
    assert "Jane" not in site_rows.board_row(text, "B-v")
    assert "Broken by others" not in (tmp_path / "site/models/B-v/index.html").read_text()


def test_the_page_withdraws_a_contradicted_certificate(tmp_path) -> None:
    text = page(tmp_path, rows(tmp_path, range(1), certified=0.6), "models/A-v/index.html")
    assert "image 0 is certified at l2 0.6 and was broken at l2 0.5: the certificate is wrong" in text
    assert "certificate contradicted: " in site_rows.board_row((tmp_path / "site/index.html").read_text(), "A-v")
    assert "certified L2 0.1" not in build.metrics(rows(tmp_path, range(1), certified=0.6))["A-v"]


def test_the_readmes_table_names_them_too(tmp_path) -> None:
    text = readme.table(rows(tmp_path, range(2)), TRACK)
    assert "| 97 | 68 | 30 |" in text
    assert r"Lowered by contributed images: A model (\<b>Jane\</b> \| \[Doe\](x))." in text
    (tmp_path / "A-v.json").unlink()
    assert "Lowered" not in readme.table(rows(tmp_path, range(0)), TRACK)


def test_a_board_that_is_built_reads_what_was_contributed(tmp_path, monkeypatch) -> None:
    """From the files themselves, with the numbers that git keeps."""
    monkeypatch.setattr(build, "WORK", tmp_path / "work")
    monkeypatch.setattr(build, "PUBLISHED", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    Path("benchmark/tracks").mkdir(parents=True)
    Path("benchmark/tracks/digits.yaml").write_text((build.HERE.parent / "benchmark/tracks/digits.yaml").read_text())
    Path("pipelines/digits").mkdir(parents=True)
    Path("pipelines/digits/rows.json").write_text('["A-v"]')
    broken = Path("results/digits/broken")
    broken.mkdir(parents=True)
    made = next(row.record for row in rows(broken, range(0)) if row.record.row == "A-v")
    folder = site_rows.write(made, tmp_path / "work/digits", images=3)
    (folder / "per_image.json").write_text(json.dumps({"row": "A-v", "scores": IMAGES["A-v"]}))
    rows(broken, range(3))
    inputs = tmp_path / "work/digits/inputs"
    inputs.mkdir()
    (inputs / "papers.json").write_text("{}")
    build.build("digits")
    assert json.loads(Path("pipelines/digits/leaderboard.json").read_text())["A-v"]["robust Linf 0.15"] == 0.67
