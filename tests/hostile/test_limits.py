"""What code behind the wall says without end, or at a size that nobody asked for, costs its row alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from stages import run_stage
from tiny_linear_row import METHOD, NAMES

from benchmark.loading.rows import load_row
from benchmark.loading.run_settings import run_settings
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox import submitted, training
from benchmark.sandbox.confinement import PARTS, available
from benchmark.sandbox.training import fit_sandboxed

pytestmark = pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the sandbox")

# what the process of a training says, and what the judge says of that
TRAINING = {
    "prints for ever": ([{"say": "working"}], "does not come to an end in the time that it has"),
    "prints too much": ([{"say": "working"}], "its code says more than 50 things"),
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
    with pytest.raises(BenchmarkError, match=words) as error:
        fit_sandboxed(row, run_settings().train, tmp_path, lambda *epoch: heard.append(epoch), lambda _: None)
    assert "\n" not in str(error.value)
    assert heard == ([(1, 0.5)] if name == "begins epochs for ever" else [])


def test_a_gradient_is_no_larger_than_the_images(linear_row) -> None:
    code = (
        "import torch\nfrom benchmark.sandbox import model\n"
        "model._Served.gradient = lambda *_, **__: ({'none': False}, {'gradient': torch.zeros(2**22)})\n"
    )
    Path("submissions/Tiny2026Linear/method.py").write_text(code + METHOD)
    with pytest.raises(BenchmarkError, match=r"it answered with \d+ bytes, where 3072 are due at most"):
        run_stage("attack-papers", *NAMES)
