"""What a trained row's attention does that its mean pattern does not: predictions with either, and the attention's entropy.

    python measurements/mean_patterns.py [row] [track] [validation images]

The row has to be trained in work/. Its mean patterns, over 1,000 training images, keep where heads look and drop what they
see there. Entropy is the mean of rows, over that of the uniform pattern. Validation images alone; one thread.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "measurements")]

from attention_frontier import BATCH, TRAINING_IMAGES, patterns, predicted

from benchmark.data.images import load_split
from benchmark.loading.rows import load_row
from benchmark.loading.trained import tensors
from benchmark.sandbox.load_model import load_model


def main() -> None:
    torch.set_num_threads(1)
    os.chdir(ROOT)
    given = sys.argv[1:]
    name, track, count = given + ["Havens2024LoFAST-grid_attention", "cifar10_jpeg", "1000"][len(given) :]
    data, model = load_row(track, name).data, load_model(name, track)
    images, labels = (t[: int(count)] for t in tensors(load_split(data, "validation")))
    with patterns() as mode:
        predicted(model, tensors(load_split(data, "train"))[0][:TRAINING_IMAGES])
        means = mode.means(TRAINING_IMAGES // BATCH)
    if not means:
        sys.exit(f"{name} has no attention")
    with patterns() as mode:
        own = predicted(model, images)
        entropy = mode.entropy()
    with patterns(means):
        mean = predicted(model, images)
    right = [100 * float((of == labels).double().mean()) for of in (own, mean)]
    print(f"{name}, {len(labels)} validation images: {right[0]:.1f}% right, {right[1]:.1f} with its mean patterns")
    print(f"{int((own != mean).sum())} predictions change; entropy {entropy:.4f} of the uniform pattern's")


if __name__ == "__main__":
    main()
