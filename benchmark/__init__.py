"""robust-vit-bench: clean, attacked and certified accuracy of vision transformers, per image, with evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmark.loading.load_model import load_model as load_model


def __getattr__(name: str) -> object:
    """`benchmark.load_model`, imported when it is asked for: torch takes seconds."""
    if name != "load_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module("benchmark.loading.load_model").load_model
