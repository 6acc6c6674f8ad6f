"""`benchmark.load_model`: a trained row as a torch module, for notebooks and scripts."""

from __future__ import annotations

import contextlib

import torch

from benchmark.loading.rows import load_row
from benchmark.loading.trained import trained_model
from benchmark.runtime import paths
from benchmark.runtime.errors import BenchmarkError


def load_model(row: str, track: str = "digits", device: torch.device | str = "cpu") -> torch.nn.Module:
    """The model of a row that was built in the checkout in which the caller stands, in evaluation mode and frozen.

    It takes images (n, c, h, w) in [0, 1] at the track's resolution, normalises them itself, and returns logits
    (n, classes). Its weights are those of the last build: `rvb list` says whether they are today's.

    Args:
        row: `<submission>-<variant>`, as `rvb list` names it.
        device: where the model goes, such as "cuda".

    Raises:
        BenchmarkError: outside a checkout, an unknown track or row (the near miss is suggested), a row that is not built
            here (the command that builds it is named), or weights that do not fit the code as it stands.
    """
    with contextlib.chdir(paths.root()):
        found = load_row(track, row)
        if not found.weights.exists():
            other = "" if track == "digits" else f" --track {track}"
            raise BenchmarkError(f"{row} is not built on {track}; run `rvb repro {row}{other}`")
        return trained_model(found, torch.device(device))
