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


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice, of which plain YAML keeps the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key!r} stands twice, near line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict:
    """A YAML mapping; anything else is a BenchmarkError."""
    try:
        content = yaml.load(path.read_text(), _Loader)
    except yaml.YAMLError as error:
        raise BenchmarkError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise BenchmarkError(f"{path}: should be a mapping of keys to values")
    return content
