"""Small random colour images."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter


def textures(n: int, size: tuple[int, int] = (32, 32)) -> np.ndarray:
    """Smooth random images (n, 3, h, w) of 255ths, each from 0 to 1."""
    found = gaussian_filter(np.random.default_rng(0).random((n, 3, *size)), (0, 0, 2, 2))
    low, high = found.min((1, 2, 3), keepdims=True), found.max((1, 2, 3), keepdims=True)
    return (np.rint((found - low) / (high - low) * 255) / np.float32(255)).astype(np.float32)
