"""robust-vit-bench: clean, attacked and certified accuracy of vision transformers, per image, with evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmark.evaluation.auto_attack import auto_attack as auto_attack
    from benchmark.evaluation.evaluate import evaluate as evaluate
    from benchmark.evaluation.evaluate import load_images as load_images
    from benchmark.sandbox.load_model import list_models as list_models
    from benchmark.sandbox.load_model import load_model as load_model


def __getattr__(name: str) -> object:
    """Return a public function, imported on first use: importing torch takes seconds."""
    calls = {
        "auto_attack": "evaluation.auto_attack",
        "evaluate": "evaluation.evaluate",
        "load_images": "evaluation.evaluate",
        "list_models": "sandbox.load_model",
        "load_model": "sandbox.load_model",
    }
    if name not in calls:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"benchmark.{calls[name]}"), name)
