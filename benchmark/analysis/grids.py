"""Images side by side as one PNG, the same bytes for the same pixels."""

from __future__ import annotations

import io

import torch
from PIL import Image
from torchvision.utils import make_grid

CELL = 48  # small images are drawn larger, by a whole factor, up to this many pixels a side
GAP = 2


def png(rows: list[torch.Tensor]) -> bytes:
    """A grid of `rows`, each (n, c, h, w) in [0, 1] with the same n, h and w, c being 1 or 3, on white; a lone image has no
    margin.

    Raises:
        ValueError: no row, or rows of different sizes, or of another number of channels.
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
