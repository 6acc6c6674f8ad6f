"""Stage `train` of a row with `weights`: takes over weights that were trained elsewhere, and trains nothing.

`python -m benchmark.stages.pretrained <track> <submission> <variant>`
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from safetensors.torch import save

from benchmark.loading import methods
from benchmark.loading.rows import Entry, entry
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.training import WeightsSpec
from benchmark.stages.base import Clock, finish


def pretrained_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/train: model.safetensors, pretrained.json (sha256 of the weights as given).

    Raises:
        BenchmarkError: the file is missing or is not the one pinned, or the method cannot load it.
    """
    row = entry(track, submission, variant)
    given = row.settings.weights
    if given is None:
        raise BenchmarkError(f"{row.row} is trained here; run `rvb stage train {row.row}`")
    set_up("cpu")
    inputs = {
        "model": row.settings.model,
        "data": row.track.data.model_dump(mode="json"),
        "weights": given.model_dump(),
        "file": _checked(given, row),
        "code": files.sha256_files(row.code("train")),
        "versions": {name: version(name) for name in ("torch", "timm", "robustbench")},
    }
    with scratch.locked(f"{track}/{row.row}/train", inputs, row.folder / "train") as folder:
        if folder is not None:
            _take_over(row, given, folder, inputs)


def _checked(given: WeightsSpec, row: Entry) -> str:
    """sha256 of the file, "" where there is none."""
    if given.path is None:
        return ""
    path = Path(given.path)
    if not path.is_file():
        raise BenchmarkError(f"{row.row}: its weights {path} are missing; put the checkpoint there")
    digest = files.sha256_file(path)
    if given.sha256 not in (None, digest):
        raise BenchmarkError(
            f"{row.row}: its weights {path} have sha256 {digest}, submission.yaml pins {given.sha256}; restore the file"
        )
    return digest


def _take_over(row: Entry, given: WeightsSpec, folder: Path, inputs: dict) -> None:
    clock, out = Clock(folder), folder / "out"
    path = Path(given.path) if given.path else None
    model = methods.pretrained(row.submission, row.variant, row.track, path)
    weights = save({name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()})
    files.write(out / "model.safetensors", weights)
    files.write_json(out / "pretrained.json", {"sha256": inputs["file"] or files.sha256_bytes(weights)})
    finish(row, "train", out, inputs["code"], clock)
    print(f"{row.row}: {sum(p.numel() for p in model.parameters()):,} parameters taken over, none trained")


if __name__ == "__main__":
    errors.run(lambda: pretrained_row(*sys.argv[1:]))
