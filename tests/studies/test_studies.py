"""Studies: grids from their files, refused with one line when something is wrong, run, resumed and published."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_study
import yaml
from stages import failed_study, run_networks, run_stage, run_study, study_entries
from tiny_project import edit

from benchmark.data.images import load_split
from benchmark.pipeline import generate, inputs
from benchmark.records.study import PublishedStudy
from benchmark.records.study_table import table
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import papers_file
from benchmark.specs.base import to_json
from benchmark.specs.study import Study
from benchmark.studies import grids
from benchmark.studies.results import collect_study
from leaderboard.reading import read_papers


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds:", "seed:", "unknown key 'seed'; did you mean 'seeds'?"),
        ("  - {measure: clean}", "  - {measur: clean}", "unknown key 'measures.0.measur'; did you mean 'measure'?"),
        ("learning_rate:", "learning_rat:", "bias on': unknown key 'training.learning_rat'; did you mean 'learning_rate'?"),
        ("training.learning_rate:", "trainin.learning_rate:", "unknown key 'trainin'; did you mean 'training'?"),
        ("learning_rate: 0.001", "learning_rate: -1", "cell 'slower, bias on': training.learning_rate"),
        ("learning_rate: 0.001", "objective: tradez", "no objective named 'tradez'; did you mean 'trades'?"),
        ("learning_rate: 0.001", "attack.eps: 0.1", "changes a part of 'attack', which the variant does not have"),
        ("learning_rate: 0.001", "epochs.x: 0.1", "changes a part of 'epochs', which the variant does not have"),
        ("training.learning_rate: 0.001", "adaptive: []", "'adaptive' names no setting of a study"),
        ("model.bias: [true, false]", "model.bias: [true, [1]]", "axes.model.bias.1"),
        ("model.bias", "model.bia", "build of Tiny2026Linear has no option 'bia'; did you mean 'bias'?"),
        ("measure: confidence", "measure: confidense", "measure 'confidense': no measure of that name"),
        ("measure: clean}", "measure: seconds}", "times are no results"),
        ("measure: clean}", "measure: clean, radii: [0.1]}", "needs `radii`"),
        ("measure: clean}", "measure: certified, name: clean, radii: [0.1]}", "declares no certificate; name one in"),
        ("attack: pgd,", "attack: pdg,", "measure 'PGD': no attack named 'pdg'; did you mean 'pgd'?"),
        ("norm: L2, eps: 0.5", "norm: Linf, eps: 8", "pixels in [0, 1]"),
        ("norm: L2, eps: 0.5", "norm: L2, eps: 9", "the diameter of 1x8x8 images"),
        ("slower, bias off: {", "slower, bias of: {", "no cell 'slower, bias of'; did you mean 'slower, bias off'?"),
        ("{clean: 0.25}", "{clear: 0.25}", "no measure 'clear'; did you mean 'clean'?"),
        ("images: 10", "images: 10\nshares: [clear]", "shares: no measure 'clear'; did you mean 'clean'?"),
        ("measure: clean}", "measure: clean, cells: [slower]}", "'clean': no cell 'slower'; did you mean 'slower, bias on'"),
        ("{measure: clean}", "{measure: clean, images: 3}", "`images` is for measures of your own"),
        ("{measure: confidence,", "{measure: confidence, images: 11,", "images 11 are more than the 10 of the study"),
        ("images: 10", "images: 41", "images 41 are more than the 40 test images of tiny"),
        ("seeds: [0, 1]", "seeds: [0, 0]", "the seed 0 stands twice"),
        ("name: slower", "name: as it is", "the cell as it is, bias on stands twice"),
        ("images: 10", "images: 10\nclaims_comparable: [clear]", "claims_comparable: no measure 'clear'; did you mean 'clean'?"),
        ("draw: bars", "draw: lines, x: model.width", "figure.x 'model.width' is no axis"),
        ("variant: small", "variant: smal", "has no variant 'smal'; did you mean 'small'?"),
        ("track: tiny", "track: tinny", "unknown track 'tinny'; did you mean 'tiny'?"),
    ],
)  # fmt: skip
def test_a_bad_study_gets_one_clear_line(loading, old, new, message) -> None:
    tiny_study.add(loading, (old, new))
    with pytest.raises(BenchmarkError) as raised:
        tiny_study.load()
    assert message in str(raised.value)
    assert "grid.yaml" in str(raised.value) or "smal" in message or "tinny" in message


def test_every_study_in_the_repository_loads() -> None:
    studies = grids.load_all()
    assert {"Debenedetti2022XCiT-recipe", "Debenedetti2022XCiT-cumulative"} <= {grid.id for grid in studies}
    for grid in studies:
        assert len(grid.networks()) == len(grid.cells) * len(grid.study.seeds)


def test_a_grid_is_the_product_of_cells_and_axes_and_every_cell_gets_its_settings(loading) -> None:
    with pytest.raises(BenchmarkError, match="has no study 'gridd'; did you mean 'grid'"):
        grids.load("Tiny2026Linear", "gridd")
    grid = tiny_study.load()
    assert list(grid.cells) == ["as it is, bias on", "as it is, bias off", "slower, bias on", "slower, bias off"]
    last = grid.cells["slower, bias off"]
    assert (last.model, last.training.learning_rate, last.training.epochs) == ({"bias": False}, 0.001, 2)
    assert grid.cells["as it is, bias on"].training.learning_rate == 0.01
    assert grid.study.grid()[3].levels == {"cell": "slower", "model.bias": "off"}
    alone = Study.model_validate(grid.study.model_dump() | {"cells": (), "axes": {}, "claims": {}})
    assert [cell.name for cell in alone.grid()] == ["all"]
    entries = {path.name for path in study_entries(grid)}
    assert {"pgd.py", "measures.py", "method.py", "standard.py", "own.py"} <= entries


@pytest.mark.parametrize(("images", "rules"), [("images: 10\n", (20, None)), ("images: 30\n", (30, None)), ("", (20, 12))])
def test_a_study_attacks_the_images_that_it_asks_for_or_as_many_as_the_rows(loading, images, rules) -> None:
    edit(loading.root / "tracks/tiny.yaml", "images: 20,", "images: 20, attacked: 12,")
    tiny_study.add(loading, ("images: 10\n", images))
    evaluation = tiny_study.load().networks()[0].track.evaluation
    assert (evaluation.images, evaluation.attacked) == rules


@pytest.mark.slow
def test_a_study_resumes_after_its_last_network_counts_its_evidence_and_publishes(studied, capfd, monkeypatch) -> None:
    study = tiny_study.STUDY.replace("  - {name: as it is}\n", "")
    monkeypatch.setattr(tiny_study, "STUDY", study.replace("images: 10", "images: 30"))  # the track's are 20
    tiny_study.add(studied)
    run_stage("data", "tiny")
    run_networks(*tiny_study.NAMES, 1)
    capfd.readouterr()
    run_study(*tiny_study.NAMES)
    printed = capfd.readouterr().out
    assert printed.count("train is kept") == printed.count("measure is kept") == 1
    assert "slower, bias off, seed 1: clean " in printed
    assert "4 of 4 are done" in printed
    resumed = tiny_study.results(studied)
    shutil.rmtree(tiny_study.RESULT)
    run_study(*tiny_study.NAMES)
    assert tiny_study.results(studied) == resumed

    published = collect_study(tiny_study.load())
    assert PublishedStudy.model_validate_json(to_json(published)) == published
    assert len({run.weights for run in published.result.runs}) == 4
    assert published.result.x == {"confidence: curve": (1.0, 0.5, 0.25)}
    evidence = pq.read_table(tiny_study.RESULT / "verdicts.parquet").to_pandas()
    for run in published.result.runs:
        seen = evidence[(evidence.cell == run.cell) & (evidence.seed == run.seed)]
        assert len(seen) == published.result.n == 30
        assert run.values["clean"] == np.mean(seen["clean: right"])
        assert run.values["PGD"] == np.mean(seen["PGD: right"])
        assert run.values["confidence: largest"] == run.values["confidence: curve"][0]
    times = tiny_study.RESULT.parent / "times/Tiny2026Linear-grid" / tiny_study.network("slower, bias off", 1) / "train.json"
    assert json.loads(times.read_text())["wall_seconds"] > 0

    tiny_study.add(studied, ("clean: 0.25", "clean: 0.5"))
    assert collect_study(tiny_study.load()).study.claims["slower, bias off"] == {"clean": 0.5}
    for change, what in (
        (("learning_rate: 0.001", "learning_rate: 0.002"), "cells"),
        (("[true, false]", "[false]"), "cells"),
        (("step_size: 0.25", "step_size: 0.2"), "measures"),
        (("[0, 1]", "[0]"), "seeds"),
        (("images: 30", "images: 29"), "images"),
    ):
        tiny_study.add(studied, change)
        message = rf"of other settings than .* has now \({what}\); run `rvb study Tiny2026Linear grid`"
        with pytest.raises(BenchmarkError, match=message):
            collect_study(tiny_study.load())


def test_a_cell_that_cannot_be_built_or_measured_stops_before_anything_is_trained(studied, capfd) -> None:
    run_stage("data", "tiny")
    for change, message in (
        (("{shrink: 2}", "{shrin: 2}"), "measure 'confidence': unknown parameter 'shrin'; did you mean 'shrink'"),
        (("training.learning_rate: 0.001", "training.objective: adversarial"), "cell 'slower, bias on': the adversarial"),
    ):  # fmt: skip
        tiny_study.add(studied, change)
        assert re.search(message, failed_study(capfd, *tiny_study.NAMES))


ONE = ("seeds: [0, 1]\ncells:\n  - {name: as it is}\n", "seeds: [0]\ncells:\n")  # seed and named cell
OPTIONAL = "  - {measure: confidence, name: dear, images: 3, needs: PACKAGE, parameters: {shrink: 2}}\n"


@pytest.mark.sweep
@pytest.mark.parametrize(("package", "version"), [("no_such_package", None), ("loud", "unknown"), ("yaml", yaml.__version__)])
def test_a_measure_that_needs_a_package_is_left_out_with_a_reason_where_it_is_not(
    studied, capfd, monkeypatch, package, version
) -> None:
    """And the evaluator imports no package that a study names."""
    Path("loud.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(Path().absolute())
    file = tiny_study.add(studied, ONE)
    file.write_text(file.read_text().replace("claims:", OPTIONAL.replace("PACKAGE", package) + "claims:"))
    published = tiny_study.run()
    result, label = published.result, "dear (first 3 images)"
    values, there = result.runs[0].values, version is not None
    assert result.environment.get(package) == version
    reason = f"the package {package} is not installed here"
    assert result.left_out == ({} if there else {label: reason})
    assert (f"{label} is left out: {reason}" in capfd.readouterr().out) != there
    assert not there or values[f"{label}: largest"] <= values["confidence: largest"]
    assert any(column.label.startswith(label) for column in table(published).columns) == there


@pytest.mark.slow
def test_a_measure_of_some_cells_is_taken_of_their_networks_alone(studied) -> None:
    """The second cell alone has a certificate, which the measure does not name."""
    file = tiny_study.add(studied, ("axes:\n  model.bias: [true, false]\n", ""))
    text = file.read_text().replace("seeds: [0, 1]", "seeds: [0]").replace("slower, bias off", "slower")
    text = text.replace("learning_rate: 0.001", "learning_rate: 0.001, certificate: {name: lipschitz}")
    file.write_text(text.replace("claims:", "  - {measure: certified, radii: [0.01], cells: [slower]}\nclaims:"))
    published = tiny_study.run()
    assert ["certified" in run.values for run in published.result.runs] == [False, True]
    (index,) = [i for i, column in enumerate(table(published).columns) if column.label == "certified"]
    assert [len(line.entries[index].values) for line in table(published).lines] == [0, 1]


def test_a_measure_that_takes_training_images_is_given_the_tracks(studied) -> None:
    edit(tiny_study.add(studied, ONE), "{shrink: 2}", "{}")
    Path("submissions/Tiny2026Linear/measures.py").write_text("""\
