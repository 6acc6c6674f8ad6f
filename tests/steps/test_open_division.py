"""Rows of the division `open` finish, and report what was found and what could not be computed."""

from __future__ import annotations

from pathlib import Path

import command
import pyarrow.parquet as pq
import pytest
import tiny_linear_row
from searched import draws
from stages import run_stage, stage_names
from tiny_linear_row import NAMES, PICTURES, ROW, record
from tiny_project import edit

from benchmark.records.record import Record
from benchmark.runtime.errors import BenchmarkError

FOLDER = Path("submissions/Tiny2026Linear")
TRACK = (
    tiny_linear_row.TRACK.replace("images: 20", "images: 4").replace(
        "suites:\n", "suites:\n  standard:\n    - {attack: autoattack, norm: Linf, eps: 0.1}\n"
    )
    + PICTURES
    + "smoothing: {sigma: 0.1, n0: 5, n: 16, looks: 2, alpha: 0.05, seed: 0}\n"
)
METHOD = """\
import numpy as np
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        z = x.flatten(1)
        {forward}


def build(data):
    return Odd()
"""
FORWARDS = {
    "noise of torch": "return self.linear(z + 0.3 * torch.randn_like(z))",
    "noise of numpy": "return self.linear(z) + torch.from_numpy(np.random.default_rng().normal(0, 1, (len(z), 10))).float()",
    "detached": "return self.linear(z.detach())",
    "numpy inside": "return self.linear(torch.from_numpy(np.round(8 * (z.detach().numpy() if self.training else z.numpy())) / 8))",
    "rounded": "return self.linear((8 * z).round() / 8)",
    "gradient not finite": "return self.linear(z) + 0 * (z - z).sqrt().sum(1, keepdim=True)",
}


@pytest.fixture
def odd_row(request, linear_new) -> Record:
    """The Record of a row whose model is odd in the way that the parameter names."""
    Path("benchmark/tracks/tiny.yaml").write_text(TRACK)
    edit(FOLDER / "submission.yaml", "variants:", "division: open\nvariants:")
    (FOLDER / "method.py").write_text(METHOD.replace("{forward}", FORWARDS[request.param]))
    run_stage("data", "tiny")
    for name in stage_names(*NAMES):
        run_stage(name, *NAMES)
    return record()


def said(found: Record) -> str:
    return "; ".join(found.division_reasons)


@pytest.mark.slow
@pytest.mark.parametrize("odd_row", draws(["noise of torch"], ["noise of numpy"]), indirect=True)
def test_a_random_model_ends_and_what_it_once_got_wrong_is_lost(odd_row, request) -> None:
    if "torch" in request.node.name:  # drawn by the track's seed, so that all stages see one clean pass
        assert "clean passes differ" not in said(odd_row)
        assert odd_row.clean.count
    assert "the model is random" in said(odd_row)
    assert odd_row.smoothed is None  # votes that nobody can hold to anything
    assert "counts as lost" in said(odd_row)
    for attack in odd_row.attacks:
        assert attack.accuracy.count <= min(attack.remaining.values())
    assert all(result.accuracy.count <= odd_row.clean.count for result in odd_row.robust)
    verdicts = [pq.read_table(ROW / name / "evidence.parquet") for name in ("attack-standard", "attack-papers")]
    right = [(table["clean_margin"].to_numpy() > 0) for table in verdicts]
    assert odd_row.clean.count <= int((right[0] & right[1]).sum())


@pytest.mark.slow
@pytest.mark.parametrize("odd_row", draws(["detached", "rounded"], ["numpy inside"]), indirect=True)
def test_a_model_without_gradients_ends_and_says_so(odd_row, request) -> None:
    assert "no usable input gradient on 4 of 4 images" in said(odd_row)
    none_at_all = "rounded" not in request.node.name  # whose gradient is 0
    for attack in odd_row.attacks:
        assert any("the model gives no gradient" in words for words in attack.warnings) == none_at_all
    assert odd_row.reliability
    assert odd_row.reliability.failing
    shown = command.rvb("show", NAMES[1], "--track", "tiny").output
    assert all(f'warning: "{indicator.name}" fails: ' in shown for indicator in odd_row.reliability.failing)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("odd_row", ["gradient not finite"], indirect=True)
def test_gradients_that_are_not_finite_count_as_none(odd_row) -> None:
    assert "no usable input gradient" in said(odd_row)


def test_training_against_an_attack_says_that_it_needs_gradients(linear_new) -> None:
    attack = "objective: adversarial, attack: {attack: fgsm, norm: Linf, eps: 0.1}"
    edit(FOLDER / "submission.yaml", "objective: standard", attack)
    (FOLDER / "method.py").write_text(METHOD.replace("{forward}", FORWARDS["detached"]))
    run_stage("data", "tiny")
    with pytest.raises(BenchmarkError, match="needs gradients by the image: its logits do not depend on the image"):
        run_stage("train", *NAMES)
