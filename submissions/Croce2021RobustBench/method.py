"""Any model of RobustBench's zoo (Croce et al. 2021, https://arxiv.org/abs/2010.09670), by its name there.

The architecture, its normalisation and what a checkpoint needs to fit it are RobustBench's own code. README.md says how
to enter a model.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import pickle
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

from benchmark.specs.data import DataSpec

WEB_PAGE = (b"<!doctype", b"<html")  # how a file begins that is one


def build(data: DataSpec, *, name: str, dataset: str, threat_model: str) -> nn.Module:
    """The zoo's model without weights: images (n, c, h, w) in [0, 1] to logits (n, classes).

    Args:
        name: as `robustbench.utils.load_model` takes it, such as Wong2020Fast.
        dataset: cifar10, cifar100 or imagenet.
        threat_model: Linf, L2 or corruptions.

    Raises:
        ValueError: the zoo has no such data set, threat model or model; the near miss is named.
    """
    import timm

    entry = _entry(name, dataset, threat_model)
    if isinstance(entry, str):
        return timm.create_model(entry, num_classes=data.classes, pretrained=False)
    return entry["model"]()


def pretrained(data: DataSpec, path: Path | None, *, name: str, dataset: str, threat_model: str) -> nn.Module:
    """The same with weights: from the checkpoint file `path`, or downloaded by RobustBench's own loader where it is None.

    Raises:
        ValueError: the file is no checkpoint of tensors alone, or a parameter of the model is not in it; or the model is
            an ensemble of several files, which only the loader puts together.
    """
    from robustbench.utils import load_model

    entry, zoo = _entry(name, dataset, threat_model), {"dataset": dataset, "threat_model": threat_model}
    if path is None:
        with tempfile.TemporaryDirectory() as folder:  # of this process, which may write nowhere else
            return load_model(name, model_dir=folder, **zoo)
    if path.read_bytes()[:64].lstrip().lower().startswith(WEB_PAGE):
        raise ValueError(f"{path} is a web page and no checkpoint; download the file itself")
    if isinstance(entry, dict) and isinstance(entry["gdrive_id"], list):
        raise ValueError(f"{name} is an ensemble of several files; leave `path` out, so that RobustBench's loader runs")
    model = build(data, name=name, **zoo)
    try:
        if isinstance(entry, str):
            _load_timm(model, path)
        else:
            with tempfile.TemporaryDirectory() as folder:  # laid out as its loader expects, so that it downloads nothing
                place = Path(folder, dataset, threat_model, f"{name}.pt")
                place.parent.mkdir(parents=True)
                place.symlink_to(path.resolve())
                model = load_model(name, model_dir=folder, **zoo)
        _check_all_loaded(model, path)
    except (RuntimeError, pickle.UnpicklingError) as error:  # their messages list every key
        raise ValueError(f"{path} does not fit {name}: {' '.join(str(error).split())[:200]}") from error
    return model


def _entry(name: str, dataset: str, threat_model: str):
    """The zoo's entry, or the name of the model that it has registered with timm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import timm
        from robustbench.model_zoo import model_dicts
    zoo = {one.value: {threat.value: models for threat, models in threats.items()} for one, threats in model_dicts.items()}
    _known("data set", dataset, zoo)
    _known("threat model", threat_model, zoo[dataset])
    registered = f"{name.lower().replace('-', '_')}_{dataset}_{threat_model.lower()}"
    if timm.is_model(registered):
        return registered
    _known("model", name, zoo[dataset][threat_model])
    return zoo[dataset][threat_model][name]


def _known(what: str, name: str, known) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known)[:8])}"
        raise ValueError(f"RobustBench's zoo has no {what} {name!r}; {hint}")


def _load_timm(model: nn.Module, path: Path) -> None:
    """timm's own reading of a checkpoint, without running what a pickle may hold; inside the normalisation."""
    from timm.models import load_checkpoint

    inner = model.model if isinstance(model, nn.Sequential) and hasattr(model, "model") else model
    with torch.serialization.safe_globals([argparse.Namespace]):
        load_checkpoint(inner, str(path), weights_only=True)


def _check_all_loaded(model: nn.Module, path: Path) -> None:
    """RobustBench's loader lets some checkpoints miss keys; here every parameter must hold values of the file."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        held = {_digest(tensor) for tensor in _tensors(torch.load(path, map_location="cpu", weights_only=True))}
    for name, parameter in model.named_parameters():
        if _digest(parameter) not in held:
            raise ValueError(f"{path} does not hold the model's {name}; it is another model's checkpoint")


def _tensors(content):
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict):
        for part in content.values():
            yield from _tensors(part)


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().float().contiguous().numpy().tobytes()).hexdigest()
