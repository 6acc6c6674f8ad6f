"""One's own model from a file of Python, with weights from a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError, near_miss, said

INSIDE = ("state_dict", "model_state_dict", "model", "net")  # where checkpoints keep the weights
PREFIXES = ("module.", "_orig_mod.", "model.")  # what parallel training, torch.compile and Lightning put before names


def build(place: str) -> nn.Module:
    """Return the model of `path/to/file.py:function` or `package.module:function`; raise a BenchmarkError if it is none."""
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise BenchmarkError(f"{place!r} names no function; give path/to/model.py:build, or package.module:build")
    path = Path(where)
    if where.endswith(".py") and not path.is_file():
        raise BenchmarkError(f"there is no file {path}")
    beside = str(path.absolute().parent if where.endswith(".py") else Path.cwd())
    sys.path.insert(0, beside)  # as Python does for a script: it may import its neighbours
    doing = f"{where} does not import"
    try:
        module = _file(path) if where.endswith(".py") else importlib.import_module(where)
        function, doing = getattr(module, name, None), f"{place} failed"
        model = function() if callable(function) else None
    except (Exception, SystemExit) as error:  # whatever the file does
        raise BenchmarkError(f"{doing}: {said(error)}") from error
    finally:
        sys.path.remove(beside)
    if not callable(function):
        known = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
        raise BenchmarkError(f"{where} has no function {name!r}{near_miss(name, known)}")
    if not isinstance(model, nn.Module):
        raise BenchmarkError(f"{place} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights into the model: a safetensors file, or a checkpoint of torch, which is read without running its code.

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
        page = first.startswith((b"<!doctype", b"<html"))
        what = "it is a web page" if page else f"{type(error).__name__}; save model.state_dict() by safetensors"
        raise BenchmarkError(f"{path} holds no weights that can be read without running its code: {what}") from None
    while isinstance(held, Mapping):
        inside = [held[key] for key in INSIDE if isinstance(held.get(key), Mapping)]
        if not inside:
            break
        held = inside[0]
    if not isinstance(held, Mapping) or not all(isinstance(value, torch.Tensor) for value in held.values()):
        raise BenchmarkError(f"{path} holds a {type(held).__name__}, not tensors by name")
    own, found = model.state_dict(), OrderedDict(held)
    for prefix in PREFIXES * 2:  # they may stand before each other in any order
        if found and not {*found} & {*own} and all(name.startswith(prefix) for name in found):
            found = OrderedDict((name.removeprefix(prefix), value) for name, value in found.items())
    if hasattr(held, "_metadata"):  # by which torch's layers read what older versions wrote
        found._metadata = held._metadata  # type: ignore[attr-defined]
    try:
        lacking, unknown = model.load_state_dict(found, strict=False)
    except RuntimeError as error:
        raise BenchmarkError(f"{path} does not fit the model: {str(error).splitlines()[-1].strip()}") from None
    given = {own[name].data_ptr() for name in found if name in own}
    lacking = [name for name in lacking if own[name].data_ptr() not in given]  # tied weights stand in a file once
    if lacking or unknown:
        words = [f"it lacks {lacking[0]}"] if lacking else []
        words += [f"the model has no {unknown[0]}{near_miss(unknown[0], own)}"] if unknown else []
        raise BenchmarkError(f"{path} does not fit the model: {'; '.join(words)}")


def _file(path: Path) -> Any:
    name = f"rvb_model_{path.stem}"  # a user's own timm.py takes the place of no package
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
