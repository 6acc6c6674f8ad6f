"""Pictures from the step to the page: the same bytes, named in the Record; images that PGD broke count."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
import site_rows
import tiny_linear_row
import yaml
from stages import run_stage
from tiny_linear_row import NAMES, PICTURES, ROW
from tiny_record import record

from benchmark import protocol
from benchmark.evaluation import evidence
from benchmark.pipeline import generate
from benchmark.records.record import Record
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from benchmark.specs.rows import load_row
from leaderboard.pages import models
from leaderboard.rank import rank


def test_what_the_pictures_broke_counts_and_contradicts_a_certificate() -> None:
    table = pa.table(
        {
            "image": [0, 1, 2], "clean_margin": [1.0, 1.0, 1.0], "certified_l2": [0.0, 0.0, 1.0],
            "probed Linf 0.15": [True, False, False], "pictured Linf 0.15": [False, True, False],
        }
    )  # fmt: skip
    assert evidence.probed(table)["Linf", 0.15].tolist() == [True, True, False]
    linf = evidence.robust(table, tracks.load("digits"))[0]
    assert (linf.threat.label, linf.accuracy.count) == ("Linf 0.15", 1)
    evidence.check_sandwich(table, "row")
    lies = table.append_column("pictured L2 0.5", pa.array([False, False, True]))
    with pytest.raises(BenchmarkError, match=r"image 2 "):
        evidence.check_sandwich(lies, "row")


@pytest.mark.slow
def test_the_stage_draws_the_same_bytes_and_the_record_names_them(linear_row) -> None:
    with pytest.raises(BenchmarkError, match="declares no pictures"):
        run_stage("pictures", *NAMES)
    (linear_row.root / "benchmark/tracks/tiny.yaml").write_text(tiny_linear_row.TRACK + PICTURES)
    run_stage("pictures", *NAMES)
    first = {path.name: path.read_bytes() for path in (ROW / "pictures").rglob("*.*")}
    run_stage("pictures", *NAMES)
    assert {path.name: path.read_bytes() for path in (ROW / "pictures").rglob("*.*")} == first
    assert {"perturbations.png", "accumulated_1.png", "fields.json", "evidence.parquet"} < first.keys()
    run_stage("collect", *NAMES)
    named = tiny_linear_row.record().pictures
    assert [picture.file for picture in named] == ["perturbations.png", "accumulated_1.png"]
    for picture in named:
        kept = (ROW / "record/pictures" / picture.file).read_bytes()
        assert hashlib.sha256(kept).hexdigest() == picture.sha256
    assert "PGD of 5 steps" in named[0].caption
    stages = yaml.safe_load(generate.generate()[generate.row_file("tiny", "Tiny2026Linear-small")])["stages"]
    assert {str(ROW / "pictures"): {"persist": True}} in stages["evaluate"]["outs"]
    assert protocol.planned(load_row(*NAMES), "pictures").settings["pictures"]["images"] == 3


def test_the_page_shows_them_with_alt_texts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(models, "pictures", lambda *_: [])  # those of the evaluation images
    words = {"title": "T", "alt": 'Rows of "images"', "caption": "<b>"}
    pictures = [{"file": "perturbations.png", "sha256": "0", **words}]
    shown = Record.model_validate(record("Shown", 40, 30).model_dump() | {"pictures": pictures})
    files.write(site_rows.write(shown, tmp_path) / "pictures/perturbations.png", b"drawn")
    track = tracks.load("digits")
    site_rows.render(tmp_path / "site", track, rank([shown], track), tmp_path)
    page = tmp_path / "site/models/Shown-v"
    assert (page / "pictures/perturbations.png").read_bytes() == b"drawn"
    text = (page / "index.html").read_text()
    assert '<img src="pictures/perturbations.png" alt="Rows of &#34;images&#34;">' in text
    assert "&lt;b&gt;</figcaption>" in text
