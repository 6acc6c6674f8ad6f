"""Seconds for the Jacobians of encoder blocks, and how far their largest singular values are from a float64 SVD.

    python measurements/block_jacobians.py 500

timm's ViT of depth 4, width 32 and 17 tokens (544 entries a block) with torch's initial weights, on digits; one thread.
Seconds are the process's own, since other work may run beside it. `rows` compares ways of forming one Jacobian.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.layers import encoder_jacobian as jacobian
from benchmark.layers.encoder_blocks import BlockInput, block_inputs, default_blocks
from benchmark.layers.vit import vision_transformer
from benchmark.runtime import arithmetic
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.data import DataSpec

DEPTH, WIDTH, PATCH, CHECKED, REPEATS = 4, 32, 2, 10, 20


def main(count: int) -> None:
    set_up("cpu")
    torch.manual_seed(0)
    data = DataSpec(source="digits", seed=0, validation=200, test=400, shape=(1, 8, 8), classes=10)
    model = vision_transformer(data, patch_size=PATCH, width=WIDTH, depth=DEPTH, heads=4).eval().requires_grad_(False)
    images = torch.tensor(load_digits().images[:count, None] / 16, dtype=torch.float32)
    blocks = default_blocks(model)
    words = f"{platform.machine()}, one thread, torch {torch.__version__}, {arithmetic.in_force()} arithmetic"
    print(f"{words}; {len(images)} images, {DEPTH} blocks, one run\n")
    print("| quantities | CPU seconds | wall seconds |\n|---|---|---|", flush=True)
    three = ("sigma_max", "residual_gain", "log_norm")
    for asked, encoder in (((three[0],), False), (three, False), (jacobian.QUANTITIES, True)):
        spent, started = time.process_time(), time.perf_counter()
        found = jacobian.amplification(model, blocks, images, quantities=asked, encoder=encoder)
        seconds = f"{time.process_time() - spent:.1f} | {time.perf_counter() - started:.1f}"
        print(f"| {', '.join(asked)}{', encoder' * encoder} | {seconds} |", flush=True)
    worst = max(
        abs(float(block.values["sigma_max"][i]) / _svd(inputs, i) - 1)
        for block, inputs in zip(found.blocks, block_inputs(model, blocks, images[:CHECKED]), strict=True)
        for i in range(len(inputs.tokens))
    )
    print(f"\nsigma_max against a float64 SVD, {CHECKED} images: {worst:.1e} apart at most, relative")
    assert found.encoder is not None
    medians = [float(values.median()) for values in found.encoder.values()]
    print("encoder, median: norm {:.3g}, product of gains {:.3g}, exp of sum of sigma_max {:.3g}\n".format(*medians))
    _compare_rows(block_inputs(model, blocks, images[:1])[0])


def _svd(block: BlockInput, image: int) -> float:
    """sigma_max of the branch by an SVD of the Jacobian of the block in float64."""
    block.module.double()
    tokens = block.tokens[image : image + 1].double()
    formed = torch.autograd.functional.jacobian(block.at, tokens).reshape(tokens.numel(), -1)
    block.module.float()
    return float(torch.linalg.svdvals(formed - torch.eye(len(formed), dtype=torch.float64))[0])


def _compare_rows(block: BlockInput) -> None:
    entries = block.tokens.numel()
    eye = torch.eye(entries).view(entries, *block.tokens.shape[1:])

    def copies(count: int) -> None:
        x = block.tokens.expand(count, -1, -1).clone().requires_grad_(True)
        out = block.at(x)
        for part in eye.split(count):
            torch.autograd.grad(out, x, part, retain_graph=True)

    def batched() -> None:
        x = block.tokens.clone().requires_grad_(True)
        torch.autograd.grad(block.at(x), x, eye[:, None], is_grads_batched=True)

    print(f"| one Jacobian of {entries} entries | attention | CPU ms, mean of {REPEATS} |\n|---|---|---|")
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            for count in (entries // 16, entries // 8, entries // 4, entries):
                print(f"| copies, {count} at once | {backend.name} | {_milliseconds(lambda n=count: copies(n)):.1f} |")
            if backend is SDPBackend.MATH:  # the other has no rule for batches
                print(f"| is_grads_batched | {backend.name} | {_milliseconds(batched):.1f} |")


def _milliseconds(run: Callable[[], object]) -> float:
    run()
    spent = time.process_time()
    for _ in range(REPEATS):
        run()
    return 1000 * (time.process_time() - spent) / REPEATS


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
