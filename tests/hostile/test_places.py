"""What training, studies and given weights do with files that they may touch, and messages without end.

Nothing of it reaches another row or a Record; it costs their own row alone.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from stages import run_stage, run_study
from tiny_linear_row import METHOD, NAMES, OWN_CLASS, ROW, SUBMISSION

from benchmark.records.training import Preparation, TrainingResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox import submitted, training
from benchmark.sandbox.confinement import PARTS, available
from benchmark.sandbox.training import fit_sandboxed
from benchmark.specs.rows import load_row
from benchmark.specs.run_settings import run_settings

pytestmark = pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the sandbox")

OTHER = Path("work/tiny/Other-small/attack-papers")
# finds the folders that its process may write to, in the frames above it, and runs `code` in each
EVERYWHERE = """
def build(data):
    import os, pathlib, sys
    frame = sys._getframe()
    while frame is not None:
        for place in [v for v in frame.f_locals.values() if isinstance(v, pathlib.Path) and not v.suffix]:
            for place in (place.absolute(), place.absolute().parent):
                try:
{code}
                except OSError:
                    pass
        frame = frame.f_back
"""


def trained(code: str) -> None:
    """Train the row with a `build` that runs this code, with another row's evidence beside it."""
    OTHER.mkdir(parents=True)
    (OTHER / "evidence.parquet").write_bytes(b"true verdicts")
    indented = "".join(f"                    {line}\n" for line in code.splitlines())
    text = METHOD.replace("def build(data):\n", EVERYWHERE.replace("{code}\n", indented).lstrip())
    Path("submissions/Tiny2026Linear/method.py").write_text(text)
    run_stage("train", *NAMES)


PLANTED = {
    "links to another row's evidence": (
        "os.symlink(other / 'evidence.parquet', place / f'.seconds.json.{os.getppid()}')\n"
        "os.symlink(other / 'evidence.parquet', place / 'seconds.json')\n"
    ),
    "a Record in the outputs": (
        "out = place / 'out/record'\nout.mkdir(parents=True, exist_ok=True)\n(out / 'record.json').write_text('{}')\n"
    ),
    "a link to another row's folder for the outputs": "os.symlink(other, place / 'out')\n",
}


@pytest.mark.parametrize("code", PLANTED.values(), ids=PLANTED)
def test_what_training_plants_is_not_published_and_leads_to_no_other_row(linear_row, code) -> None:
    """`collect` publishes the folder `record` of a step's outputs."""
    trained(f"other = pathlib.Path({str(OTHER.absolute())!r})\n{code}")
    assert [path.name for path in OTHER.iterdir()] == ["evidence.parquet"]
    assert (OTHER / "evidence.parquet").read_bytes() == b"true verdicts"
    assert not (ROW / "train").is_symlink()
    assert {path.name for path in (ROW / "train").iterdir()} == {
        "fields.json", "history.json", "model.safetensors", "stage.json"
    }  # fmt: skip


def test_a_submission_is_given_no_file_but_weights_nor_by_a_link(linear_row) -> None:
    test = "work/tiny/data/test.safetensors"
    for path in (test, "params.yaml", "/etc/passwd", "weights/../params.yaml", "~/.ssh/id", "weights"):
        _ask_for(path)
        with pytest.raises(BenchmarkError, match="lies neither in weights/ nor in the submission's own folder"):
            run_stage("pretrained", *NAMES)
    own, other = (Path("submissions", name, "given.pt") for name in ("Tiny2026Linear", "Other"))
    other.parent.mkdir()
    other.touch()
    _ask_for(str(other))
    with pytest.raises(BenchmarkError, match="lie outside submissions/Tiny2026Linear"):
        run_stage("pretrained", *NAMES)
    own.symlink_to(Path("work/tiny/data/test.safetensors").absolute())
    _ask_for(str(own))
    with pytest.raises(BenchmarkError, match=r"given.pt is a link that leads out of its submission"):
        run_stage("pretrained", *NAMES)


def _ask_for(path: str) -> None:
    asked = yaml.safe_load(SUBMISSION)
    asked["variants"]["small"]["tracks"]["tiny"] = {"weights": {"path": path}}
    Path("submissions/Tiny2026Linear/submission.yaml").write_text(yaml.safe_dump(asked))


STUDY = """\
title: A study
source: Table 1
track: tiny
variant: small
seeds: [0]
measures: [{measure: clean}, {measure: mine}]
"""
FORGED = "def mine(model, images, labels, *, seed):\n    return {'mine': 0.5}\n"


@pytest.mark.sweep
@pytest.mark.parametrize("forged", ["'clean': 1.0", "'mine: x': float('nan')"])
def test_a_measure_of_a_study_answers_for_itself_alone(linear_row, capfd, forged) -> None:
    """Its process answers, past the checks of what a measure returns, for the evaluator's own measure."""
    folder = Path("submissions/Tiny2026Linear")
    (folder / "studies").mkdir()
    (folder / "studies/one.yaml").write_text(STUDY)
    hook = (
        "import benchmark.studies.measuring as measures\nhonest = measures.own\n"
        "def lying(*given):\n    measured = honest(*given)\n"
        f"    measured.values.update({{{forged}}})\n    return measured\nmeasures.own = lying\n"
    )
    (folder / "measures.py").write_text(hook + FORGED)
    with pytest.raises(SystemExit):
        run_study("tiny", "Tiny2026Linear-one")
    assert re.search("the measure 'mine' (returned malformed output|answers for other measures)", capfd.readouterr().err)
    assert not Path("work/tiny/studies/Tiny2026Linear-one/study.json").exists()


