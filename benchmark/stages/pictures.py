"""Stage `pictures`: what one row's perturbations look like.

`python -m benchmark.stages.pictures <track> <submission> <variant>`
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmark.analysis.grids import png
from benchmark.analysis.perturbations import accumulated, grey, noise, perturbed, rescaled
from benchmark.loading.rows import Entry, entry
from benchmark.loading.run_settings import run_settings
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.results.pictures import Picture
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.pictures import PicturesSpec
from benchmark.specs.threat import ThreatModel
from benchmark.stages.base import Clock, evaluation_inputs, finish
from benchmark.verdicts.prediction import logits, predict


def pictures_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/pictures: a PNG a figure, pictures.json, and pictures.parquet, which says what PGD broke."""
    row = entry(track, submission, variant)
    rules = row.track.pictures
    if rules is None:
        raise BenchmarkError(f"track {track} declares no pictures")
    device = set_up(run_settings().evaluate.device)
    inputs = evaluation_inputs(row, "pictures", rules.model_dump())
    with scratch.locked(f"{track}/{row.row}/pictures", inputs, row.folder / "pictures") as folder:
        if folder is not None:
            _draw(row, rules, folder, device, inputs["code"])


def _draw(row: Entry, rules: PicturesSpec, folder: Path, device: torch.device, code_digest: str) -> None:
    clock, out = Clock(folder), folder / "out"
    images, labels = evaluation_images(row, device)
    model, batch_size = trained_model(row, device), row.track.evaluation.batch_size
    clean = predict(model, images, labels, batch_size)
    threat = ThreatModel(norm="Linf", eps=rules.eps)
    shown = images[: rules.images]
    attacked = perturbed(model, shown, labels[: rules.images], threat, steps=rules.steps, seed=rules.seed)
    after = predict(model, attacked, labels[: rules.images], batch_size)
    figures = [
        _perturbations(out, rules, shown, attacked, labels.tolist(), after.prediction.tolist()),
        *(_accumulated(out, rules, model, row, radius, device) for radius in rules.radii),
    ]
    broken = torch.zeros_like(clean.correct)
    broken[: rules.images] = ~after.correct
    columns = {"label": labels, "clean_prediction": clean.prediction, "clean_margin": clean.margin}
    columns[f"pictured {threat.norm} {threat.eps:g}"] = broken & clean.correct
    table = pa.table({name: tensor.cpu().numpy() for name, tensor in columns.items()})
    out.mkdir(exist_ok=True)
    pq.write_table(table, out / "pictures.parquet")
    files.write_json(out / "pictures.json", [figure.model_dump() for figure in figures])
    finish(row, "pictures", out, code_digest, clock)
    print(f"{row.row}: {len(figures)} pictures drawn")


def _perturbations(out: Path, rules: PicturesSpec, shown, attacked, labels: list[int], said: list[int]) -> Picture:
    """Figures 11 and 13: images, perturbations as grey values, images attacked."""
    moved = grey(rescaled(attacked - shown, rules.eps))
    pairs = ", ".join(f"{label} ({answer})" for label, answer in zip(labels, said, strict=False))
    return _picture(
        out,
        "perturbations",
        [shown, moved, attacked],
        title=f"Perturbations, Linf {rules.eps:g}",
        alt=f"Three rows of {len(shown)} images: clean, their perturbation in grey, and attacked.",
        caption=f"PGD of {rules.steps} steps from a random start, Linf {rules.eps:g}. Rows: the clean image, the "
        "perturbation, the sum. In the middle row mid-grey is no change, black and white the whole radius; shapes of the "
        f"image seen there are what the model looks at. Label, and in brackets what the model says at last: {pairs}.",
    )


def _accumulated(out: Path, rules: PicturesSpec, model, row: Entry, radius: float, device: torch.device) -> Picture:
    """Figures 12 and 14: noise, and noise after PGD towards random classes."""
    data, threat = row.track.data, ThreatModel(norm="L2", eps=radius)
    starts, targets = (t.to(device) for t in noise(data.shape, data.classes, rules.images, rules.seed))
    found = accumulated(model, starts, targets, threat, steps=rules.steps)
    scores = logits(model, found, row.track.evaluation.batch_size).softmax(1)
    sure = scores.gather(1, targets[:, None])[:, 0].tolist()
    pairs = ", ".join(f"{target} ({100 * share:.0f}%)" for target, share in zip(targets.tolist(), sure, strict=True))
    return _picture(
        out,
        f"accumulated_{radius:g}".replace(".", "_").replace("-", "_").replace("+", "_"),
        [starts, found],
        title=f"Accumulated gradients, l2 {radius:g}",
        alt=f"Two rows of {len(starts)} images: noise, and the same after moving towards a class.",
        caption=f"Uniform noise, and the same after PGD of {rules.steps} steps towards a class, l2 {radius:g}. The class, "
        f"and how sure of it the model is at last: {pairs}.",
    )


def _picture(out: Path, name: str, rows: list[torch.Tensor], **words: str) -> Picture:
    data = png(rows)
    files.write(out / f"{name}.png", data)
    return Picture(file=f"{name}.png", sha256=files.sha256_bytes(data), **words)


if __name__ == "__main__":
    errors.run(lambda: pictures_row(*sys.argv[1:]))
