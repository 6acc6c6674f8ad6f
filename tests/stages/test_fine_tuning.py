"""Training that starts from another row's weights: what is taken over, what is new, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_linear_row
import torch
from safetensors.torch import load_file, save_file
from stages import run_stage
from torch import nn

from benchmark.loading.rows import load_row
from benchmark.loading.trained import start_from
from benchmark.pipeline import generate, repro
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError

TUNED = """\
  tuned:
    title: Fine-tuned
    tracks:
      tiny:
        training: {{objective: standard, epochs: 1, batch_size: 64, learning_rate: {rate}, init_from: {start}}}
"""
SMALL = "work/tiny/Tiny2026Linear-small/train/model.safetensors"
TUNED_WEIGHTS = "work/tiny/Tiny2026Linear-tuned/train/model.safetensors"


def tune(start: str, rate: str = "0.001") -> None:
    path = Path("submissions/Tiny2026Linear/submission.yaml")
    path.write_text(tiny_linear_row.SUBMISSION + TUNED.format(start=start, rate=rate))


def net(classes: int = 3, width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.Linear(width, classes))


def test_all_but_the_new_parts_are_taken_over(tmp_path) -> None:
    source, model = net(classes=3), net(classes=5)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    head = model[2].weight.clone()
    assert start_from(model, tmp_path / "w.safetensors", ("2",)) == files.sha256_file(tmp_path / "w.safetensors")
    assert torch.equal(model[1].weight, source[1].weight)
    assert torch.equal(model[1].bias, source[1].bias)
    assert torch.equal(model[2].weight, head)


@pytest.mark.parametrize(
    ("model", "new", "words"),
    [
        (net(5), (), r"2\.bias is shape \(3,\) in .* and shape \(5,\) in this model; name it in `new`"),
        (net(5), ("3",), "the model has no part '3'"),
        (net(3, 6), ("2",), r"1\.bias is shape \(4,\)"),
        (net(3)[:2], (), r"2\.bias is shape \(3,\) in .* and nothing in this model"),
        (nn.Sequential(*net(3), nn.Linear(3, 3)), (), r"3\.bias is nothing in .* and shape \(3,\)"),
        (net(5), ("2.weight",), r"2\.bias is shape"),
    ],
)
def test_what_does_not_fit_is_refused_not_skipped(tmp_path, model, new, words) -> None:
    save_file(net(3).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(BenchmarkError, match=words):
        start_from(model, tmp_path / "w.safetensors", new)


@pytest.mark.slow
def test_a_row_goes_on_from_anothers_weights_and_its_record_says_so(linear_row) -> None:
    tune("{row: Tiny2026Linear-small}", rate="1.0e-12")
    names = ("tiny", "Tiny2026Linear", "tuned")
    run_stage("train", *names)
    before, after = load_file(SMALL), load_file(TUNED_WEIGHTS)
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    tune("{row: Tiny2026Linear-small, new: ['1.bias']}", rate="1.0e-12")
    run_stage("train", *names)
    after = load_file(TUNED_WEIGHTS)
    assert torch.allclose(before["1.weight"], after["1.weight"], atol=1e-6)
    assert not torch.allclose(before["1.bias"], after["1.bias"], atol=1e-3)
    run_stage("attack-papers", *names)
    run_stage("reliability", *names)
    run_stage("collect", *names)
    record = json.loads(Path("work/tiny/Tiny2026Linear-tuned/record/record.json").read_text())
    assert record["training"]["init_sha256"] == files.sha256_file(Path(SMALL))
    assert record["trust"] == "rebuilt"
    stage = json.loads(generate.generate()[generate.row_file("tiny", "Tiny2026Linear-tuned")])["stages"]["train"]
    assert "work/tiny/Tiny2026Linear-small/train" in stage["deps"]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("{row: Tiny2026Linear-smal}", "init_from: Tiny2026Linear has no variant 'smal'; did you mean 'small'"),
        ("{row: Tiny2026Liner-small}", "init_from: unknown submission 'Tiny2026Liner'; did you mean 'Tiny2026Linear'"),
        ("{row: Tiny2026Linear-small, track: tine}", "init_from: unknown track 'tine'; did you mean 'tiny'"),
        ("{row: Tiny2026Linear-small, track: digits}", "init_from: .* does not enter track 'digits'"),
        ("{row: Tiny2026Linear-tuned}", "starts from itself in the end"),
        ("{row: Tiny2026Linear}", "init_from.row: String should match"),
    ],
)
def test_a_source_that_is_none_is_refused_with_its_place(linear_row, start, words) -> None:
    tune(start)
    with pytest.raises(BenchmarkError, match=words):
        load_row("tiny", "Tiny2026Linear-tuned")


def test_rvb_repro_runs_fine_tuned_rows_after_the_others_and_with_what_they_depend_on(linear_row, monkeypatch) -> None:
    tune("{row: Tiny2026Linear-small}")
    generate.write()
    rows = {str(generate.row_file("tiny", f"Tiny2026Linear-{v}")): v for v in ("small", "tuned")}
    monkeypatch.setattr(repro, "_changed_files", lambda *_: set(rows))
    ran: list[str] = []
    monkeypatch.setattr(repro, "_dvc", lambda arguments, *_: ran.append(" ".join(arguments)))
    monkeypatch.setattr(repro.subprocess, "run", lambda *_, **__: None)
    repro.repro("tiny", 2, lambda _: None)
    small, tuned = rows
    assert ran == [f"--wait-for-lock repro -s {small}", f"repro {tuned}", "repro pipelines/tiny/dvc.yaml"]