def test_a_link_out_of_a_submission_is_refused_before_it_is_read(linear_row) -> None:
    for name in ("data.bin", "inner/data.bin", "submission.yaml"):
        place = Path("submissions/Tiny2026Linear", name)
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to("/dev/zero")
        with pytest.raises(BenchmarkError, match=f"{name} is a link that leads out of its submission"):
            run_stage("attack-papers", *NAMES)
        place.unlink()
        place.write_text(SUBMISSION if name == "submission.yaml" else "")


# the messages of a training process, and words of the refusal
TRAINING = {
    "prints for ever": ([{"say": "working"}], "does not end in the time that it has"),
    "prints too much": ([{"say": "working"}], "its code sends more than 50 messages or printed lines"),
    "begins epochs for ever": ([{"epoch": 1, "score": 0.5}], "returned malformed output"),
    "does more epochs than asked": ([{"epoch": 3, "score": 0.5}], "returned malformed output"),
    "is in no epoch": ([{"epoch": float("inf"), "score": 0.5}], "returned malformed output"),
    "scores a number too large": ([{"epoch": 1, "score": 10**400}], "returned malformed output"),
}


@pytest.mark.parametrize("name", TRAINING)
def test_training_that_does_not_end_fails_with_one_line(linear_row, monkeypatch, tmp_path, name) -> None:
    said, words = TRAINING[name]

    def train(*given) -> None:
        while True:
            for message in said:
                given[-1].send(message)
            if "time" in words:
                time.sleep(0.1)

    monkeypatch.setattr(training, "_train", train)
    if "more than" in words:
        for module in (submitted, training):
            monkeypatch.setattr(module, "MOST_SAID", 50)
    elif "time" in words:  # the others are found out by what they say, on a slow machine too
        monkeypatch.setattr(training, "EPOCH_SECONDS", 1.0)
    row, heard = load_row(*NAMES), []
    with pytest.raises(BenchmarkError, match=words):
        fit_sandboxed(row, run_settings().train, tmp_path, lambda *epoch: heard.append(epoch), lambda _: None)
    assert heard == ([(1, 0.5)] if name == "begins epochs for ever" else [])


DONE = {"epoch": 1, "best_epoch": 1, "best_score": 0.5, "losses": [1.0], "scores": [0.5], "watched": []}
RESULT = {"epochs": 1, "selected_epoch": 1, "selected_by": "accuracy " * 100, "validation_score": 0.5}
HISTORY = [{"name": "scaling", "history": {"loss": 0.5}}]


def _report(monkeypatch, folder: Path, done: dict, result: dict) -> TrainingResult:
    """Return what the evaluator makes of a report of training a row without preparations."""
    message = {"done": DONE | done, "result": RESULT | result, "memory": 0}
    monkeypatch.setattr(training, "_train", lambda *given: given[-1].send(message))
    return fit_sandboxed(load_row(*NAMES), run_settings().train, folder, lambda *_: None, lambda _: None)[2]


@pytest.mark.parametrize(
    ("done", "result"),
    [
        ({"losses": [math.nan]}, {}),
        ({"scores": [math.inf]}, {}),
        ({"watched": [[0.5, math.nan]]}, {}),
        ({}, {"validation_score": math.nan}),
        ({}, {"prepared": HISTORY}),
        ({}, {"prepared": [{"name": "scaling", "history": {"loss": math.nan}}]}),
    ],
)
def test_a_forged_report_of_training_is_refused_in_one_line(linear_row, monkeypatch, tmp_path, done, result) -> None:
    with pytest.raises(BenchmarkError, match=r"^[^\n]+ the training process returned malformed output [^\n]+$"):
        _report(monkeypatch, tmp_path, done, result)


def test_the_evaluator_fills_in_the_weights_that_training_started_from(linear_row, monkeypatch, tmp_path) -> None:
    told = _report(monkeypatch, tmp_path, {}, {"init_sha256": "0" * 64, "seed": 7})
    assert (told.init_sha256, told.seed, len(told.selected_by)) == (None, run_settings().train.seed, 200)


@pytest.mark.parametrize("history", [{"x": math.nan}, {"x": "\x1b[2J"}, {"\u202ex": 1}, {"x": ["y" * 2**20]}])
def test_the_history_of_a_preparation_is_short_printable_and_finite(history) -> None:
    assert Preparation(name="scaling", history={"x": [1, {"y": "z"}]})
    with pytest.raises(ValidationError):
        Preparation(name="scaling", history=history)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("2**22", r"it answered with \d+ bytes, where 3072 are due at most"),
        ("6, 1, 4, 16", r"returned malformed output: a gradient \(6, 1, 4, 16\) of \(6, 1, 8, 8\)"),
    ],
)
def test_a_gradient_has_the_shape_of_the_images(linear_row, shape, words) -> None:
    code = (
        "import torch\nfrom benchmark.sandbox import model\n"
        f"model._Served.gradient = lambda *_, **__: ({{'none': False}}, {{'gradient': torch.zeros({shape})}})\n"
    )
    Path("submissions/Tiny2026Linear/method.py").write_text(code + OWN_CLASS)
    with pytest.raises(BenchmarkError, match=words):
        run_stage("attack-papers", *NAMES)
