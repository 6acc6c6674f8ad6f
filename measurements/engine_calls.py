"""What the fast engine's quicker calls of a vision transformer give: forward and gradient, by its size.

    python measurements/engine_calls.py [repeats]

Three sides in turn, in this process, one thread, the same images and random weights: the model untouched, with plain products
for attention and patch embedding, and with its last block for the class token alone as well. CPU milliseconds of a call,
medians.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from timm.models.vision_transformer import VisionTransformer

from benchmark.attacks.engine import fused_ops
from benchmark.attacks.engine.fused_ops import FusedOps
from benchmark.attacks.engine.slots import Search
from benchmark.runtime.torch_setup import set_up

# side, channels, patch, width, blocks, heads, images in a call
SIZES = ((8, 1, 2, 32, 2, 4, 128), (32, 3, 4, 192, 6, 3, 32), (32, 3, 4, 192, 12, 3, 32))
SIDES = ("untouched", "products", "class token too")


class Untouched(FusedOps):
    """Replaces nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def milliseconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return 1e3 * (time.process_time() - begun)


def whole(side: str) -> AbstractContextManager:
    """While it is entered, a side without the class token asks for all tokens."""
    return (
        nullcontext() if side == SIDES[2] else mock.patch.object(fused_ops, "class_token_suffices", return_value=False)
    )


def measure(size: tuple[int, ...], repeats: int) -> None:
    side, channels, patch, width, blocks, heads, n = size
    torch.manual_seed(0)
    model = VisionTransformer(side, patch, channels, 10, embed_dim=width, depth=blocks, num_heads=heads)
    model.eval().requires_grad_(False)
    images = torch.rand(n, channels, side, side)
    search = Search(model, images, torch.zeros(n).long(), list(range(n)), "L2", 0.5, 0, n)
    took: dict[tuple[str, str], list[float]] = {}
    for repeat in range(repeats):
        for name in SIDES[:: 1 if repeat % 2 else -1]:
            search._fused_ops = Untouched() if name == SIDES[0] else FusedOps()
            with whole(name):
                search.logits(images[:8])  # what is looked up once
                forward = milliseconds(lambda: search.logits(images))
                gradient = milliseconds(lambda: search.gradient(images, lambda logits: logits[:, 0] - logits[:, 1]))
            took.setdefault((name, "forward"), []).append(forward)
            took.setdefault((name, "gradient"), []).append(gradient)
    for call in ("forward", "gradient"):
        medians = [statistics.median(took[name, call]) for name in SIDES]
        ratios = [f"{medians[0] / median:.2f}" for median in medians[1:]]
        label = f"{side}x{side}x{channels}, patch {patch}, width {width}, {blocks} blocks, {n} images"
        print(f"| {label} | {call} | {' | '.join(f'{m:.2f}' for m in medians)} | {' | '.join(ratios)} |", flush=True)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    set_up("cpu")
    torch.set_num_threads(1)
    print(f"{platform.machine()}, {os.cpu_count()} cores, one thread; {repeats} repeats; torch {version('torch')}\n")
    print(f"| model | call | {' ms | '.join(SIDES)} ms | untouched / products | untouched / class token too |")
    print("|---|---|---|---|---|---|---|")
    for size in SIZES:
        measure(size, repeats)


if __name__ == "__main__":
    main()
