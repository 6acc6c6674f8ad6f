"""One's own model from a file of Python, with weights from a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError, near_miss, said

INSIDE = ("state_dict", "model_state_dict", "model", "net")  # where checkpoints keep the weights
PREFIXES = ("module.", "_orig_mod.", "model.")  # what parallel training, torch.compile and Lightning put before names


def build(place: str) -> nn.Module:
    """Return what the function of `path/to/file.py:function` or `package.module:function` returns.

    Raises:
        BenchmarkError: no such file or function, or an error in it, or something else than a torch module.
    """
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise BenchmarkError(f"{place!r} names no function; give path/to/model.py:build, or package.module:build")
    try:
        module = _file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except BenchmarkError:
        raise
    except (Exception, SystemExit) as error:  # whatever the file does
        raise BenchmarkError(f"{where} does not import: {said(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
        raise BenchmarkError(f"{where} has no function {name!r}{near_miss(name, known)}")
    try:
        model = function()
    except (Exception, SystemExit) as error:
        raise BenchmarkError(f"{place} failed: {said(error)}") from error
    if not isinstance(model, nn.Module):
        raise BenchmarkError(f"{place} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights into the model: a safetensors file, or a checkpoint of torch, which is read without running its code.

    Weights may stand under `state_dict` or `model`, and names may begin with `module.`, as parallel training writes them.

    Raises:
        BenchmarkError: a file that is missing or no such file, or names and shapes that do not fit the model.
    """
    if not path.is_file():
        raise BenchmarkError(f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            held: Any = load_file(path)
        else:
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise many kinds
        first = path.read_bytes()[:64].lstrip().lower()
        what = "it is a web page" if first.startswith((b"<!doctype", b"<html")) else said(error).split(". ")[0][:200]
        raise BenchmarkError(f"{path} holds no weights that can be read without running its code: {what}") from None
    while isinstance(held, Mapping) and (
        inside := next((key for key in INSIDE if isinstance(held.get(key), Mapping)), "")
    ):
        held = held[inside]
    if not isinstance(held, Mapping) or not all(isinstance(value, torch.Tensor) for value in held.values()):
        raise BenchmarkError(f"{path} holds a {type(held).__name__}, not tensors by name")
    own, found = model.state_dict(), dict(held)
    for prefix in PREFIXES:
        if found and not {*found} & {*own} and all(name.startswith(prefix) for name in found):
            found = {name.removeprefix(prefix): value for name, value in found.items()}
    lacking, unknown = sorted({*own} - {*found}), sorted({*found} - {*own})
    if lacking or unknown:
        words = [f"it lacks {lacking[0]}"] if lacking else []
        words += [f"the model has no {unknown[0]}{near_miss(unknown[0], own)}"] if unknown else []
        raise BenchmarkError(f"{path} does not fit the model: {'; '.join(words)}")
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        raise BenchmarkError(f"{path} does not fit the model: {str(error).splitlines()[-1].strip()}") from None


def _file(path: Path) -> Any:
    if not path.is_file():
        raise BenchmarkError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.absolute().parent))  # as Python does for a script: it may import its neighbours
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
