"""Common corruptions of images, drawn by the package imagecorruptions-imaug (Hendrycks and Dietterich 2019).

Its strengths are ImageNet-C's, made for photographs of 224 pixels a side, and not those of the published CIFAR-10-C arrays
(make_cifar_c.py of hendrycks/robustness): at 32x32 its mildest severity is mostly as strong as their third or stronger.
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
DRAWS = 100  # of one corrupted copy before giving up


def corrupt(images: np.ndarray, indices: Sequence[int], name: str, severity: int, seed: int) -> np.ndarray:
    """Corrupted copies, each drawn by (seed, name, severity, index) alone: order, batch and machine share do not count.

    Args:
        images: (n, 3, h, w) float32 in [0, 1], h and w at least 32; rounded to 8 bits before they are corrupted.
        indices: (n,) each image's place among the evaluation images.
        name: one of COMMON or EXTRA of benchmark/specs/track.py.
        severity: 1 to 5.

    Returns:
        (n, 3, h, w) float32 in [0, 1]: whole numbers of 255ths, as in CIFAR-10-C.

    Raises:
        BenchmarkError: images that cannot be corrupted, the package missing.
    """
    _check(images, indices)
    library = _library()
    pixels = np.rint(np.moveaxis(images, 1, -1) * np.float32(255)).astype(np.uint8)
    drawn = [_draw(library, image, name, severity, (seed, index)) for image, index in zip(pixels, indices, strict=True)]
    stacked = np.stack(drawn) if drawn else pixels
    return np.ascontiguousarray(np.moveaxis(stacked, -1, 1)).astype(np.float32) / np.float32(255)


def versions() -> dict[str, str]:
    """Versions that a corrupted image can depend on; a BenchmarkError when the package is missing."""
    _library()
    import cv2

    packages = (PACKAGE, "scikit-image", "scipy", "numba", "pillow", "numpy")
    return {"opencv": cv2.__version__, **{package: version(package) for package in packages}}


def _draw(library: ModuleType, image: np.ndarray, name: str, severity: int, place: tuple[int, int]) -> np.ndarray:
    """One copy of an image (h, w, 3) uint8, the same shape and type.

    Spatter divides 0 by 0 where not one drop falls on the image, and would turn it black; that is drawn anew.
    """
    (seed, index), before = place, np.random.get_state()  # the package draws from numpy's global generator
    takes_seed = "seed" in inspect.signature(library.corruption_dict[name]).parameters
    try:
        for attempt in range(DRAWS):
            words = np.random.SeedSequence([seed, int.from_bytes(name.encode()), severity, index, attempt])
            state = int(words.generate_state(1)[0])
            np.random.seed(state)
            own = {"seed": state} if takes_seed else {}
            with contextlib.suppress(FloatingPointError), np.errstate(invalid="raise"):
                return library.corrupt(image, severity=severity, corruption_name=name, **own)
    finally:
        np.random.set_state(before)
    raise BenchmarkError(f"corruption {name} at severity {severity} gives no finite image {index} in {DRAWS} draws")


def _check(images: np.ndarray, indices: Sequence[int]) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < SMALLEST:
        raise BenchmarkError(
            f"corruptions are for colour images (n, 3, h, w) of {SMALLEST}x{SMALLEST} pixels or more, not {images.shape}"
        )
    if len(indices) != len(images):
        raise BenchmarkError(f"{len(indices)} indices for {len(images)} images")
    if not ((images >= 0) & (images <= 1)).all():
        raise BenchmarkError(
            "corruptions are for images of [0, 1]; these hold a pixel outside or one that is no number"
        )


def _library() -> ModuleType:
    try:
        version(PACKAGE)  # the package imagecorruptions has the same module, and fails with a current scikit-image
        import imagecorruptions
    except ImportError as error:
        raise BenchmarkError(
            f"this track asks for common corruptions, which the package {PACKAGE} draws, and it does not import "
            f"({error}); install it: {INSTALL}"
        ) from None
    return imagecorruptions
