"""What attention's content does in the published rows of a track: a table.

    python measurements/attention_patterns.py [track]

The track is cifar10_jpeg unless given; its data step has to have run. Clean accuracy on its evaluation images in percent, and
the points of it that are lost when every attention averages uniformly, is left out, mixes by its mean pattern over 1,000
training images, or by another image's. Rows whose weights are published; those without attention are left out. One thread.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import benchmark
from benchmark.attacks.prediction import logits
from benchmark.attacks.replaced_attention import mean_patterns, patterns, predictions_with, predictions_with_patterns
from benchmark.data.tensors import training_images
from benchmark.specs.rows import load_row

TRAINING_IMAGES = 1000


def main() -> None:
    torch.set_num_threads(1)
    track = (sys.argv[1:] or ["cifar10_jpeg"])[0]
    images, labels = benchmark.load_images(track)
    print("| row | clean | uniform costs | none costs | mean pattern costs | another image's costs |")
    print("|---|---|---|---|---|---|")
    for name in benchmark.list_models(track):
        model, row = benchmark.load_model(name, track), load_row(track, name)
        size = row.track.evaluation.batch_size
        if not patterns(model, images[:size]):
            continue
        means = mean_patterns(model, training_images(row.data, TRAINING_IMAGES), size)
        changed = [predictions_with(weights, model, images, size) for weights in ("uniform", "none")]
        changed += [predictions_with_patterns(given, model, images, size) for given in (means, None)]
        clean, *others = (
            100 * float((classes == labels).double().mean())
            for classes in (logits(model, images, size).argmax(1), *changed)
            if classes is not None
        )
        print(f"| `{name}` | {clean:.1f} | {' | '.join(f'{clean - other:.1f}' for other in others)} |", flush=True)


if __name__ == "__main__":
    main()
