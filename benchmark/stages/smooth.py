"""Stage `smooth`: the smoothed version of one row. `python -m benchmark.stages.smooth <track> <submission> <variant>`"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save

from benchmark.certificates.smoothing import guarantee, smooth
from benchmark.loading.rows import Entry, entry
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.smoothing import SmoothingSpec
from benchmark.stages.base import Clock, evaluation_inputs, finish
from benchmark.verdicts.prediction import predict

CHUNK = 25  # images between two checkpoints


def smooth_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/smooth: smoothed.parquet and smoothing.json."""
    row = entry(track, submission, variant)
    rules = row.track.smoothing
    if rules is None:
        raise BenchmarkError(f"track {track} declares no smoothing")
    device = set_up(run_settings().evaluate.device)
    inputs = evaluation_inputs(row, "smooth", [rules.model_dump(), row.track.certified_radii])
    with scratch.locked(f"{track}/{row.row}/smooth", inputs, row.folder / "smooth") as folder:
        if folder is not None:
            _smooth(row, rules, folder, device, inputs["code"])


def _smooth(row: Entry, rules: SmoothingSpec, folder: Path, device: torch.device, code_digest: str) -> None:
    clock = Clock(folder)
    images, labels = evaluation_images(row, device)
    model, batch_size = trained_model(row, device), row.track.evaluation.batch_size
    found = smoothed_columns(model, images, row, rules, folder / "checkpoint.safetensors", clock)
    clean = predict(model, images, labels, batch_size)
    columns = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin, **found}
    out = folder / "out"
    out.mkdir(exist_ok=True)
    pq.write_table(pa.table({name: tensor.cpu().numpy() for name, tensor in columns.items()}), out / "smoothed.parquet")
    files.write_json(out / "smoothing.json", {"guarantee": guarantee(rules.sigma, rules.alpha)})
    finish(row, "smooth", out, code_digest, clock)
    right = int((found["smoothed_prediction"] == labels.cpu()).sum())
    print(f"{row.row}: the smoothed version is right on {right} of {len(labels)} images, the rest wrong or undecided")


def smoothed_columns(
    model: torch.nn.Module, images: torch.Tensor, row: Entry, rules: SmoothingSpec, checkpoint: Path, clock: Clock
) -> dict[str, torch.Tensor]:
    """The evidence by column, each (n,): what `Smoothed` holds; resumes from `checkpoint`."""
    columns = load_file(checkpoint) if checkpoint.exists() else {}
    done = len(columns["smoothed_l2"]) if columns else 0
    for start in range(done, len(images), CHUNK):
        chunk = images[start : start + CHUNK]
        places = range(start, start + len(chunk))
        torch.manual_seed(rules.seed + start)  # an open model may draw noise of its own
        found = smooth(
            model,
            chunk,
            places,
            row.track.certified_radii,
            **rules.model_dump(),
            batch_size=row.track.evaluation.batch_size,
        )
        new = {f"smoothed_{'l2' if name == 'radius' else name}": tensor for name, tensor in vars(found).items()}
        columns = {name: torch.cat([columns[name], tensor]) if columns else tensor for name, tensor in new.items()}
        files.write(checkpoint, save({name: tensor.contiguous() for name, tensor in columns.items()}))
        clock.lap()
        print(f"{row.row}: smoothed {places.stop} of {len(images)} images", flush=True)
    return columns


if __name__ == "__main__":
    errors.run(lambda: smooth_row(*sys.argv[1:]))
