"""Common corruptions (Hendrycks and Dietterich 2019), drawn by the package imagecorruptions-imaug.

The strengths are ImageNet-C's, for photographs of 224 pixels a side. The published CIFAR-10-C arrays (make_cifar_c.py of
hendrycks/robustness) use weaker ones: at 32x32 the mildest severity here is mostly as strong as their third or stronger.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType

import numpy as np

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import SMALLEST

PARAMETERS = (
    "The strengths are ImageNet-C's, chosen for photographs of 224 pixels a side and mostly stronger than those of the "
    "published CIFAR-10-C images: these numbers cannot be compared with numbers on CIFAR-10-C."
)
PACKAGE = "imagecorruptions-imaug"
INSTALL = f"pip install --no-deps '{PACKAGE}>=1.1.5' && pip install --editable '.[corruptions]'"
DRAWS = 100  # attempts at one corrupted copy


def corrupt(images: np.ndarray, indices: Sequence[int], name: str, severity: int, seed: int) -> np.ndarray:
    """Return corrupted copies. A copy depends on (seed, name, severity, index) alone, not on the batch or its order.

    Args:
        images: (n, 3, h, w) float32 in [0, 1], h and w at least 32; rounded to 8 bits first.
        indices: (n,) positions among the evaluation images.
        name: of COMMON or EXTRA in benchmark/specs/track.py.
        severity: 1 to 5.

    Returns:
        (n, 3, h, w) float32 in [0, 1], multiples of 1/255 as in CIFAR-10-C.

    Raises:
        BenchmarkError: the images cannot be corrupted, or the package is missing.
    """
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < SMALLEST:
        raise BenchmarkError(
            f"corruptions are for colour images (n, 3, h, w) of {SMALLEST}x{SMALLEST} pixels or more, not {images.shape}"
        )
    if len(indices) != len(images):
        raise BenchmarkError(f"{len(indices)} indices for {len(images)} images")
    if not ((images >= 0) & (images <= 1)).all():
        raise BenchmarkError("corruptions are for images of [0, 1]; these hold a NaN or a pixel outside")
    library = _library()
    pixels = np.rint(np.moveaxis(images, 1, -1) * np.float32(255)).astype(np.uint8)
    copies = [_draw(library, image, name, severity, seed, index) for image, index in zip(pixels, indices, strict=True)]
    stacked = np.stack(copies) if copies else pixels
    return np.ascontiguousarray(np.moveaxis(stacked, -1, 1)).astype(np.float32) / np.float32(255)


def versions() -> dict[str, str]:
    """Return the versions that a corrupted image depends on. Raise a BenchmarkError if the package is missing."""
    _library()
    import cv2

    packages = (PACKAGE, "scikit-image", "scipy", "numba", "pillow", "numpy")
    return {"opencv": cv2.__version__, **{package: version(package) for package in packages}}


def _draw(library: ModuleType, image: np.ndarray, name: str, severity: int, seed: int, index: int) -> np.ndarray:
    """Return one corrupted copy of an image (h, w, 3) uint8, of the same shape and type.

    If no drop falls on the image, spatter divides 0 by 0 and returns a black image; the copy is then drawn again.
    """
    before = np.random.get_state()  # the package draws from numpy's global generator
    takes_seed = "seed" in inspect.signature(library.corruption_dict[name]).parameters
    try:
        for attempt in range(DRAWS):
            words = np.random.SeedSequence([seed, int.from_bytes(name.encode()), severity, index, attempt])
            state = int(words.generate_state(1)[0])
            np.random.seed(state)
            options = {"seed": state} if takes_seed else {}
            with contextlib.suppress(FloatingPointError), np.errstate(invalid="raise"):
                return library.corrupt(image, severity=severity, corruption_name=name, **options)
    finally:
        np.random.set_state(before)
    raise BenchmarkError(f"corruption {name} at severity {severity} gives no finite image {index} in {DRAWS} draws")


def _library() -> ModuleType:
    try:
        version(PACKAGE)  # the package imagecorruptions has a module of this name too, too old for scikit-image
        import imagecorruptions
    except ImportError as error:
        raise BenchmarkError(
            f"this track needs the package {PACKAGE} for common corruptions, which cannot be imported ({error}); "
            f"install it: {INSTALL}"
        ) from None
    return imagecorruptions
