"""Tries to break the network certificate: adversarial trials over random networks, each certified and then attacked.

    python measurements/network_soundness.py 100000 [first seed]

A network (tests/support/tiny_networks.py: depth 1 to 3, 1 to 8 heads, 2 to 65 tokens, norms 0.1 to 10, a third of them
extreme) is one seed, the same whatever came before it, so that a run may be cut into pieces; every 20 networks print
where they are.
Two kinds of trial. Ball: a class is made the label by its bias, at one of three margins; up to 32 images are certified and
each certified image's margin over every rival is descended in float64 inside its ball, box or no box; the label must stand.
Plant: the head's biases are set so that
an image found by ascent is an adversarial example at a known distance (benchmark/evaluation/audit.py); the
certificate must not reach it. Prints trials, violations by kind, and how near they came.
"""

from __future__ import annotations

import copy
import os
import platform
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]
warnings.simplefilter("ignore", FutureWarning)

from tiny_networks import Draw, random_network

from benchmark.certificates.local import certify
from benchmark.evaluation.audit import lower_margins, plants
from benchmark.evaluation.audit_layers import float64_copy

LEVELS = 3
STARTS = 2


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.set_num_threads(1)
    started, tally, nearest = time.perf_counter(), Counter(), {"ball": 0.0, "plant": 0.0}
    while tally["ball"] + tally["plant"] < wanted:
        extreme = trial(seed, tally, nearest)
        tally[f"networks, {extreme or 'ordinary'}"] += 1
        seed += 1
        if (seed - first) % 20 == 0:
            print(f"next seed {seed}: {dict(tally)}, nearest {nearest}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - started
    print(f"{platform.machine()}, {os.cpu_count()} cores, one thread; seeds {first} to {seed - 1} in {seconds:.0f} s")
    print(
        f"violations: {tally['ball violated']} of {tally['ball']} balls, {tally['plant violated']} of {tally['plant']} plants"
    )
    print(
        f"nearest: {nearest['ball']:.6f} of the margin lost in a ball, {nearest['plant']:.6f} of a plant's distance certified"
    )
    for name, count in sorted(tally.items()):
        if name.startswith("networks"):
            print(f"{name}: {count}")


def trial(seed: int, tally: Counter[str], nearest: dict[str, float]) -> str:
    """All trials of one network; returns which extreme it was."""
    model, images, extreme = random_network(seed)
    draw = Draw(seed + 10**9)
    classes = len(model[-1].bias)
    label = draw.integer(0, classes - 1)
    labels = torch.full((len(images),), label)
    for _ in range(LEVELS):
        balls(model, images, labels, draw, tally, nearest, seed)
    rivals = (labels + 1 + torch.arange(len(labels)) % (classes - 1)) % classes
    radii = torch.tensor([draw.scale(-2.5, 0.3) for _ in labels], dtype=torch.float64)
    for plant in plants(model, images[:2], labels[:2], rivals[:2], radii[:2], steps=25, seed=seed):
        one = slice(plant.image, plant.image + 1)
        share = float(certify(plant.model, images[one], labels[one])) / plant.distance
        tally["plant"] += 1
        nearest["plant"] = max(nearest["plant"], share)
        if not share < 1:
            tally["plant violated"] += 1
            print(f"VIOLATION: seed {seed} ({extreme}), plant {plant.image}: {share:.9g}", flush=True)
    return extreme


def balls(
    model: torch.nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    draw: Draw,
    tally: Counter[str],
    nearest: dict[str, float],
    seed: int,
) -> None:
    model = copy.deepcopy(model)
    network = float64_copy(model)
    logits = network(images.double())
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    shift = float((others - logits.gather(1, labels[:, None])[:, 0]).median()) + draw.scale(-3, 0.5)
    model[-1].bias.data[labels[0]] += shift
    radii = certify(model, images, labels)
    network = float64_copy(model)
    chosen = (radii > 0).nonzero()[:, 0]
    classes = logits.shape[1]
    if not len(chosen):
        return
    each = chosen.repeat_interleave((classes - 1) * STARTS)
    rivals = torch.tensor([j for j in range(classes) if j != int(labels[0])]).repeat(len(chosen) * STARTS)
    x, y = images[each].double(), labels[each]
    fall, _ = lower_margins(network, x, y, rivals, radii[each] * (1 - 1e-12), steps=25, seed=seed, box=False)
    logits = network(x)
    clean = (logits.gather(1, y[:, None]) - logits.gather(1, rivals[:, None]))[:, 0]
    rounding = 1e-12 * (1 + logits.abs().amax(1))
    share = (fall - rounding) / clean
    tally["ball"] += len(chosen)
    nearest["ball"] = max(nearest["ball"], float(share.max()))
    if float(share.max()) > 1:
        tally["ball violated"] += 1
        worst = int(share.argmax())
        place = f"image {int(each[worst])}, radius {float(radii[each[worst]]):.9g}"
        print(f"VIOLATION: seed {seed}, {place}: {float(share[worst]):.12g} of the margin lost", flush=True)


if __name__ == "__main__":
    main()
