"""The model of a row, with its trained weights or those that its training starts from."""

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
    """The row's model with its trained weights, in evaluation mode, frozen.

    Raises:
        BenchmarkError: the weights are missing or do not fit what `build` makes.
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
    """Puts the weights of another row, at `path`, into `model`, but for the parts named in `new`; the file's sha256.

    Raises:
        BenchmarkError: the file is missing, `new` names nothing of the model, or what is left differs by name or shape.
    """
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro` on its track to train that row")
    stored, own = load_file(path), model.state_dict()
    for part in new:
        if not any(_within(name, (part,)) for name in own):
            raise BenchmarkError(f"init_from: the model has no part {part!r}{near_miss(part, {*own})}")
    for name in sorted(name for name in own.keys() | stored.keys() if not _within(name, new)):
        there, here = (f"shape {tuple(side[name].shape)}" if name in side else "nothing" for side in (stored, own))
        if there != here:
            raise BenchmarkError(
                f"init_from: {name} is {there} in {path} and {here} in this model; name it in `new` or mend it"
            )
    model.load_state_dict(own | {name: tensor for name, tensor in stored.items() if not _within(name, new)})
    return files.sha256_file(path)


def _within(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def load_weights(model: torch.nn.Module, path: Path) -> None:
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro` to train the model")
    try:
        model.load_state_dict(load_file(path))
    except Exception as error:
        raise BenchmarkError(f"{path} does not fit the model: {str(error).splitlines()[0]}; train it again") from error
