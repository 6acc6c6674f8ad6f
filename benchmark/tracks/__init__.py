"""Tracks: the rules of each comparison, one versioned YAML file a track, found by where it stands."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from benchmark.errors import BenchmarkError, explain, near_miss
from benchmark.records import Track

FOLDER = Path("benchmark/tracks")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Track:
    """The track of this name.

    Raises:
        BenchmarkError: for an unknown track, an unknown key (the near miss is suggested) or a bad value.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        raise BenchmarkError(f"unknown track {name!r}{near_miss(name, names())}")
    try:
        track = Track.model_validate({"name": name, **read_yaml(path)})
    except ValidationError as error:
        raise explain(error, Track, str(path)) from None
    return track


def read_yaml(path: Path) -> dict:
    """A YAML mapping; anything else is a BenchmarkError."""
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise BenchmarkError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise BenchmarkError(f"{path}: should be a mapping of keys to values")
    return content
