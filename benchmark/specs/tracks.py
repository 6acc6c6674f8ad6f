"""Tracks: the rules of each comparison, one versioned YAML file for each, found by its name."""

from __future__ import annotations

from pathlib import Path

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.yaml_file import read_model
from benchmark.specs.track import Track

FOLDER = Path("benchmark/tracks")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Track:
    """Return a track by name. Raise a BenchmarkError for an unknown track or key (with the near miss), or a bad value."""
    if not isinstance(name, str):
        raise BenchmarkError(f"the track is a {type(name).__name__}; give its name, such as 'digits'")
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        raise BenchmarkError(f"unknown track {name!r}{near_miss(name, names())}")
    return read_model(path, Track, files.version(path), name=name)