def confidence(model, images, labels, *, seed, training):
    return {"images": len(training[0]), "label 3": int((training[1] == 3).sum()), "mean": float(training[0].mean())}
""")
    values = tiny_study.run().result.runs[0].values
    train = load_split(Path("work/tiny/data"), "train")
    numbers = [values[f"confidence: {name}"] for name in ("images", "label 3", "mean")]
    assert numbers == pytest.approx([len(train), (train.labels == 3).sum(), train.floats().mean()], rel=1e-5)


@pytest.mark.usefixtures("studied")
def test_declared_papers_stand_where_the_board_reads_them() -> None:
    edit(Path("submissions/Tiny2026Linear/submission.yaml"), "  small:\n", "  small:\n    extension: true\n")
    inputs.write("tiny")
    ((name, paper),) = read_papers(papers_file("tiny")).items()
    declared = yaml.safe_load(Path("submissions/Tiny2026Linear/submission.yaml").read_text())
    assert (name, paper.paper.model_dump(exclude={"url"})) == ("Tiny2026Linear", declared["paper"])
    assert (paper.extensions, *paper.studies) == (("small",), "grid", "small-seeds")
    assert next(cell.name for cell in paper.studies["grid"].grid()) == "as it is, bias on"
    assert paper.studies["grid"].claims == {"slower, bias off": {"clean": 0.25}}
    board = yaml.safe_load(generate.generate()[generate.board_file("tiny")])["stages"]["leaderboard"]
    assert papers_file("tiny").as_posix() in board["deps"]


def test_a_track_without_submissions_declares_none(project, monkeypatch) -> None:
    monkeypatch.chdir(project.root)
    inputs.write("tiny")
    assert read_papers(papers_file("tiny")) == {}
