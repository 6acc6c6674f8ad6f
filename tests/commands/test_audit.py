"""`rvb audit` on what a pipeline made."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmark.commands.audit import audit_row, certified_rows
from benchmark.loading import rows
from benchmark.runtime.errors import BenchmarkError


def test_rows_to_audit_are_those_with_a_certificate() -> None:
    rows = [f"Havens2024LoFAST-{variant}" for variant in ("as_published", "mean_pool", "large_radius")]
    assert certified_rows("digits", "Havens2024LoFAST") == rows
    assert certified_rows("digits", "Havens2024LoFAST-mean_pool") == ["Havens2024LoFAST-mean_pool"]
    for name in ("Wong2020Fast", "Wong2020Fast-linf"):
        with pytest.raises(BenchmarkError, match=rf"{name} declares no certificate on digits"):
            certified_rows("digits", name)


def test_what_is_not_built_yet_is_one_clear_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rows, "WORK", tmp_path)
    with pytest.raises(BenchmarkError, match=r"certify/evidence\.parquet is missing"):
        audit_row("digits", "Havens2024LoFAST-mean_pool", None, 1, 0)


@pytest.mark.slow
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
