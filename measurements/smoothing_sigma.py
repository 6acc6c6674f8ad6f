"""Which deviation of the noise suits a track: certified accuracy of the smoothed rows on its validation images.

    python measurements/smoothing_sigma.py digits 0.1 0.15 0.2 0.25 0.3

For trained rows (`rvb repro` before) and the track's other smoothing rules. The test images are not looked at.
"""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.certificates.smoothing import smooth
from benchmark.data.images import load_split
from benchmark.loading import submissions, tracks
from benchmark.loading.rows import load_row
from benchmark.loading.trained import tensors, trained_model
from benchmark.runtime.torch_setup import set_up


def main(track_name: str, sigmas: list[float]) -> None:
    device, track = set_up("cpu"), tracks.load(track_name)
    if track.smoothing is None:
        sys.exit(f"error: track {track_name} declares no smoothing")
    print(f"{platform.machine()}, one thread; {track.smoothing.model_dump(exclude={'sigma'})}")
    print(
        f"| sigma | row | right | {' | '.join(f'{r:g}' for r in track.certified_radii)} | samples an image | seconds |"
    )
    print("|---|---|---|" + "---|" * len(track.certified_radii) + "---|---|")
    for sigma in sigmas:
        rules = track.smoothing.model_dump() | {"sigma": sigma, "batch_size": track.evaluation.batch_size}
        certified = []
        for submission, variant in submissions.rows(track_name):
            row = load_row(track_name, f"{submission.name}-{variant}")
            images, labels = tensors(load_split(row.data, "validation"))
            started = time.perf_counter()
            found = smooth(trained_model(row, device), images, range(len(labels)), track.certified_radii, **rules)
            seconds = time.perf_counter() - started
            correct = found.prediction == labels
            shares = [float((correct & (found.radius >= radius)).double().mean()) for radius in track.certified_radii]
            certified += shares
            numbers = " | ".join(f"{100 * share:.1f}" for share in (float(correct.double().mean()), *shares))
            print(f"| {sigma:g} | {row.name} | {numbers} | {float(found.spent.double().mean()):.0f} | {seconds:.0f} |")
        print(f"| {sigma:g} | mean over rows and radii | | {100 * torch.tensor(certified).mean():.1f} |" + " |" * 4)


if __name__ == "__main__":
    main(sys.argv[1], [float(sigma) for sigma in sys.argv[2:]])
