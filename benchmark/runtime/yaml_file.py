"""YAML files, read strictly."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from benchmark.runtime.errors import BenchmarkError, explain

Model = TypeVar("Model", bound=BaseModel)

LONGEST = 1_000_000  # characters of a file, and entries
LARGEST = 2**63 - 1


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's, if it was built
    """YAML that refuses duplicate keys, of which plain YAML silently keeps the last, and keys that are no text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if not isinstance(key, str):
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"the key {key!r} below line {line} is no text; put it in quotes, as 'no' or '2'")
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key!r} stands twice, near line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML mapping. Raise BenchmarkError for anything else."""
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.load(text, _Loader) if len(text) <= LONGEST else {}
        if len(text) > LONGEST or _entries(content, LONGEST) > LONGEST:
            raise BenchmarkError(f"{path}: {LONGEST:,} characters are the most, and entries with what aliases repeat")
    except UnicodeDecodeError as error:
        raise BenchmarkError(f"{path}: not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # the last: more digits than Python reads
        raise BenchmarkError(f"{path}: not valid YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(content, dict):
        raise BenchmarkError(f"{path}: should be a mapping of keys to values")
    return content


@cache
def read_model(path: Path, model: type[Model], _version: tuple[int, ...], **given: str) -> Model:
    """Return a YAML file as such a model, with the values `given` beside it; cached until its version (files.py) changes.

    Raise BenchmarkError for no YAML mapping, an unknown key (the near miss is suggested), or a bad value.
    """
    try:
        return model.model_validate(given | read_yaml(path))
    except ValidationError as error:
        raise explain(error, model, str(path)) from None


def _entries(content: object, most: int) -> int:
    """Return the number of entries in lists and mappings, with repeated aliases, or a number above `most`."""
    if isinstance(content, int) and abs(content) > LARGEST:
        raise ValueError(f"a number above {LARGEST}")
    if not isinstance(content, dict | list):
        return 1
    count = 1
    for value in content.values() if isinstance(content, dict) else content:
        count += _entries(value, most - count)
        if count > most:
            break
    return count
