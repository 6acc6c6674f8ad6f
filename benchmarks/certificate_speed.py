"""Speed and yield of the certificate cascade, its last step alone, and the published formula, on the same images.

    python benchmarks/certificate_speed.py PATH_TO_CIFAR10_PARQUET [images]

Three blocks, width 128, patch 16 (4 tokens), 8 heads, norms of W_Q and W_K 4, of W_V and W_O 0.25; trained for 6 epochs on
CIFAR-10 (about 2 minutes, kept in work/benchmarks). The published formula is Theorem 1 of Havens et al. 2024 with the
appendix's score map, composed with 1-Lipschitz steps elsewhere and sqrt(2) at the head. One thread, medians of 3 runs (the
full method: one run over all images).
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
from safetensors.torch import load_file, save_file
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.certificates.local import by_both, certified_at, dear_traces, disproved, quickly, right  # noqa: E402
from benchmark.certificates.lofast import attention_sensitivity  # noqa: E402
from benchmark.certificates.trace import checked_copy, trace  # noqa: E402
from benchmark.data import parquet  # noqa: E402
from benchmark.layers.attention import ResidualAttention  # noqa: E402
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock  # noqa: E402
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions  # noqa: E402
from benchmark.records import DataSpec  # noqa: E402
from benchmark.training.margin import Margin  # noqa: E402

KEPT = ROOT / "work" / "benchmarks" / "certificate_speed.safetensors"
RADII = (0.02, 0.05, 0.1)
PAPER = 100


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    data = parquet.read(DataSpec(source="parquet", path=sys.argv[1], validation=1, shape=(3, 32, 32), classes=10))
    model = trained(data["train"])
    images = torch.from_numpy(data["test"].floats())[:count]
    labels = torch.from_numpy(data["test"].labels)[:count]
    clean = (model(images).argmax(1) == labels).double().mean()
    print(f"{platform.machine()}, {os.cpu_count()} cores, one thread; {count} test images, clean {100 * clean:.1f}%\n")
    print("| radius | method | certified % | ms an image |")
    print("|---|---|---|---|")
    for radius in RADII:
        verdict, cascade = timed(lambda r=radius: certified_at(model, images, labels, r), runs=3)
        published, paper_ms = timed(lambda r=radius: paper(model, images[:PAPER], labels[:PAPER], r), runs=3)
        both, full_ms = timed(lambda r=radius: full(model, images, labels, r), runs=1)
        assert torch.equal(verdict, both), "the cascade and the full method disagree"
        for name, found, ms in (
            ("cascade", verdict, cascade),
            ("full method alone", both, full_ms),
            ("published formula", published, paper_ms),
        ):
            print(
                f"| {radius} | {name} | {100 * float(found.double().mean()):.1f} | {ms / len(found):.2f} |", flush=True
            )
        network = checked_copy(model)
        left = (~quickly(trace(network, images, labels), torch.full((count,), radius).double())).nonzero()[:, 0]
        standing = left[~disproved(network, images[left], labels[left], radius)]
        upper = 100 * (count - len(left) + len(standing)) / count
        print(f"| {radius} | not disproved by descent | {upper:.1f} | |", flush=True)
    print(f"\nPeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB, data included.")


def timed(call: Callable[[], torch.Tensor], runs: int) -> tuple[torch.Tensor, float]:
    """The call's result and its median time in milliseconds."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        result = call()
        times.append(1e3 * (time.perf_counter() - started))
    return result, statistics.median(times)


def full(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, radius: float) -> torch.Tensor:
    """The last step of the cascade on every image that is right."""
    network = checked_copy(model)
    verdict = torch.zeros(len(images), dtype=torch.bool)
    for part, traced in dear_traces(network, images, labels, right(network, images, labels)):
        traced.around = torch.full((len(part),), radius, dtype=torch.float64)
        verdict[part] = by_both(traced, traced.around)
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


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [Patchify(16), BoundedLinear(768, 128), Positions(4, 128)]
    for _ in range(3):
        layers += [LayerProject(1.0), ResidualAttention(128, 8, qk_norm=4.0, vo_norm=0.25), SLLBlock(128, 256)]
    return nn.Sequential(*layers, MeanPool(), NormalisedHead(128, 10))


def trained(data: parquet.Images, epochs: int = 6, batch: int = 128) -> nn.Sequential:
    model = network()
    if not KEPT.exists():
        pixels, labels = torch.from_numpy(data.pixels), torch.from_numpy(data.labels)
        objective = Margin(0.15, 20.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
        steps = epochs * (len(labels) // batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        for epoch in range(epochs):
            order = torch.randperm(len(labels))
            for rows in order[: len(order) // batch * batch].split(batch):
                x = pixels[rows].float() / 255
                x = x.flip(3) if torch.rand(()) < 0.5 else x
                optimizer.zero_grad()
                objective.loss(model, x, labels[rows], 1.0).backward()
                optimizer.step()
                schedule.step()
            print(f"epoch {epoch + 1} of {epochs}", file=sys.stderr, flush=True)
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), KEPT)
    model.load_state_dict(load_file(KEPT))
    return model.eval().requires_grad_(False)


if __name__ == "__main__":
    main()
