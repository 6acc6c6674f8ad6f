"""`rvb attack` and `rvb audit`: suites that are no stage of the pipeline, and certificates that were tampered with."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from stages import run_stage, stage_code
from tiny_linear_row import CONTRIBUTED, EXACT, NAMES, ROW
from tiny_project import edit

from benchmark.commands.attack import audit_row, certified_rows, try_suite
from benchmark.pipeline import generate
from benchmark.records.record import headline_names
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import rows, tracks


@pytest.mark.slow
def test_a_development_suite_is_tried_and_leaves_no_trace(linear_row, capsys) -> None:
    edit("params.yaml", "wall: full", "wall: none")
    before = {path: path.read_bytes() for path in Path("work/tiny").rglob("*") if path.is_file()}
    n, clean, (result,) = try_suite("tiny", NAMES[1], "quick")
    assert {path: path.read_bytes() for path in Path("work/tiny").rglob("*") if path.is_file()} == before
    assert 0 < result.accuracy.count < clean <= n == 20
    assert [*result.remaining] == ["apgd-ce", "apgd-t"]
    assert result.remaining["apgd-t"] == result.accuracy.count
    assert any("attacking" in line and "apgd-ce" in line for line in capsys.readouterr().out.splitlines())
    linear_row.bring("Tiny2026Linear", "contributed", EXACT, CONTRIBUTED)
    _, clean, (result,) = try_suite("tiny", NAMES[1], "adaptive")
    assert (result.id, result.accuracy.count < clean) == ("contributed-L2-0.5", True)
    assert not (ROW / "attack-adaptive").exists()


def test_a_suite_that_is_unknown_or_not_to_be_published_is_refused(linear_row) -> None:
    for suite, near in (("quik", "quick"), ("paper", "papers")):
        with pytest.raises(BenchmarkError, match=rf"no suite '{suite}'; did you mean '{near}'"):
            try_suite("tiny", NAMES[1], suite)
    with pytest.raises(BenchmarkError, match="quick is for development and never published"):
        run_stage("attack-quick", *NAMES)
    with pytest.raises(BenchmarkError, match="declares no adaptive attack"):
        run_stage("attack-adaptive", *NAMES)
    (ROW / "train/model.safetensors").unlink()
    with pytest.raises(BenchmarkError, match=r"model\.safetensors is missing"):
        try_suite("tiny", NAMES[1], "quick")


def test_development_suites_are_no_rule_of_the_comparison(linear_row) -> None:
    """With and without them: the same stages, columns and code; only files that name the track's file by hash see it."""
    path = Path("benchmark/tracks/tiny.yaml")
    before, track, code = generate.generate(), tracks.load("tiny"), stage_code("attack-papers", *NAMES)
    path.write_text(yaml.safe_dump({k: v for k, v in yaml.safe_load(path.read_text()).items() if k != "development"}))
    without = tracks.load("tiny")
    assert track.development != without.development == {}
    assert generate.generate() == before
    assert (without.threats, headline_names(without)) == (track.threats, headline_names(track))
    assert stage_code("attack-papers", *NAMES) == code
    for stages in (yaml.safe_load(text).get("stages", {}) for name, text in before.items() if name.name == "dvc.yaml"):
        assert "development" not in json.dumps(stages)
        assert "quick" not in json.dumps(stages)


def test_rows_to_audit_are_those_with_a_certificate_that_is_built(tmp_path, monkeypatch) -> None:
    certified = [f"Havens2024LoFAST-{variant}" for variant in ("as_published", "mean_pool", "large_radius")]
    assert certified_rows("digits", "Havens2024LoFAST") == certified
    assert certified_rows("digits", "Havens2024LoFAST-mean_pool") == ["Havens2024LoFAST-mean_pool"]
    for name in ("Wong2020Fast", "Wong2020Fast-linf"):
        with pytest.raises(BenchmarkError, match=rf"{name} declares no certificate on digits"):
            certified_rows("digits", name)
    monkeypatch.setattr(rows, "WORK", tmp_path)
    with pytest.raises(BenchmarkError, match=r"certify/evidence\.parquet is missing"):
        audit_row("digits", "Havens2024LoFAST-mean_pool", None, 1, 0)


@pytest.mark.slow
@pytest.mark.long
def test_rvb_audit_passes_what_the_pipeline_made_and_fails_what_was_tampered_with(built, monkeypatch) -> None:
    options = ("--track", "tiny", "--images", "1", "--restarts", "1")
    told = built.rvb("audit", "Tiny2026Net", *options)
    assert "every certificate held" in told.stdout
    assert "pgd, margin descent, apgd-ce, apgd-t" in told.stdout
    assert "ascending against each layer's bounds" in told.stderr
    record = json.loads((built.root / "work/tiny/Tiny2026Net-small/record/record.json").read_text())
    assert record["certificate"]["audit"]["planted"] > 0
    path = built.root / "work/tiny/Tiny2026Net-small/certify/evidence.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("certified_l2")
    pq.write_table(table.set_column(place, "certified_l2", pc.multiply(table["certified_l2"], 5.0)), path)
    monkeypatch.chdir(built.root)
    with pytest.raises(BenchmarkError, match=r"^Tiny2026Net-small: image \d+ is certified at l2 .* broke it there"):
        audit_row("tiny", "Tiny2026Net-small", 1, 1, 0)
    labels = pa.array([(label + 1) % 10 for label in table["label"].to_pylist()])
    pq.write_table(table.set_column(table.column_names.index("label"), "label", labels), path)
    with pytest.raises(BenchmarkError, match="other images or weights"):
        audit_row("tiny", "Tiny2026Net-small", 1, 1, 0)
