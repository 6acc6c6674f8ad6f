"""Rows whose weights were trained elsewhere: taken over, pinned, attacked, never called rebuilt."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import command
import pytest
import tiny_linear_row
import torch
import yaml
from stages import run_stage, stage_code
from tiny_linear_row import LOADS, NAMES, ROW

from benchmark.pipeline import generate
from benchmark.records import accuracy
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from leaderboard import times
from leaderboard.rank import rank


def give(project, weights: str, loads: str = LOADS) -> None:
    folder = project.root / "submissions/Tiny2026Linear"
    head, _, _ = tiny_linear_row.SUBMISSION.partition("        training:")
    (folder / "submission.yaml").write_text(f"{head}        weights: {weights}\n")
    (folder / "method.py").write_text(tiny_linear_row.METHOD + loads)


@pytest.fixture
def checkpoint(linear_row) -> str:
    """The trained row's weights as a checkpoint file; its sha256."""
    from safetensors.torch import load_file

    Path("weights").mkdir()
    torch.save(load_file(ROW / "train/model.safetensors"), "weights/given.pt")
    return hashlib.sha256(Path("weights/given.pt").read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_row_with_given_weights_is_re_evaluated_with_the_numbers_of_the_trained_one(
    linear_row, checkpoint, capsys, monkeypatch
) -> None:
    run_stage("collect", *NAMES)
    trained = tiny_linear_row.record()
    weights = (ROW / "train/model.safetensors").read_bytes()
    give(linear_row, f"{{path: weights/given.pt, sha256: {checkpoint}}}")
    run_stage("pretrained", *NAMES)
    assert (ROW / "train/model.safetensors").read_bytes() == weights
    run_stage("attack-papers", *NAMES)
    run_stage("collect", *NAMES)
    given = tiny_linear_row.record()
    assert (given.trust, trained.trust) == ("re-evaluated", "rebuilt")
    assert given.training is None
    assert times.times(Path("work/tiny"), rank([given], tracks.load("tiny"))).keys() == {given.row}
    assert "training" not in times.times(Path("work/tiny"), rank([given], tracks.load("tiny")))[given.row]
    assert given.sha256["weights as given"] == checkpoint
    assert (given.clean, given.robust) == (trained.clean, trained.robust)
    with pytest.raises(BenchmarkError, match="trained elsewhere"):
        run_stage("train", *NAMES)
    monkeypatch.setattr(accuracy, "chance_warnings", lambda *counts: [str(counts)])
    run_stage("collect", *NAMES)
    assert f"warning: ({given.clean.count}, 20, 10)" in capsys.readouterr().out


def test_its_stage_depends_on_the_file_and_on_no_training_code(linear_row, checkpoint) -> None:
    give(linear_row, "{path: weights/given.pt}")
    stages = yaml.safe_load(generate.generate()[generate.row_file("tiny", "Tiny2026Linear-small")])["stages"]
    assert stages["train"]["cmd"] == "python -m benchmark.protocol train tiny Tiny2026Linear-small"
    assert stages["train"]["outs"] == [{str(ROW / "train"): {"persist": True}}]
    assert "weights/given.pt" in stages["train"]["deps"]
    code = stage_code("pretrained", *NAMES)
    assert Path("submissions/Tiny2026Linear/method.py") in code
    assert not [path for path in code if path.parent.name == "training"]


def test_a_model_that_keeps_more_than_its_state_dict_is_refused(linear_row, checkpoint) -> None:
    scaled = LOADS.replace(
        "    return model", "    model[1].register_forward_hook(lambda m, given, out: -out)\n    return model"
    )
    give(linear_row, "{path: weights/given.pt}", scaled)
    with pytest.raises(BenchmarkError, match="with the model's state_dict gives other logits"):
        run_stage("pretrained", *NAMES)


def test_a_model_of_another_architecture_than_builds_is_refused(linear_row, checkpoint) -> None:
    wider = LOADS.replace(
        "build(data)", "__import__('torch').nn.Sequential(*build(data), __import__('torch').nn.Linear(10, 10))"
    )
    give(linear_row, "{path: weights/given.pt}", wider.replace("weights_only=True)", "weights_only=True), strict=False"))
    with pytest.raises(BenchmarkError, match=r"does not fit what `build` returns \(Unexpected key"):
        run_stage("pretrained", *NAMES)


def test_a_missing_or_exchanged_file_and_a_method_that_cannot_load(linear_row, checkpoint) -> None:
    Path("weights/junk.pt").write_bytes(b"<html>")
    torch.save({"1.weight": torch.full((10, 64), torch.nan), "1.bias": torch.zeros(10)}, "weights/nan.pt")
    for weights, loads, words in (
        ("{path: weights/nowhere.pt}", LOADS, r"its weights weights/nowhere\.pt are missing"),
        (f"{{path: weights/given.pt, sha256: {'a' * 64}}}", LOADS, f"have sha256 {checkpoint}, submission.yaml pins aaaa"),
        ("{path: weights/given.pt}", "", "must define pretrained"),
        ("{path: weights/junk.pt}", LOADS, r"method\.py, line \d+: pretrained failed: .*: it is no file of model.*\)$"),
        ("{path: weights/nan.pt}", LOADS, "logits are not finite"),
    ):
        give(linear_row, weights, loads)
        with pytest.raises(BenchmarkError, match=words):
            run_stage("pretrained", *NAMES)
        assert re.search(words, checked(ok=False))
    give(linear_row, f"{{path: weights/given.pt, sha256: {checkpoint}}}")
    assert checked(ok=True) == "weights/given.pt loads, and fits the model that `build` returns"


def checked(ok: bool) -> str:
    """Return what `rvb check` finds about the weights, by the name of the folder as a shell completes it."""
    checks = json.loads(command.rvb("check", "submissions/Tiny2026Linear/", "--json").stdout)["checks"]
    return next(check["found"] for check in checks if (check["name"], check["ok"]) == ("weights", ok))
