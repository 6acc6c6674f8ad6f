"""Stage `corrupt`: one row on corrupted images. `python -m benchmark.stages.corrupt <track> <submission> <variant>`"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save

from benchmark.data.corruptions import PARAMETERS, corrupt, versions
from benchmark.loading.rows import Entry, entry
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.corruptions import CorruptionSpec
from benchmark.stages.base import Clock, evaluation_inputs, finish
from benchmark.verdicts.prediction import predict

CHUNK = 25  # images between two checkpoints


def corrupt_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/corrupt: corrupted.parquet and corruptions.json."""
    row = entry(track, submission, variant)
    rules = row.track.corruptions
    if rules is None:
        raise BenchmarkError(f"track {track} declares no corruptions")
    found = versions()
    device = set_up(run_settings().evaluate.device)
    inputs = evaluation_inputs(row, "corrupt", [rules.model_dump(), found])
    with scratch.locked(f"{track}/{row.row}/corrupt", inputs, row.folder / "corrupt") as folder:
        if folder is not None:
            _corrupt(row, rules, found, folder, device, inputs["code"])


def _corrupt(
    row: Entry, rules: CorruptionSpec, found: dict[str, str], folder: Path, device: torch.device, code_digest: str
) -> None:
    clock = Clock(folder)
    images, labels = evaluation_images(row, device)
    model, batch_size = trained_model(row, device), row.track.evaluation.batch_size
    right = corrupted_columns(model, images, labels, row, rules, folder / "checkpoint.safetensors", clock)
    clean = predict(model, images, labels, batch_size)
    columns = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin, **right}
    out = folder / "out"
    out.mkdir(exist_ok=True)
    pq.write_table(
        pa.table({name: tensor.cpu().numpy() for name, tensor in columns.items()}), out / "corrupted.parquet"
    )
    files.write_json(out / "corruptions.json", {"parameters": PARAMETERS, "versions": found})
    finish(row, "corrupt", out, code_digest, clock)
    counted = sum(int(column.sum()) for column in right.values())
    print(f"{row.row}: right on {counted} of {len(right) * len(labels)} corrupted images")


def corrupted_columns(
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    row: Entry,
    rules: CorruptionSpec,
    checkpoint: Path,
    clock: Clock,
) -> dict[str, torch.Tensor]:
    """The evidence by column `corrupted <name> <severity>`, (n,) bool each: whether the model is right on that corrupted
    copy of the image, a tie counting as wrong; resumes from `checkpoint`.
    """
    columns = load_file(checkpoint) if checkpoint.exists() else {}
    done = len(next(iter(columns.values()))) if columns else 0
    pixels = images.cpu().numpy()
    for start in range(done, len(images), CHUNK):
        chunk, places = slice(start, start + CHUNK), range(start, min(start + CHUNK, len(images)))
        torch.manual_seed(rules.seed + start)  # an open model may draw noise of its own
        new = {}
        for name, severity in rules.cells:
            copies = torch.from_numpy(corrupt(pixels[chunk], places, name, severity, rules.seed)).to(images.device)
            predictions = predict(model, copies, labels[chunk], row.track.evaluation.batch_size)
            new[f"corrupted {name} {severity}"] = predictions.correct.cpu()
        columns = {name: torch.cat([columns[name], right]) if columns else right for name, right in new.items()}
        files.write(checkpoint, save({name: tensor.contiguous() for name, tensor in columns.items()}))
        clock.lap()
        print(f"{row.row}: corrupted {places.stop} of {len(images)} images", flush=True)
    return columns


if __name__ == "__main__":
    errors.run(lambda: corrupt_row(*sys.argv[1:]))
