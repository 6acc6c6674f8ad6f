"""Projection of adversarial images onto their ball and the box [0, 1], and their distance from the clean ones."""

from __future__ import annotations

import torch

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel

NO_FLOAT64 = ("mps",)  # device types
ROUNDING = 1e-12  # float64 rounding of a distance between float32 images of [0, 1]


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float64, on the CPU if its device has none."""
    return (tensor.cpu() if tensor.device.type in NO_FLOAT64 else tensor).to(torch.float64)


def distances(adversarial: torch.Tensor, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the Linf and L2 distances of images (n, c, h, w), in float64 pixels: (n,) each."""
    moved = (exact(adversarial) - exact(images)).flatten(1)
    return {"Linf": moved.abs().amax(1), "L2": torch.linalg.vector_norm(moved, dim=1)}


def into_ball(adversarial: torch.Tensor, images: torch.Tensor, threat: ThreatModel, attack: str) -> torch.Tensor:
    """Move adversarial images that float32 rounding put just outside the ball or the box back into them.

    Args:
        adversarial: (n, c, h, w), as an attack returned them.
        images: (n, c, h, w) the clean images in [0, 1].

    Returns:
        float32 images in [0, 1] whose distance, in float64, is at most `threat.eps` (+ 1e-12).

    Raises:
        BenchmarkError: another shape, a pixel that is not finite, or an image outside ball or box by more than rounding.
    """
    adversarial = adversarial.detach().float()
    if adversarial.shape != images.shape:
        raise BenchmarkError(f"attack {attack} returned shape {tuple(adversarial.shape)} for {tuple(images.shape)} images")
    if not torch.isfinite(adversarial).all():
        raise BenchmarkError(f"attack {attack} returned pixels that are not finite")
    over = distances(adversarial, images)[threat.norm] - threat.eps
    if over.max() > 1e-5 + 1e-4 * threat.eps:
        raise BenchmarkError(
            f"attack {attack} left its {threat.label} ball by {over.max():.2g} at image {int(over.argmax())} of its batch"
        )
    if adversarial.min() < -1e-5 or adversarial.max() > 1 + 1e-5:
        raise BenchmarkError(f"attack {attack} left [0, 1]: pixels from {adversarial.min():.4g} to {adversarial.max():.4g}")
    put_back = _clamp_linf if threat.norm == "Linf" else _scale_l2
    inside = put_back(adversarial, images, threat.eps).clamp(0, 1).to(images.device)
    if distances(inside, images)[threat.norm].max() > threat.eps + ROUNDING:
        raise BenchmarkError(f"attack {attack}: the harness could not put an image back into its {threat.label} ball")
    return inside


def _clamp_linf(adversarial: torch.Tensor, images: torch.Tensor, eps: float) -> torch.Tensor:
    low, high = exact(images) - eps, exact(images) + eps
    low32, high32 = low.float(), high.float()
    up = low32.new_tensor(torch.inf)
    low32 = torch.where(exact(low32) < low, torch.nextafter(low32, up), low32)
    high32 = torch.where(exact(high32) > high, torch.nextafter(high32, -up), high32)
    return torch.minimum(torch.maximum(adversarial.to(low32.device), low32), high32)


def _scale_l2(adversarial: torch.Tensor, images: torch.Tensor, eps: float) -> torch.Tensor:
    place = adversarial.device
    for shrink in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0):  # in small balls float32 cannot move less
        norm = distances(adversarial, images)["L2"]
        outside = norm > eps
        if not outside.any():
            break
        factor = torch.where(outside, eps / norm.clamp(min=1e-300) * (1 - shrink), 1.0)[:, None, None, None]
        moved = exact(images) + (exact(adversarial) - exact(images)) * factor
        adversarial = torch.where(outside[:, None, None, None].to(place), moved.float().to(place), adversarial)
    return adversarial
