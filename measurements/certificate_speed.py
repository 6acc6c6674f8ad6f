"""Speed and yield of the certificate cascade, its last step alone, and the published formula, on the same images.

    python measurements/certificate_speed.py [images] [epochs] [depth ...]

Havens2024LoFAST's mean_pool on the track cifar10_jpeg (real CIFAR-10 images re-encoded as JPEG; its data stage has to have
run) with 3, 4 and 5 blocks, as in tables 1 and 2 of Havens et al. 2024: the row's own weights where its train stage has run
and the depth is its own, else trained by its recipe for `epochs` epochs (6 unless given; kept in work/benchmarks). The
published formula is Theorem 1 with the appendix's score map, composed with 1-Lipschitz steps elsewhere and sqrt(2) at the
head. One thread, medians of 3 runs (the full method: one run over all images).
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save_file
from torch import nn

from benchmark.specs import methods

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.bounds.sensitivity import attention_sensitivity
from benchmark.certificates.local import by_both, certified_at, composing, correct, disproved, tight_bounds
from benchmark.data.images import load_split
from benchmark.data.tensors import evaluation_images, tensors
from benchmark.layers.attention import ResidualAttention
from benchmark.specs.rows import Row, load_row
from benchmark.specs.submission import VariantOnTrack
from benchmark.training import margin
from benchmark.training.augment import Augment
from benchmark.training.loop import train
from benchmark.training.steps import Steps

KEPT = Path("work/benchmarks")
RADII = (0.02, 0.05, 0.1, 0.1412)  # the paper's, and 36/255 rounded up
PAPER = 100
FULL = 200


def main() -> None:
    torch.set_num_threads(1)
    os.chdir(ROOT)
    count, epochs, *depths = [int(word) for word in sys.argv[1:]] + [1000, 6][len(sys.argv) - 1 :]
    row = load_row("cifar10_jpeg", "Havens2024LoFAST-mean_pool")
    images, labels = (t[:count] for t in evaluation_images(row, torch.device("cpu")))
    print(f"{platform.machine()}, {os.cpu_count()} cores, one thread, processor time; {len(labels)} test images\n")
    print("| layers | radius | method | certified % | ms an image |")
    print("|---|---|---|---|---|")
    for depth in depths or (3, 4, 5):
        model, words = trained(row, depth, epochs)
        clean = 100 * (model(images).argmax(1) == labels).double().mean()
        print(f"| {depth} | 0 | clean, {words} | {clean:.1f} | |", flush=True)
        for radius in RADII:
            measured(model, images, labels, radius, depth)
    print(f"\nPeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB, data included.")


def measured(model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, radius: float, depth: int) -> None:
    """Prints the rows of one network at one radius."""
    verdict, cascade = timed(lambda: certified_at(model, images, labels, radius), runs=3)
    published, paper_ms = timed(lambda: paper(model, images[:PAPER], labels[:PAPER], radius), runs=3)
    both, full_ms = timed(lambda: full(model, images[:FULL], labels[:FULL], radius), runs=1)
    assert torch.equal(verdict[:FULL], both), "the cascade and the full method disagree"
    for name, found, ms in (
        ("cascade", verdict, cascade),
        (f"full method alone, {len(both)} images", both, full_ms),
        (f"published formula, {len(published)} images", published, paper_ms),
    ):
        share = 100 * float(found.double().mean())
        print(f"| {depth} | {radius} | {name} | {share:.1f} | {ms / len(found):.2f} |", flush=True)
    network = checked_copy(model)
    quickly = composing(bound_network(network, images, labels), quick=True)
    left = (~quickly(torch.full((len(labels),), radius, dtype=torch.float64))).nonzero()[:, 0]
    standing = left[~disproved(network, images[left], labels[left], radius)]
    upper = 100 * (len(labels) - len(left) + len(standing)) / len(labels)
    print(f"| {depth} | {radius} | not disproved by descent | {upper:.1f} | |", flush=True)


def timed(call: Callable[[], torch.Tensor], runs: int) -> tuple[torch.Tensor, float]:
    """The call's result and its median time in milliseconds of the processor, which other work leaves alone."""
    times = []
    for _ in range(runs):
        started = time.process_time()
        result = call()
        times.append(1e3 * (time.process_time() - started))
    return result, statistics.median(times)


def full(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, radius: float) -> torch.Tensor:
    """The last step of the cascade on every image that is right."""
    network = checked_copy(model)
    verdict = torch.zeros(len(images), dtype=torch.bool)
    for part, bounded in tight_bounds(network, images, labels, correct(network, images, labels)):
        bounded.relaxation_radius = torch.full((len(part),), radius, dtype=torch.float64)
        verdict[part] = by_both(bounded, bounded.relaxation_radius)
    return verdict


@torch.no_grad()
def paper(model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, radius: float) -> torch.Tensor:
    network = checked_copy(model)
    verdicts = []
    for x, y in zip(images.double().split(50), labels.split(50), strict=True):
        delta = torch.full((len(x),), radius, dtype=torch.float64)
        for layer in network[:-1]:
            if isinstance(layer, ResidualAttention):
                delta = attention_sensitivity(x, *layer.head_weights()).bound(delta, "paper")
            x = layer(x)
        logits = network[-1](x)
        lead = logits.gather(1, y[:, None])[:, 0] - logits.scatter(1, y[:, None], -torch.inf).amax(1)
        verdicts.append(lead > 2**0.5 * delta / 4**0.5)  # the mean over 4 tokens
    return torch.cat(verdicts)


def trained(row: Row, depth: int, epochs: int) -> tuple[nn.Sequential, str]:
    """mean_pool with `depth` blocks, frozen, and how it was trained in words."""
    own = row.settings.model["depth"] == depth
    settings = row.settings.model_copy(update={"model": {**row.settings.model, "depth": depth}})
    torch.manual_seed(0)
    model = build(row, settings)
    path = row.folder / "train" / "model.safetensors"
    words = f"{settings.training.epochs} epochs"
    if not own or not path.exists():
        path, words = KEPT / f"certificate_speed-{depth}-{epochs}.safetensors", f"{epochs} epochs"
    if not path.exists():
        spec, rules = settings.training.model_copy(update={"epochs": epochs}), row.track.data
        splits = [tensors(load_split(row.data, part)) for part in ("train", "validation")]
        objective, fabric = margin.objective(None, **spec.parameters), Fabric(accelerator="cpu", devices=1)
        augment = Augment(spec.augmentation, rules.shape, rules.classes)
        best, _ = train(
            Steps(model, objective, spec, fabric, splits[0][0][:1], augment=augment),
            *splits,
            seed=0,
            checkpoint=path.with_suffix(".checkpoint"),
            on_epoch=lambda done: print(f"depth {depth}: epoch {done.epoch}", file=sys.stderr, flush=True),
        )
        save_file(best, path)
    model.load_state_dict(load_file(path))
    return model.eval().requires_grad_(False), words


def build(row: Row, settings: VariantOnTrack) -> nn.Sequential:
    variant = row.submission.variants[row.variant]
    changed = variant.model_copy(update={"tracks": {**variant.tracks, row.track.name: settings}})
    others = {**row.submission.variants, row.variant: changed}
    model = methods.build(row.submission.model_copy(update={"variants": others}), row.variant, row.track)
    assert isinstance(model, nn.Sequential)
    return model


if __name__ == "__main__":
    main()
