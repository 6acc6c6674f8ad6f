"""Trying to break the smoothed radii of trained rows: attacks on the smoothed classifier itself, at its certified radii.

    python measurements/smoothing_soundness.py digits 40

For each row, that many evaluation images with a certified radius, largest radii last. Two tries an image, with fresh noise:
the class's probability at the image again, from 20,000 samples (a radius is refuted when even the upper bound at 1e-6 gives a
smaller one); and gradient ascent on the smoothed softmax (SmoothAdv, Salman et al. 2019: 64 noises, 40 steps) to the radius,
not kept to the box, then 20,000 samples there (refuted when another class leads at 1e-6).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from scipy.special import ndtr
from scipy.stats import beta, binomtest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.loading import submissions, tracks
from benchmark.loading.rows import load_row
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.runtime.torch_setup import set_up

SAMPLES, NOISES, STEPS, LEVEL = 20_000, 64, 40, 1e-6


def main(track_name: str, most: int) -> None:
    device, track = set_up("cpu"), tracks.load(track_name)
    if track.smoothing is None:
        sys.exit(f"error: track {track_name} declares no smoothing")
    rng, sigma = torch.Generator().manual_seed(1), track.smoothing.sigma
    print(
        "| row | images | radii | refuted by p | refuted by attack | least share of the class at the image, attacked |"
    )
    print("|---|---|---|---|---|---|")
    for submission, variant in submissions.rows(track_name):
        row = load_row(track_name, f"{submission.name}-{variant}")
        model, (images, _) = trained_model(row, device), evaluation_images(row, device)
        evidence = pq.read_table(row.folder / "record" / "evidence.parquet").to_pydict()
        radii, classes = np.array(evidence["smoothed_l2"]), evidence["smoothed_prediction"]
        chosen = [int(i) for i in np.argsort(radii) if radii[i] > 0][-most:]
        refuted, broken, shares, attacked = 0, 0, [], []
        for i in chosen:
            counts = votes(model, images[i], sigma, rng)
            count = int(counts[classes[i]])
            upper = beta.ppf(1 - LEVEL, count + 1, SAMPLES - count) if count < SAMPLES else 1.0
            refuted += bool(upper < ndtr(radii[i] / sigma))
            shares.append(count / SAMPLES)
            counts = votes(model, attack(model, images[i], classes[i], radii[i], sigma, rng), sigma, rng)
            rivals = counts.clone()
            rivals[classes[i]] = 0
            count, rival = int(counts[classes[i]]), int(rivals.max())
            broken += binomtest(rival, count + rival, alternative="greater").pvalue < LEVEL
            attacked.append(count / SAMPLES)
        spread = f"{radii[chosen].min():.3f}-{radii[chosen].max():.3f}"
        least = f"{min(shares):.4f}, {min(attacked):.4f}"
        print(f"| {row.name} | {len(chosen)} | {spread} | {refuted} | {broken} | {least} |", flush=True)


@torch.no_grad()
def votes(model: torch.nn.Module, image: torch.Tensor, sigma: float, rng: torch.Generator) -> torch.Tensor:
    """Predictions on fresh noisy copies, by class."""
    total = torch.zeros(1, dtype=torch.int64)
    for _ in range(SAMPLES // 500):
        logits = model(image + sigma * torch.randn(500, *image.shape, generator=rng))
        total = total + torch.bincount(logits.argmax(1), minlength=logits.shape[1])
    return total


def attack(
    model: torch.nn.Module, image: torch.Tensor, label: int, radius: float, sigma: float, rng: torch.Generator
) -> torch.Tensor:
    """The image moved by just under `radius` against the smoothed softmax of `label`."""
    moved, step = torch.zeros_like(image), radius / 8
    for _ in range(STEPS):
        moved.requires_grad_()
        noisy = image + moved + sigma * torch.randn(NOISES, *image.shape, generator=rng)
        loss = model(noisy).softmax(1)[:, label].mean().log()
        (slope,) = torch.autograd.grad(loss, moved)
        moved = moved.detach() - step * slope / slope.norm().clamp(min=1e-12)
        moved = moved * min(1.0, radius * (1 - 1e-6) / float(moved.norm()))
    return image + moved


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
