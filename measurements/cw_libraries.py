"""Carlini and Wagner's attack, this project's (foolbox's) and two other libraries' with the same constant, steps and rate.

    pip install --no-deps cleverhans==4.0.0 torchattacks==3.5.1
    python measurements/cw_libraries.py <row> [steps]

On the row's own network (`rvb repro <row>` first) and its first 100 evaluation images, as they are and with their contrast
lowered, so that no pixel is 0 or 1: how many each breaks, at which mean l2 distance over the images that all three break, and
how many of its images hold NaN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmark.runtime import arithmetic

arithmetic.fix("portable")

import torch
import torchattacks
from cleverhans.torch.attacks.carlini_wagner_l2 import carlini_wagner_l2

from benchmark.attacks import cw
from benchmark.loading.rows import load_row
from benchmark.loading.trained import evaluation_images, trained_model
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.threat import ThreatModel

RATE, CONSTANT = 0.01, 1.0
Attack = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def main() -> None:
    row, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
    set_up("cpu")
    loaded, device = load_row("digits", row), torch.device("cpu")
    model = trained_model(loaded, device)
    images, labels = (t[:100] for t in evaluation_images(loaded, device))
    print(f"{row}, {steps} steps of {RATE}, c = {CONSTANT}\n")
    print("| images | attack | broken | by all three | mean l2 of those | images with NaN |\n|---|---|---|---|---|---|")
    for name, x in (("as they are", images), ("of 0.1 to 0.9", 0.1 + 0.8 * images)):
        compare(name, model, x, labels, steps)


def compare(name: str, model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int) -> None:
    classes = model(images[:1]).shape[1]
    anywhere = ThreatModel(norm="L2", eps=images[0].numel() ** 0.5)
    attacks: dict[str, Attack] = {
        "this project's": partial(cw.attack, model, threat=anywhere, seed=0, steps=steps, step_size=RATE, c=CONSTANT),
        "cleverhans": lambda x, y: carlini_wagner_l2(
            model, x, classes, y=y, lr=RATE, initial_const=CONSTANT, binary_search_steps=1, max_iterations=steps
        ),
        "torchattacks": torchattacks.CW(model, c=CONSTANT, steps=steps, lr=RATE),
    }
    right = model(images).argmax(1) == labels
    found = {who: attack(images, labels) for who, attack in attacks.items()}
    broken = {who: right & (model(x).argmax(1) != labels) & x.flatten(1).isfinite().all(1) for who, x in found.items()}
    by_all = torch.stack(list(broken.values())).all(0)
    for who, x in found.items():
        distance = (x.double() - images.double()).flatten(1).norm(dim=1)[by_all].mean()
        nan = int(x.flatten(1).isnan().any(1).sum())
        print(
            f"| {name} | {who} | {int(broken[who].sum())} | {int(by_all.sum())} | {distance:.4f} | {nan} |", flush=True
        )


if __name__ == "__main__":
    main()
