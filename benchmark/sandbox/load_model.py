"""`benchmark.load_model`: a row that was published, or built in this checkout, as a torch module."""

from __future__ import annotations

import contextlib

import torch

from benchmark.layers.trained import trained_model
from benchmark.records.record import Record
from benchmark.runtime import files, paths
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.confinement import required
from benchmark.sandbox.model import SandboxedModel
from benchmark.specs import tracks
from benchmark.specs.rows import at_hand, load_row

AGAIN = "bring it back with git, or install again"


def load_model(
    row: str, track: str = "digits", device: torch.device | str = "cpu", *, sandbox: bool = False
) -> torch.nn.Module:
    """Load a row's model, in evaluation mode and frozen.

    It takes images (n, c, h, w) in [0, 1] at the track's resolution, normalises them itself, and returns logits (n,
    classes). Its weights are those of the last build in the caller's checkout, else the published ones, whose sha256
    is the Record's.

    Args:
        row: `<submission>-<variant>`, as `rvb list` names it.
        device: where the model goes, such as "cuda".
        sandbox: run the submission's code in a sandboxed process, which the returned model asks (Linux). The model
            then gives logits and gradients of the images, and has no parameters.

    Raises:
        BenchmarkError: an unknown track or row (the near miss is suggested); a row that is neither published with
            weights nor built here (the message names the command that builds it); weights that do not fit the code;
            or no sandbox on this machine.
    """
    with contextlib.chdir(paths.home()):
        loaded = at_hand(load_row(track, row, option='track="{}"'))
        if given := loaded.given:
            path = paths.PUBLISHED / loaded.track.name / f"{loaded.name}.json"
            recorded = files.read_model(path, Record, AGAIN).sha256.get("weights")
            if (sha256 := files.sha256_file(given)) != recorded:
                raise BenchmarkError(f"{given} has sha256 {sha256}, its Record says {recorded}; {AGAIN}")
        if not loaded.weights.exists():
            other = "" if track == "digits" else f" --track {track}"
            raise BenchmarkError(f"{row} has no published weights and is not built on {track}; run `rvb repro {row}{other}`")
        if not sandbox:
            return trained_model(loaded, torch.device(device))
        model = SandboxedModel(loaded, torch.device(device), required("full"))
        model.build()
        return model


def list_models(track: str = "digits") -> list[str]:
    """Return the names of the rows of a track whose weights are published, as `load_model` takes them."""
    with contextlib.chdir(paths.home()):
        folder = paths.PUBLISHED / tracks.load(track).name
        weights = (path.stem for path in (folder / "weights").glob("*.safetensors"))
        return sorted(name for name in weights if (folder / f"{name}.json").exists())
