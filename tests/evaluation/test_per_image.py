"""Verdicts by image add up to the Record that was counted from the same evidence."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import tiny_linear_row

from benchmark.evaluation.per_image import verdicts
from benchmark.results.record import Record
from benchmark.results.regression import counts


def same_as(record: Record, evidence) -> set[str]:
    found = verdicts(evidence, record)
    assert {name: (int(held.sum()), len(held)) for name, held in found.items()} == {
        name: number for name, number in counts(record).items() if name in found
    }
    return set(found)


def test_attacked_rows_add_up(linear_row) -> None:
    tiny_linear_row.robust(linear_row)
    names = same_as(tiny_linear_row.record(), pq.read_table(tiny_linear_row.ROW / "record/evidence.parquet"))
    assert names == {"clean", "robust L2 0.5", "pgd-L2-0.5"}


@pytest.mark.slow
def test_every_number_of_a_certified_row_adds_up(finished) -> None:
    folder = finished.root / "work/tiny/Tiny2026Net-small/record"
    record = Record.model_validate(json.loads((folder / "record.json").read_text()))
    assert same_as(record, pq.read_table(folder / "evidence.parquet")) == set(counts(record))
