"""What code behind the wall says without end, or at a size that nobody asked for, costs its row alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from stages import run_stage
from tiny_linear_row import METHOD, NAMES

from benchmark.loading import confining, walled_training
from benchmark.runtime.errors import BenchmarkError
from benchmark.wall.confinement import PARTS, available

pytestmark = pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the wall")

TRAINING = {
    "prints for ever": (
        "while True:\n        print('working')\n        time.sleep(0.2)",
        "does not come to an end in the time that it has",
    ),
    "prints too much": ("while True:\n        print('working')", "its code says more than 50 things"),
    "begins epochs for ever": (
        "while True:\n        CHANNEL.send({'epoch': 1, 'score': 0.5})",
        "says what makes no sense",
    ),
    "does more epochs than asked": ("CHANNEL.send({'epoch': 3, 'score': 0.5})", "says what makes no sense"),
    "is in no epoch": ("CHANNEL.send({'epoch': float('inf'), 'score': 0.5})", "says what makes no sense"),
    "scores a number too large": ("CHANNEL.send({'epoch': 1, 'score': 10**400})", "says what makes no sense"),
}
BUILD = """
def build(data):
    import sys, time
    from benchmark.wall.channel import Channel
    frame, CHANNEL = sys._getframe(), None
    while frame is not None and CHANNEL is None:
        CHANNEL, frame = next((v for v in frame.f_locals.values() if isinstance(v, Channel)), None), frame.f_back
    {body}
"""


@pytest.mark.parametrize("name", TRAINING)
def test_training_that_does_not_end_fails_with_one_line(linear_row, monkeypatch, name) -> None:
    body, words = TRAINING[name]
    if "more than" in words:
        for module in (confining, walled_training):
            monkeypatch.setattr(module, "MOST_SAID", 50)
    elif "time" in words:  # the others are found out by what they say, on a slow machine too
        monkeypatch.setattr(walled_training, "EPOCH_SECONDS", 2.0)
    text = METHOD.replace("def build(data):\n", BUILD.replace("{body}", body).lstrip())
    Path("submissions/Tiny2026Linear/method.py").write_text(text)
    with pytest.raises(BenchmarkError, match=words) as error:
        run_stage("train", *NAMES)
    assert "\n" not in str(error.value)


def test_a_gradient_is_no_larger_than_the_images(linear_row) -> None:
    code = (
        "import torch\nfrom benchmark.loading import walled\n"
        "def gradient(self, message, tensors):\n    return {'none': False}, {'gradient': torch.zeros(2**22)}\n"
        "walled._Served.gradient = gradient\n"
    )
    Path("submissions/Tiny2026Linear/method.py").write_text(code + METHOD)
    with pytest.raises(BenchmarkError, match=r"it answered with \d+ bytes, where 3072 are due at most"):
        run_stage("attack-papers", *NAMES)
