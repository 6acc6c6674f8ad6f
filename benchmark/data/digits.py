"""scikit-learn's bundled handwritten digits: 1,797 real scans (UCI optical recognition, test part), 8x8, 17 levels."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from benchmark.data.images import Images
from benchmark.specs.data import DataSpec


def read(spec: DataSpec) -> dict[str, Images]:
    """Return all digits as one pool, pixels (n, 1, 8, 8) from 0 to 16."""
    digits = load_digits()
    pixels = digits.images.astype(np.uint8)[:, None]
    return {"all": Images(pixels, digits.target.astype(np.int64), levels=16)}
