"""A user's model from a Python file, with weights from a file."""

from __future__ import annotations

import importlib.util
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from benchmark.runtime.errors import BenchmarkError, near_miss, said

INSIDE = ("state_dict", "model_state_dict", "model", "net")  # where checkpoints keep the weights
PREFIXES = ("module.", "_orig_mod.", "model.")  # of parallel training, torch.compile and Lightning


def build(place: str) -> nn.Module:
    """Return the model of `path/to/file.py:function` or `package.module:function`; raise a BenchmarkError if it is none."""
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise BenchmarkError(f"{place!r} names no function; give path/to/model.py:build, or package.module:build")
    path = Path(where)
    if where.endswith(".py") and not path.is_file():
        raise BenchmarkError(f"there is no file {path}")
    folder = str(path.absolute().parent if where.endswith(".py") else Path.cwd())
    sys.path.insert(0, folder)  # as Python does for a script, which may import its neighbours
    doing = f"{where} does not import"
    try:
        module = _file(path) if where.endswith(".py") else importlib.import_module(where)
        function, doing = getattr(module, name, None), f"{place} failed"
        model = function() if callable(function) else None
    except (Exception, SystemExit) as error:  # any that the file raises
        raise BenchmarkError(f"{doing}: {said(error)}") from error
    finally:
        sys.path.remove(folder)
    if not callable(function):
        functions = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
        raise BenchmarkError(f"{where} has no function {name!r}{near_miss(name, functions)}")
    if not isinstance(model, nn.Module):
        raise BenchmarkError(f"{place} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights into the model, from a safetensors file or a torch checkpoint, without running code of the file.

    Raises:
        BenchmarkError: a file that is missing or not such a file, or names and shapes that do not fit the model.
    """
    if not path.is_file():
        raise BenchmarkError(f"there is no file {path}")
    with path.open("rb") as file:
        first = file.read(64)
    safe = first[8:9] == b"{"  # where the JSON header of a safetensors file begins, whatever its name
    try:
        content: Any = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise many kinds
        page = first.lstrip().lower().startswith((b"<!doctype", b"<html"))
        what = "it is a web page" if page else f"{type(error).__name__}; save model.state_dict() by safetensors"
        raise BenchmarkError(f"{path} holds no weights that can be read without running its code: {what}") from None
    while isinstance(content, Mapping):
        inside = [key for key in INSIDE if isinstance(content.get(key), Mapping)]
        if not inside:
            break
        print(f"{path} holds {', '.join(map(str, content))}: {inside[0]} is loaded", file=sys.stderr)
        content = content[inside[0]]
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise BenchmarkError(f"{path} holds a {type(content).__name__}, not tensors by name")
    own, weights = model.state_dict(), OrderedDict(content)
    for prefix in PREFIXES * 2:  # in any order
        if weights and not {*weights} & {*own} and all(name.startswith(prefix) for name in weights):
            weights = OrderedDict((name.removeprefix(prefix), value) for name, value in weights.items())
    if hasattr(content, "_metadata"):  # with which torch's layers read files of older versions
        weights._metadata = content._metadata  # type: ignore[attr-defined]
    try:
        lacking, unknown = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise BenchmarkError(f"{path} does not fit the model: {str(error).splitlines()[-1].strip()}") from None
    given = {own[name].data_ptr() for name in weights if name in own}
    lacking = [name for name in lacking if own[name].data_ptr() not in given]  # a file holds tied weights once
    if lacking or unknown:
        words = [f"it lacks {lacking[0]}"] if lacking else []
        words += [f"the model has no {unknown[0]}{near_miss(unknown[0], own)}"] if unknown else []
        raise BenchmarkError(f"{path} does not fit the model: {'; '.join(words)}")


def _file(path: Path) -> Any:
    name = f"rvb_model_{path.stem}"  # so that a user's own timm.py replaces no package
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
