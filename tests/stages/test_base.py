"""What all stages share: what changes while a stage runs, and what is gone when it is collected, is no result."""

from __future__ import annotations

import pytest
from stages import run_stage
from tiny_linear_row import NAMES, ROW

from benchmark.pipeline import inputs
from benchmark.runtime.errors import BenchmarkError
from benchmark.stages import catalogue


def test_code_that_changes_while_a_stage_runs_leaves_no_result(linear_row, monkeypatch) -> None:
    """DVC would note the new code beside the old result."""
    method = linear_row.root / "submissions/Tiny2026Linear/method.py"
    stage = catalogue.find("attack-papers")
    honest = type(stage).run

    def edited(self, work):
        outcome = honest(self, work)
        method.write_text(method.read_text() + "\nCHANGED = True\n")
        return outcome

    monkeypatch.setattr(type(stage), "run", edited)
    before = (ROW / "attack-papers/stage.json").read_bytes()
    with pytest.raises(
        BenchmarkError, match="its code or settings changed while attack-papers ran; run the same command"
    ):
        run_stage("attack-papers", *NAMES)
    assert (ROW / "attack-papers/stage.json").read_bytes() == before


def test_settings_that_change_while_a_stage_runs_leave_no_result(linear_row, monkeypatch) -> None:
    track = linear_row.root / "benchmark/tracks/tiny.yaml"
    stage = catalogue.find("attack-papers")
    honest = type(stage).run

    def edited(self, work):
        track.write_text(track.read_text().replace("step_size: 0.25", "step_size: 0.2"))
        inputs.write("tiny")  # as another command would
        return honest(self, work)

    monkeypatch.setattr(type(stage), "run", edited)
    with pytest.raises(BenchmarkError, match="changed while attack-papers ran"):
        run_stage("attack-papers", *NAMES)


def test_evidence_that_is_gone_is_named_and_no_record_is_made_without_it(linear_row) -> None:
    (ROW / "attack-papers/evidence.parquet").unlink()
    with pytest.raises(BenchmarkError, match=r"attack-papers/evidence\.parquet is missing; run `rvb repro`"):
        run_stage("collect", *NAMES)
    assert not (ROW / "record").exists()


def test_a_component_that_is_no_file_is_one_line_with_the_near_miss(linear_row) -> None:
    track = linear_row.root / "benchmark/tracks/tiny.yaml"
    track.write_text(track.read_text().replace("attack: pgd", "attack: pgdd"))
    with pytest.raises(BenchmarkError, match=r"there is no benchmark/attacks/pgdd\.py.*did you mean 'pgd'"):
        run_stage("train", *NAMES)


def test_a_suffix_is_for_stages_that_have_several(linear_row) -> None:
    for name in ("train-x", "data-x"):
        with pytest.raises(BenchmarkError, match=f"unknown stage '{name}'"):
            run_stage(name, *(NAMES if name == "train-x" else NAMES[:1]))
