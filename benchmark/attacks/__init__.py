"""Attacks: `attack(model, images, labels, threat, *, seed, **parameters) -> adversarial images`; one a file.

images (n, c, h, w) float32 in [0, 1], labels (n,) int64. The result has the shape of the images and lies in the threat
model's ball and in [0, 1]; where nothing was found it may be anything in the ball, such as the clean image. The harness
believes none of it: it projects and re-tests what comes back. An attack made of parts that run one after another on the
images still standing names them in `components`, and takes `component=`. One that names `engines` takes `engine=`; one that
says `per_image = True` draws random numbers that belong to each image, and takes `indices=`, the images' numbers in the data
set, and `slots=`, how many images may go into one call of the model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmark.auto_attack import Attacked, auto_attack

__all__ = ["Attacked", "auto_attack"]


def __getattr__(name: str) -> Any:
    """The public call runs through the harness, which stands above this package: it is looked up when asked for."""
    if name in __all__:
        return getattr(import_module("benchmark.auto_attack"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
