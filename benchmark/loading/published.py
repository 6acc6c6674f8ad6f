"""Weights that are published: git and the installed package keep them beside their Record, which has their sha256."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmark.loading.rows import Row
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED


def published_weights(row: Row) -> Path | None:
    """Return the file of the row's published weights; None where it has none, or no published Record."""
    folder = PUBLISHED / row.track.name
    path = folder / "weights" / f"{row.name}.safetensors"
    return path if path.exists() and (folder / f"{row.name}.json").exists() else None


def check(row: Row) -> None:
    """
    Raises:
        BenchmarkError: the row's weights are published ones, and not those that its Record names.
    """
    if row.given:
        here = files.sha256_file(row.given)
        wanted = files.read_json(PUBLISHED / row.track.name / f"{row.name}.json")["sha256"]["weights"]
        if here != wanted:
            raise BenchmarkError(
                f"{row.given} has sha256 {here}, its Record says {wanted}; bring it back with git, or install again"
            )


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
