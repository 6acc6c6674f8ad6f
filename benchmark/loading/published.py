"""Weights that are published: git and the installed package keep them beside their Record, which has their sha256."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmark.loading.rows import Row
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED


def published_weights(row: Row) -> Path | None:
    """Return the row's published weights; None where there are none.

    Raises:
        BenchmarkError: the file is not the one that the Record names.
    """
    folder = PUBLISHED / row.track.name
    path, record = folder / "weights" / f"{row.name}.safetensors", folder / f"{row.name}.json"
    if not path.exists() or not record.exists():
        return None
    found, wanted = files.sha256_file(path), files.read_json(record)["sha256"]["weights"]
    if found != wanted:
        raise BenchmarkError(
            f"{path} has sha256 {found}, its Record says {wanted}; bring it back with git, or install again"
        )
    return path


def at_hand(row: Row, sha256: str = "") -> Row:
    """Return the row with the weights that were trained here, else with those that are published, else as it is.

    Args:
        sha256: that the weights have to have, where it is given.
    """
    if row.weights.exists() and sha256 in ("", files.sha256_file(row.weights)):
        return row
    if sha256 and row.weights.exists() and not published_weights(row):
        return row  # of another build, as who asks will say
    return replace(row, given=published_weights(row))
