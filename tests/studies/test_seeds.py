"""A row's study over its seeds: without a file, of the row's own training, published with every image's verdict."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tiny_linear_row
from stages import run_networks, run_stage, run_study, study_entries
from tiny_project import edit

from benchmark.records.study import PublishedStudy
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import seeds
from benchmark.specs.base import to_json
from benchmark.studies import grids
from benchmark.studies.results import collect_study

ID = "Tiny2026Linear-small-seeds"
FOLDER = Path("work/tiny/studies") / ID
METHOD = """\
from torch import nn

from benchmark.layers.lipschitz import NormalisedHead


def build(data):
    return nn.Sequential(nn.Flatten(), NormalisedHead(64, 10))
"""


@pytest.fixture
def project(linear_new):
    """A project with a linear row on a track with a certified radius, as working directory."""
    submission = Path("submissions/Tiny2026Linear/submission.yaml")
    submission.write_text(tiny_linear_row.SUBMISSION + "        certificate: {name: local}\n")
    (submission.parent / "method.py").write_text(METHOD)
    edit("benchmark/tracks/tiny.yaml", "certified_radii: []", "certified_radii: [0.05, 0.2]")
    return linear_new


def grid() -> grids.Grid:
    return grids.load(*grids.split_id(ID), "tiny")


@pytest.mark.slow
def test_it_resumes_and_its_first_seed_is_the_row_itself(project, monkeypatch, capfd) -> None:
    run_stage("data", "tiny")
    run_stage("train", *tiny_linear_row.NAMES)
    monkeypatch.setattr(seeds, "TRAININGS", 3)
    run_networks("tiny", ID, 2)
    capfd.readouterr()
    run_study("tiny", ID)
    printed = capfd.readouterr().out
    kept = "train is kept, nothing that it depends on has changed"
    assert [f"{row.name}: {kept}" in printed for row in grid().networks()] == [True, True, False]

    published = collect_study(grid())
    assert PublishedStudy.model_validate_json(to_json(published)) == published
    runs = published.result.runs
    assert runs[0].weights == files.sha256_file(tiny_linear_row.ROW / "train/model.safetensors")
    assert len({run.weights for run in runs}) == 3
    evidence = pq.read_table(FOLDER / "verdicts.parquet").to_pandas()
    for run in runs:
        seen = evidence[evidence.seed == run.seed]
        assert run.verdicts.keys() == {"clean", "APGD L2 0.5", "certified"}
        for label in ("clean", "APGD L2 0.5"):
            assert run.verdicts[label] == "".join("01"[right] for right in seen[f"{label}: right"].astype(int))
            assert run.values[label] == run.verdicts[label].count("1") / 20  # type: ignore[union-attr]
        assert [bits.count("1") / 20 for bits in run.verdicts["certified"]] == list(run.values["certified"])  # type: ignore
        for clean, near, far in zip(run.verdicts["clean"], *run.verdicts["certified"], strict=True):
            assert clean >= near >= far
    assert 0 < sum(run.values["clean"] for run in runs) < 3, "some images right, some wrong"  # type: ignore[misc]


def test_it_takes_the_rows_settings(project) -> None:
    assert list(grid().cells.values()) == [grids.load_row("tiny", "Tiny2026Linear-small").settings]
    assert {"quick.py", "local.py", "standard.py", "method.py"} <= {path.name for path in study_entries(grid())}
    (project.root / "params.yaml").write_text("train: {seed: 7}\n")
    assert grid().study.seeds == (7, 8, 9, 10, 11), "the row's own seed comes first"


def test_names_that_are_none_are_told_so_and_a_row_that_was_trained_elsewhere_has_no_study(project) -> None:
    for name, track, message in (
        ("seeds", "tiny", "has no study 'seeds': it is each row's, such as `rvb study Tiny2026Linear-small seeds`"),
        ("smal-seeds", "tiny", "has no variant 'smal'; did you mean 'small'"),
        ("small-seeds", "digits", "Tiny2026Linear-small is not on track digits; it is on tiny: give --track tiny"),
    ):
        with pytest.raises(BenchmarkError, match=message):
            grids.load("Tiny2026Linear", name, track)
    exist = [grids.exists("Tiny2026Linear", "small-seeds", track) for track in ("tiny", "digits")]
    assert exist == [True, False]
    file = project.root / "submissions/Tiny2026Linear/submission.yaml"
    head, _, _ = file.read_text().partition("        training:")
    file.write_text(head + "        weights: {path: weights/given.pt}\n")
    words = r"^Tiny2026Linear-small has weights that were trained elsewhere: .*seeds$"
    with pytest.raises(BenchmarkError, match=words):
        grid()
    assert grids.trained_rows("tiny") == grids.load_all() == []
    assert not grids.exists("Tiny2026Linear", "small-seeds", "tiny")
