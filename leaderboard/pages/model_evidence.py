"""A row's evidence: the first images in its page, more in a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from markupsafe import Markup

from benchmark.records.record import Record
from leaderboard.image_radii import ImageRadii

LINES = 100  # images in the page's table
WHOLE = 2000  # images in the CSV file, at most: numbers as text take time and room, and the Parquet file has all


@dataclass(frozen=True)
class EvidenceTable:
    """`body` has the lines of the `shown` first images, as HTML of numbers and words of this file; `n` counts all images."""

    heads: Sequence[str]
    body: Markup
    shown: int
    n: int


def evidence_table(evidence: pa.Table, radii: ImageRadii, record: Record) -> EvidenceTable:
    """Return a table of the first attacked images."""
    few = evidence.slice(0, min(LINES, radii.n))
    count = few.num_rows
    right = radii.right[:count].tolist()

    def values(name: str) -> list[Any]:
        return few[name].to_pylist()

    heads = ["image", "label", "clean prediction", "margin"]
    columns = [[_number(value) for value in values(name)] for name in ("image", "label", "clean_prediction")]
    columns.append([f"<td>{float(value):.3f}" for value in values("clean_margin")])
    if radii.certified is not None:
        heads.append("certified l2")
        columns.append([f"<td>{radius:.4f}" for radius in radii.certified[:count].tolist()])
    heads.append("broken at l2")
    nearest = zip(radii.broken[:count].tolist(), right, strict=True)
    columns.append([f"<td class=broken>{b:.4f}" if ok and b != np.inf else "<td>–" for b, ok in nearest])
    if radii.smoothed is not None:
        heads += ["smoothed version", "its certified l2", "hits of samples"]
        smoothed_radii = values("smoothed_l2")
        predictions = zip(values("smoothed_prediction"), smoothed_radii, strict=True)
        columns.append([_number(p) if r > 0 else "<td>undecided" for p, r in predictions])
        columns.append([f"<td>{float(radius):.4f}" for radius in smoothed_radii])
        hits = zip(values("smoothed_count"), values("smoothed_samples"), strict=True)
        columns.append([f"<td>{int(hit)} of {int(samples)}" for hit, samples in hits])
    for attack in record.attacks:
        heads.append(attack.id)
        seen = zip(values(f"{attack.id}:success"), values(f"{attack.id}:prediction"), right, strict=True)
        columns.append([_verdict(won, prediction, ok) for won, prediction, ok in seen])
    body = "\n".join(f"<tr>{'</td>'.join(line)}</td></tr>" for line in zip(*columns, strict=True))
    return EvidenceTable(heads, Markup(body), count, evidence.num_rows)


def _number(value: object) -> str:
    return f"<td>{int(value)}"  # type: ignore[call-overload]


def _verdict(won: bool, prediction: int, right: bool) -> str:
    return f"<td class=broken>broken: {int(prediction)}" if won else "<td>robust" if right else "<td>wrong"


def evidence_csv(evidence: pa.Table) -> pa.Buffer:
    """Return the first WHOLE images with every column, as CSV."""
    written = pa.BufferOutputStream()
    pyarrow.csv.write_csv(evidence.slice(0, WHOLE), written, pyarrow.csv.WriteOptions(batch_size=16384))
    return written.getvalue()
