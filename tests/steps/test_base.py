"""All steps: changes while a step runs, and missing files, leave no result."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from stages import run_stage, stage_names
from tiny_linear_row import NAMES, ROW
from tiny_project import append, edit

from benchmark import protocol
from benchmark.pipeline import inputs
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.rows import load_row
from benchmark.steps.base import stands


@pytest.mark.sweep
@pytest.mark.parametrize("changed", ["code", "settings"])
def test_what_changes_while_a_stage_runs_leaves_no_result(linear_row, monkeypatch, changed) -> None:
    """DVC would note the new code or settings beside the old result."""
    stage = protocol.load("attack")
    honest = stage.run

    def edited(self, work):
        outcome = honest(self, work)
        if changed == "code":
            edit(METHOD_FILE, "return nn", "CHANGED = True\n    return nn")
        else:
            edit("benchmark/tracks/tiny.yaml", "step_size: 0.25", "step_size: 0.2")
            inputs.write("tiny")  # as another command would
        return outcome

    monkeypatch.setattr(stage, "run", edited)
    before = (ROW / "attack-papers/stage.json").read_bytes()
    words = "its code or settings changed while attack-papers ran; run the same command"
    with pytest.raises(BenchmarkError, match=words):
        run_stage("attack-papers", *NAMES)
    assert (ROW / "attack-papers/stage.json").read_bytes() == before


@pytest.mark.parametrize("lost", ["evidence.parquet", "fields.json", "stage.json"])
def test_a_file_that_a_step_reads_and_that_is_gone_is_named(linear_row, lost) -> None:
    (ROW / "attack-papers" / lost).unlink()
    for name in ("reliability", "collect"):
        with pytest.raises(BenchmarkError, match=rf"attack-papers/{lost} is missing; run `rvb repro`"):
            run_stage(name, *NAMES)
    assert not (ROW / "record").exists()


def test_data_that_changed_are_refused_with_both_hashes_where_they_are_read(linear_row) -> None:
    path = linear_row.root / "work/tiny/data/test.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    run_stage("train", *NAMES)  # does not read the test split
    with pytest.raises(BenchmarkError, match=r"changed since .*[0-9a-f]{64}.*[0-9a-f]{64}"):
        run_stage("attack-papers", *NAMES)


def test_every_stage_run_before_what_it_reads_is_one_line(linear_new) -> None:
    for built in ("", "data"):
        if built:
            run_stage(built, "tiny")
        for name in stage_names(*NAMES)[bool(built) :]:
            with pytest.raises(BenchmarkError, match=r"work/tiny/\S+ is missing; run `rvb repro` to"):
                run_stage(name, *NAMES)


def ended_with(name: str) -> str:
    """What `rvb step` prints as it ends with an error."""
    with pytest.raises(SystemExit) as ended:
        errors.run(lambda: run_stage(name, *NAMES))
    assert "\n" not in str(ended.value.code)
    return str(ended.value.code)


METHOD_FILE = "submissions/Tiny2026Linear/method.py"
BUILD = "import sys\nimport torch\nfrom torch import nn\n\n\ndef build(data):\n    return Odd()\n\n\n"
FORWARD = "class Odd(nn.Sequential):\n    def __init__(self):\n        super().__init__(nn.Flatten(), nn.Linear(64, 10))\n\n    def forward(self, x):\n"
WHOLE = "return super().forward(x)"
EXITS = f"{WHOLE} if len(x) == 2 or not x.requires_grad else sys.exit(0)"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("stage", "forward", "words"),
    [
        ("train", f"{WHOLE} if len(x) <= 2 else sys.exit(0)", "method.py, line 15: it calls sys.exit(0)"),
        ("train", f"{WHOLE} if len(x) <= 2 else x.nothing", "method.py, line 15: AttributeError: "),
        ("train", f"{WHOLE}[:2]", "the model gives (2, 10) for 64 images; logits of shape (64, "),
        ("attack-papers", EXITS, "line 15: it calls sys.exit(0)"),
        ("attack-papers", f"{WHOLE}[: 2 if len(x) == 8 else None]", "the model gives (2, 10) for 8 images"),
    ],
)
def test_what_a_methods_code_does_wrong_ends_a_stage_with_one_line(linear_row, stage, forward, words) -> None:
    Path(METHOD_FILE).write_text(f"{BUILD}{FORWARD}        {forward}\n")
    assert words in ended_with(stage)


def test_a_place_where_this_user_may_not_write_is_one_line(linear_row, monkeypatch) -> None:
    def refused(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    monkeypatch.setattr(inputs, "write", lambda _: None)
    words = "error: permission denied at work/scratch/tiny/Tiny2026Linear-small/attack-papers; let this user"
    assert words in ended_with("attack-papers")


def test_components_and_steps_that_do_not_exist_are_one_line_with_the_near_miss(linear_row) -> None:
    """A suffix is for steps that have several."""
    for name, words in (("train-x", "'train-x'"), ("data-x", "'data-x'"), ("trian", "'trian'; did you mean 'train'")):
        with pytest.raises(BenchmarkError, match=f"unknown step {words}"):
            run_stage(name, *(NAMES[:1] if name == "data-x" else NAMES))
    edit("benchmark/tracks/tiny.yaml", "attack: pgd", "attack: pgdd")
    with pytest.raises(BenchmarkError, match=r"there is no benchmark/attacks/pgdd\.py.*did you mean 'pgd'"):
        run_stage("train", *NAMES)


@pytest.mark.slow
def test_a_result_of_the_same_key_is_kept_and_one_that_was_touched_is_not(linear_row, capsys) -> None:
    folder = ROW / "attack-papers"
    inputs.write("tiny")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def ran() -> bool:
        protocol.planned(load_row(*NAMES), "attack-papers").execute()
        return "attack-papers is kept" not in capsys.readouterr().out

    assert not ran()
    (folder / "evidence.parquet").write_bytes(b"other")
    assert ran()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (ROW / "train/model.safetensors").write_bytes((ROW / "train/model.safetensors").read_bytes() + b" ")
    key = files.read_json(folder / "stage.json")["key"]
    assert stands(folder, key)
    identity = protocol.planned(load_row(*NAMES), "attack-papers").identity()
    assert key != scratch.key(identity), "other weights, another key"


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dvc", "dvc_data", "dvc_objects", "robustbench", "git"):
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
from benchmark.runtime import arithmetic
arithmetic.fix("portable")
from benchmark.pipeline import inputs
from benchmark.protocol import run
inputs.write("tiny")
run("data", "tiny")
for stage in ("train", "evaluate"):
    run(stage, "tiny", "Tiny2026Linear-small")
"""


@pytest.mark.slow
def test_a_row_is_prepared_trained_and_certified_without_dvc_and_robustbench(linear_new) -> None:
    track = "benchmark/tracks/tiny.yaml"
    edit(track, "suites:\n", "suites:\n  standard:\n    - {attack: autoattack, norm: Linf, eps: 0.15}\n")
    edit(track, "certified_radii: []", "certified_radii: [0.1]")
    edit(track, "images: 20", "images: 6")
    append("submissions/Tiny2026Linear/submission.yaml", "        certificate: {name: lipschitz}\n")
    command = [sys.executable, "-c", BLOCKED]
    ended = subprocess.run(command, env=linear_new.environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (ROW / "certify/evidence.parquet").exists()
