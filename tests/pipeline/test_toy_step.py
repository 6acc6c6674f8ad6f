"""A new kind of step is one file and a line of protocol.py: it runs, survives a kill, and reaches the Record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from stages import wait_for
from tiny_project import edit

pytestmark = pytest.mark.slow

ROW = "Tiny2026Net-small"
DVC_FILE = f"pipelines/tiny/{ROW}/dvc.yaml"
BRIGHTNESS = '''"""Step `brightness`: how bright each evaluation image is."""

from __future__ import annotations

import time

from benchmark.runtime import files
from benchmark.steps.base import Outcome
from benchmark.steps.evaluation import EvaluationStep


class Brightness(EvaluationStep):
    @property
    def rules(self):
        return {"scale": 2.0}

    def evaluate(self, work, subject):
        import torch

        done = sorted(work.scratch.glob("image-*"))
        for image in range(len(done), len(subject.images)):
            value = work.settings["scale"] * float(subject.images[image].mean())
            files.write(work.scratch / f"image-{image}", str(value))
            work.say(f"image {image}")
            time.sleep(0.2)
        brightness = torch.tensor([float((work.scratch / f"image-{i}").read_text()) for i in range(len(subject.images))])
        return Outcome({"brightness": brightness}, {"brightness": {"mean": float(brightness.mean())}}, summary="done")


step = Brightness
'''


@pytest.mark.long
def test_one_file_and_a_line_runs_survives_a_kill_and_reaches_the_record(built) -> None:
    (built.root / "benchmark/steps/brightness.py").write_text(BRIGHTNESS)
    edit(
        built.root / "benchmark/protocol.py",
        '    "attention": "evaluate",',
        '    "brightness": "evaluate",\n    "attention": "evaluate",',
    )
    built.rvb("pipeline")
    built.run("dvc", "repro", "-s", "pipelines/tiny/_data/dvc.yaml")
    scratch = built.root / "work/scratch/tiny" / ROW / "brightness"
    command = [sys.executable, "-m", "dvc", "repro", "-s", f"{DVC_FILE}:evaluate"]
    dvc = subprocess.Popen(
        command, cwd=built.root, env=built.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: len([*scratch.glob("*/image-*")]) >= 2, "second image")
    os.kill(int((scratch / "lock").read_text()), signal.SIGKILL)
    assert dvc.wait() != 0
    before = len([*scratch.glob("*/image-*")])
    output = built.rvb("repro", "--track", "tiny").stdout
    assert f"{ROW}: image {before - 1}\n" not in output, "what was done was done again"
    assert f"{ROW}: image 7" in output
    record = json.loads((built.root / "work/tiny" / ROW / "record/record.json").read_text())
    assert record["measured"]["brightness"]["mean"] > 0
    assert "code brightness" in record["sha256"]
    page = built.root / f"work/tiny/site/models/{ROW}"
    assert "brightness" in (page / "evidence.csv").read_text().splitlines()[0]
    assert "Also measured" in (page / "index.html").read_text()
    assert "Running stage" not in built.run("dvc", "repro", "-s", DVC_FILE).stdout
