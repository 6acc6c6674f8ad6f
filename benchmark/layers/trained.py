"""Models of rows: with trained weights, or with the weights from which training starts."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmark.layers.derived import cache_weights
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.runtime.torch_setup import start, stop_filling
from benchmark.specs import methods
from benchmark.specs.rows import Row


def trained_model(row: Row, device: torch.device) -> torch.nn.Module:
    """Return the row's model with its trained weights, in evaluation mode, frozen.

    Raises:
        BenchmarkError: the weights are missing or do not fit the model that `build` returns.
    """
    start(device)
    model = methods.build_model(row.submission, row.settings, row.track)
    load_weights(model, row.weights)
    methods.check_output(model, row.submission.name, row.track)
    model = model.to(device).eval().requires_grad_(False)
    cache_weights(model)
    stop_filling()
    return model


def start_from(model: torch.nn.Module, path: Path, new: tuple[str, ...]) -> str:
    """Load another row's weights from `path` into `model`, except the parts named in `new`. Return the file's sha256.

    Raises:
        BenchmarkError: the file is missing, `new` names no part of the model, or the other parts differ by name or shape.
    """
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro` on its track to train that row")
    stored, initial = load_file(path), model.state_dict()
    for part in new:
        if not any(_within(name, (part,)) for name in initial):
            raise BenchmarkError(f"init_from: the model has no part {part!r}{near_miss(part, {*initial})}")
    for name in sorted(name for name in initial.keys() | stored.keys() if not _within(name, new)):
        in_file, in_model = (f"shape {tuple(side[name].shape)}" if name in side else "nothing" for side in (stored, initial))
        if in_file != in_model:
            raise BenchmarkError(
                f"init_from: {name} is {in_file} in {path} and {in_model} in this model; name it in `new` or mend it"
            )
    model.load_state_dict(initial | {name: tensor for name, tensor in stored.items() if not _within(name, new)})
    return files.sha256_file(path)


def _within(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def load_weights(model: torch.nn.Module, path: Path) -> None:
    """Load weights in place. Raise a BenchmarkError if the file is missing or does not fit the model."""
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro` to train the model")
    try:
        model.load_state_dict(load_file(path))
    except Exception as error:
        raise BenchmarkError(f"{path} does not fit the model: {str(error).splitlines()[0]}; train it again") from error
