"""A row's headline numbers and their names: the columns of a board, its CSV and JSON, and `rvb show`."""

from __future__ import annotations

from benchmark.results.proportion import Proportion
from benchmark.results.record import Record
from benchmark.specs.track import Track


def headline_names(track: Track) -> list[str]:
    """The names of a row's headline numbers on `track`, in the order of a table's columns."""
    certified = [f"certified L2 {radius:g}" for radius in track.certified_radii]
    smoothed = [f"smoothed L2 {radius:g}" for radius in track.certified_radii] if track.smoothing else []
    corrupted = ["corrupted"] if track.corruptions else []
    return ["clean", *(f"robust {threat.label}" for threat in track.threats), *certified, *smoothed, *corrupted]


def headline(record: Record) -> dict[str, Proportion]:
    """A record's headline numbers by those names; a row without a certificate has no certified ones.

    Those of "smoothed" are certified too, but of another classifier: the smoothed version of the row's model. "corrupted" is
    the mean over corruptions and severities.
    """
    numbers = {"clean": record.clean}
    numbers |= {f"robust {r.threat.label}": r.accuracy for r in record.robust}
    numbers |= {f"certified {c.threat.label}": c.accuracy for c in record.certified}
    smoothed = record.smoothed.certified if record.smoothed else ()
    numbers |= {f"smoothed {c.threat.label}": c.accuracy for c in smoothed}
    return numbers | ({"corrupted": record.corrupted.accuracy} if record.corrupted else {})
