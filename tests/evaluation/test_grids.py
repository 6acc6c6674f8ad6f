"""Grids of pictures."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.evaluation.pictures import CELL, GAP, grey, png

GREYS = torch.full((10, 1, 2, 5), 0.5)


def test_grey_and_grids(tmp_path) -> None:
    colours = torch.eye(3).view(3, 3, 1, 1)
    assert grey(colours).flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])
    assert torch.equal(grey(GREYS), GREYS)
    rows = [torch.rand(3, 3, 16, 20), torch.rand(3, 1, 16, 20)]
    data = png(rows)
    assert data == png([row.clone() for row in rows])
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    assert CELL // 20 == 2
    assert pixels.shape == (2 * (32 + GAP) + GAP, 3 * (40 + GAP) + GAP, 3)
    top, left = GAP + 34, GAP + 42  # second row, second image
    shown = pixels[top : top + 32 : 2, left : left + 40 : 2]
    assert np.array_equal(shown[..., 0], np.rint(rows[1][1, 0].numpy() * 255))
    assert np.array_equal(shown[..., 0], shown[..., 2])
    assert (pixels[:GAP] == 255).all()
    greys = [torch.rand(1, 1, 100, 90)] * 2
    assert np.asarray(Image.open(io.BytesIO(png(greys)))).shape == (200 + 3 * GAP, 90 + 2 * GAP)
    for wrong in ([], [rows[0], rows[1][:2]], [torch.rand(1, 2, 4, 4)]):
        with pytest.raises(ValueError, match="a grid"):
            png(wrong)
