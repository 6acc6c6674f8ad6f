"""Perturbations as images (Debenedetti 2022, section 4.3, Figures 11 to 14, Table 9; Engstrom et al. 2019)."""

from __future__ import annotations

import io

import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torchvision.utils import make_grid

from benchmark.attacks import pgd
from benchmark.attacks.ball import into_ball
from benchmark.specs.threat import ThreatModel

STRIDE = 2.5  # step size in radii, divided by the number of steps (Madry et al. 2018; the thesis names none)
CELL = 48  # small images are drawn larger, by a whole factor, up to this many pixels a side
GAP = 2  # pixels between the images of a grid
GREY = (0.299, 0.587, 0.114)  # ITU-R 601, as PIL converts


def perturbed(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel, *, steps: int = 100, seed: int = 0
) -> torch.Tensor:
    """Return images (n, c, h, w) in [0, 1] after PGD from a random start, whether or not the prediction changed."""
    step = STRIDE * threat.eps / steps
    adversarial = pgd.attack(model, images, labels, threat, seed=seed, steps=steps, step_size=step)
    return into_ball(adversarial, images, threat, "pgd")


def rescaled(perturbations: torch.Tensor, eps: float) -> torch.Tensor:
    """Return perturbations in [-eps, eps] as images in [0, 1]: (delta + eps) / (2 eps), so that 0 is mid-grey."""
    return ((perturbations + eps) / (2 * eps)).clamp(0, 1)


def grey(images: torch.Tensor) -> torch.Tensor:
    """Return images (n, 3, h, w) in grey, (n, 1, h, w); other numbers of channels are averaged."""
    if images.shape[1] == 3:
        return (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    return images.mean(1, keepdim=True)


def noise(shape: tuple[int, int, int], classes: int, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` images (n, c, h, w) of uniform noise in [0, 1] and classes (n,), each class once before one repeats."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.rand(count, *shape, generator=generator)
    rounds = [torch.randperm(classes, generator=generator) for _ in range(-(-count // classes))]
    return starts, torch.cat(rounds)[:count]


def accumulated(
    model: nn.Module, starts: torch.Tensor, targets: torch.Tensor, threat: ThreatModel, *, steps: int = 100
) -> torch.Tensor:
    """Return `starts` (n, c, h, w) moved by PGD towards the classes `targets` (n,): the model's accumulated gradients."""

    def likelier(logits: torch.Tensor) -> torch.Tensor:
        return -functional.cross_entropy(logits, targets, reduction="sum")

    step = STRIDE * threat.eps / steps
    moved = pgd.attack(
        model, starts, targets, threat, seed=None, steps=steps, step_size=step, random_start=False, loss=likelier
    )
    return into_ball(moved, starts, threat, "pgd")


def png(rows: list[torch.Tensor]) -> bytes:
    """Return a PNG of a grid of `rows` on white, each (n, c, h, w) in [0, 1] with the same n, h and w and c of 1 or 3.

    The same pixels give the same bytes. A lone image has no margin. Raise a ValueError for other rows.
    """
    if not rows or any(row.shape[0] != rows[0].shape[0] or row.shape[2:] != rows[0].shape[2:] for row in rows):
        raise ValueError("a grid needs rows of as many images of the same size")
    if any(row.shape[1] not in (1, 3) for row in rows):
        raise ValueError("a grid is drawn of images with 1 or 3 channels")
    channels = max(row.shape[1] for row in rows)
    factor = max(1, CELL // max(rows[0].shape[2:]))
    images = torch.cat([row.cpu().expand(-1, channels, -1, -1) for row in rows]).clamp(0, 1)
    pixels = (images * 255).round().to(torch.uint8).repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    sheet = make_grid(pixels, nrow=len(rows[0]), padding=GAP, pad_value=255)[:channels]
    array = sheet.permute(1, 2, 0).contiguous().numpy()
    data = io.BytesIO()
    Image.fromarray(array[..., 0] if channels == 1 else array).save(data, "PNG", compress_level=9)
    return data.getvalue()
