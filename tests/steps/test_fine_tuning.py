"""Training that starts from another row: its Record, its place in the pipeline, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_linear_row
import torch
import yaml
from safetensors.torch import load_file
from stages import run_stage
from tiny_project import append

from benchmark import protocol
from benchmark.pipeline import generate, repro
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.rows import load_row

TUNED = """\
  tuned:
    title: Fine-tuned
    tracks:
      tiny:
        training: {{objective: standard, epochs: 1, batch_size: 64, learning_rate: {rate}, init_from: {start}}}
"""
SETTINGS = Path("submissions/Tiny2026Linear/submission.yaml")
SMALL = "work/tiny/Tiny2026Linear-small/train/model.safetensors"
TUNED_WEIGHTS = "work/tiny/Tiny2026Linear-tuned/train/model.safetensors"


def tune(start: str, rate: str = "0.001") -> None:
    SETTINGS.write_text(tiny_linear_row.SUBMISSION + TUNED.format(start=start, rate=rate))


@pytest.mark.slow
def test_a_row_goes_on_from_anothers_weights_and_its_record_says_so(linear_row) -> None:
    tune("{row: Tiny2026Linear-small}", rate="1.0e-12")
    names = ("tiny", "Tiny2026Linear-tuned")
    run_stage("train", *names)
    before, after = load_file(SMALL), load_file(TUNED_WEIGHTS)
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    tune("{row: Tiny2026Linear-small, new: ['1.bias']}", rate="1.0e-12")
    run_stage("train", *names)
    after = load_file(TUNED_WEIGHTS)
    assert torch.allclose(before["1.weight"], after["1.weight"], atol=1e-6)
    assert not torch.allclose(before["1.bias"], after["1.bias"], atol=1e-3)
    for name in ("attack-papers", "reliability", "attention", "collect"):
        run_stage(name, *names)
    record = json.loads(Path("work/tiny/Tiny2026Linear-tuned/record/record.json").read_text())
    assert record["training"]["init_sha256"] == files.sha256_file(Path(SMALL))
    assert record["trust"] == "rebuilt"
    stage = yaml.safe_load(generate.generate()[generate.row_file("tiny", "Tiny2026Linear-tuned")])["stages"]["train"]
    assert SMALL in stage["deps"]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("{row: Tiny2026Linear-smal}", "init_from: Tiny2026Linear has no variant 'smal'; did you mean 'small'"),
        ("{row: Tiny2026Liner-small}", "init_from: unknown submission 'Tiny2026Liner'; did you mean 'Tiny2026Linear'"),
        ("{row: Tiny2026Linear-small, track: tine}", "init_from: unknown track 'tine'; did you mean 'tiny'"),
        ("{row: Tiny2026Linear-small, track: digits}", "init_from: .* it is on tiny: give `track: tiny`"),
        ("{row: Tiny2026Linear-tuned}", "starts from itself in the end"),
        ("{row: Tiny2026Linear}", "init_from.row: String should match"),
    ],
)
def test_a_source_that_is_none_is_refused_with_its_place(linear_row, start, words) -> None:
    tune(start)
    with pytest.raises(BenchmarkError, match=words):
        load_row("tiny", "Tiny2026Linear-tuned")


@pytest.mark.slow
def test_rvb_repro_runs_fine_tuned_rows_after_what_they_depend_on(linear_row, monkeypatch) -> None:
    tune("{row: Tiny2026Linear-small}")
    generate.write()
    small, tuned = (str(generate.row_file("tiny", f"Tiny2026Linear-{v}")) for v in ("small", "tuned"))
    monkeypatch.setattr(repro.dvc, "changed_stages", lambda *_: {f"{small}:train"})
    ran: list[str] = []
    monkeypatch.setattr(repro.dvc, "run", lambda arguments, *_, **__: ran.append(" ".join(arguments)))
    monkeypatch.setattr(repro.subprocess, "run", lambda *_, **__: None)
    repro.repro("tiny", 2, lambda _: None)
    wait = "--wait-for-lock repro -s {0}:train {0}:evaluate"
    data, board = "pipelines/tiny/_data/dvc.yaml", "pipelines/tiny/dvc.yaml"
    assert ran == [f"repro {data}", wait.format(small), wait.format(tuned), f"repro {board}"]
    ran.clear()
    monkeypatch.setattr(repro.dvc, "changed_stages", lambda *_: {f"{small}:evaluate"})
    repro.repro("tiny", 2, lambda _: None)
    assert ran[1:-1] == [f"--wait-for-lock repro -s {small}:evaluate"], "what did not change is left alone"
    ran.clear()
    monkeypatch.setattr(repro.dvc, "changed_stages", lambda *_: {f"{small}:train"})
    repro.repro("tiny", 2, lambda _: None, ["Tiny2026Linear-tuned"])
    assert ran[1:-1] == [f"--wait-for-lock repro -s {small}:train"], "a row is trained for another, and not evaluated"
    assert ran[-1] == wait.format(tuned)


def build(rows, jobs: int) -> dict[str, str]:
    targets = {row.name: repro.stages(row) for row in rows}
    return repro.build(rows, targets, jobs, lambda _: None, repro.here(jobs, lambda _: None))


def test_rows_that_start_from_a_failed_one_are_not_begun_and_all_are_named(linear_row, monkeypatch) -> None:
    tune("{row: Tiny2026Linear-small}")
    again = TUNED.format(start="{row: Tiny2026Linear-tuned}", rate="0.001").replace("  tuned:", "  again:", 1)
    append(SETTINGS, again)
    rows = [load_row("tiny", f"Tiny2026Linear-{variant}") for variant in ("small", "tuned", "again")]

    def run(arguments, *_) -> None:
        assert "Linear-small" in arguments[-1], "others wait for it"
        raise BenchmarkError("the disk is full")

    monkeypatch.setattr(repro.dvc, "run", run)
    failed = build(rows, 2)
    waits = "starts from the weights of a row that failed"
    assert failed == dict(zip((row.name for row in rows), ("the disk is full", waits, waits), strict=True))


def test_a_row_that_becomes_ready_later_goes_before_shorter_ones(linear_row, monkeypatch) -> None:
    tune("{row: Tiny2026Linear-small}")
    training = "training: {objective: standard, epochs: 1, batch_size: 64, learning_rate: 0.01}"
    for name in ("one", "two"):
        append(SETTINGS, f"  {name}:\n    title: Other\n    tracks:\n      tiny: {{{training}}}\n")
    rows = [load_row("tiny", f"Tiny2026Linear-{variant}") for variant in ("one", "two", "small", "tuned")]
    for row, seconds in zip(rows, (1.0, 2.0, 3.0, 4.0), strict=True):
        for step in protocol.plan(row):
            files.write_json(row.folder / "times" / f"{step.name}.json", {"wall_seconds": seconds})
    ran: list[str] = []
    monkeypatch.setattr(repro.dvc, "run", lambda arguments, name, *_: ran.append(name))
    assert build(rows, 1) == {}
    assert ran == [f"tiny-Tiny2026Linear-{variant}" for variant in ("small", "tuned", "two", "one")]


def test_a_row_may_start_from_the_row_of_its_name_on_another_track(linear_row, monkeypatch) -> None:
    """Which is trained beforehand, by `prepare`."""
    Path("benchmark/tracks/other.yaml").write_text(Path("benchmark/tracks/tiny.yaml").read_text())
    tune("{row: Tiny2026Linear-tuned, track: other}")
    own = "      other: {training: {objective: standard, epochs: 1, batch_size: 64, learning_rate: 0.01}}\n"
    append(SETTINGS, own)
    row, ran = load_row("tiny", "Tiny2026Linear-tuned"), []
    monkeypatch.setattr(repro.dvc, "run", lambda arguments, *_, **__: ran.append(" ".join(arguments)))
    repro.prepare("tiny", [row.source], lambda _: None)
    assert build([row], 1) == {}
    data, stages = "repro pipelines/tiny/_data/dvc.yaml", " ".join(repro.stages(row))
    source = "pipelines/other/Tiny2026Linear-tuned/dvc.yaml:train"
    assert ran == [f"repro {source}", data, f"--wait-for-lock repro -s {stages}"]
