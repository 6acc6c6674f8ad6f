"""The radii within which each image of a row is certified and at which it is broken, read from its evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from benchmark.records.contributed import Contribution
from benchmark.records.evidence import ROUNDING, broken_distances
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record


@dataclass(frozen=True)
class ImageRadii:
    """l2 radii in pixels of [0, 1] of the attacked images, the first ones.

    Attributes:
        right: (n,) bool, whether the model is right on the clean image.
        broken: (n,) float64, the distance of the nearest adversarial image known, of attacks, of probes in l2 balls (their
            radius) and contributed; infinite where none is. Meaningless for images that are wrong when clean.
        certified: (n,) float64, the certified radius, 0 where nothing is certified; None for a row without certificate.
        smoothed: (n,) float64, that of the smoothed version; -1 where it is wrong; None without one.
        proven: by "certified" and "smoothed", where the row has them, the radii of all `evaluated` images, attacked or not,
            that each gets right, in order.
        distances: whether `broken` has the attacks' own distances; else the radii of the balls in which they broke images.
    """

    right: np.ndarray
    broken: np.ndarray
    certified: np.ndarray | None = None
    smoothed: np.ndarray | None = None
    proven: Mapping[str, np.ndarray] = field(default_factory=dict)
    evaluated: int = 0
    distances: bool = True

    @property
    def n(self) -> int:
        return len(self.right)

    @property
    def contradicted(self) -> np.ndarray:
        """Return (n,) bool: certified where it is broken. The pipeline refuses this; contributed images may show it."""
        if self.certified is None:
            return np.zeros(self.n, bool)
        return np.asarray(self.right & (self.certified > 0) & (self.broken <= self.certified + ROUNDING))

    @cached_property
    def falls(self) -> np.ndarray:
        """Return the radii at which correct images are broken, sorted; infinite ones last."""
        return np.sort(self.broken[self.right])

    @cached_property
    def reaches(self) -> dict[str, np.ndarray]:
        """Return, by certificate that the row has, the sorted radii of the images that are classified correctly."""
        return _proven(self.right, self.certified, self.smoothed)


def _proven(right: np.ndarray, certified: np.ndarray | None, smoothed: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return by certificate the radii of the images that it gets right, in order."""
    radii = {} if certified is None else {"certified": np.sort(certified[right])}
    return radii if smoothed is None else radii | {"smoothed": np.sort(smoothed[smoothed >= 0])}


def intact(falls: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """Return (m,) int: how many of the sorted `falls` are not broken within each radius."""
    return len(falls) - np.searchsorted(falls, radii + ROUNDING, side="right")


def held(reaches: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """Return (m,) int: how many of the sorted `reaches` are certified at each radius; all of them at 0."""
    return len(reaches) - np.searchsorted(reaches, radii, side="left")


def image_radii(evidence: pa.Table, contributions: Sequence[Contribution] = ()) -> ImageRadii:
    """Return radii from evidence.parquet, contributed attacks counted; a contradicted certificate counts as none."""
    names = evidence.column_names

    def column(name: str) -> np.ndarray:
        return np.asarray(evidence[name].to_numpy())

    certified = column("certified_l2") if "certified_l2" in names else None
    smoothed = None
    if "smoothed_l2" in names:
        sure = column("smoothed_prediction") == column("label")
        smoothed = np.where(sure, column("smoothed_l2"), -1.0)
    return _image_radii(column("clean_margin") > 0, broken_distances(evidence), certified, smoothed, contributions)


def published_radii(images: PerImage, record: Record, pixels: int, contributions: Sequence[Contribution] = ()) -> ImageRadii:
    """Return the radii that git's files tell.

    Where they lack distances, an image counts as broken from the radius of the ball that it was lost in.

    Args:
        pixels: numbers of an image, by which a Linf ball lies in an l2 one.
    """
    n = min((result.accuracy.n for result in record.robust), default=record.n)
    broken = np.array([np.inf if l2 is None else l2 for l2 in images.broken] or [np.inf] * n)
    broken = np.minimum(broken, ball_radii(images.scores, record, pixels, n))
    radii = {name: np.array(values) for name, values in images.radii.items()}
    smoothed = None
    if "smoothed" in radii:
        smoothed = np.where(_digits(images.scores["smoothed clean"]), radii["smoothed"], -1.0)
    radii_of_images = _image_radii(_digits(images.scores["clean"]), broken, radii.get("certified"), smoothed, contributions)
    return replace(radii_of_images, distances=bool(images.broken))


def ball_radii(scores: Mapping[str, str], record: Record, pixels: int, n: int) -> np.ndarray:
    """Return (n,) float64: the l2 radius of the smallest ball in which an image was lost; infinite where in none.

    Args:
        scores: a digit an image, by the name of a robust number.
        pixels: numbers of an image: an Linf ball of radius r lies in the l2 ball of radius r * sqrt(pixels).
    """
    broken = np.full(n, np.inf)
    for threat in (result.threat for result in record.robust):
        reach = threat.eps * (pixels**0.5 if threat.norm == "Linf" else 1)
        broken = np.where(_digits(scores[f"robust {threat.label}"])[:n], broken, np.minimum(broken, reach))
    return broken


def _image_radii(
    right: np.ndarray,
    broken: np.ndarray,
    certified: np.ndarray | None,
    smoothed: np.ndarray | None,
    contributions: Sequence[Contribution],
) -> ImageRadii:
    """Return the radii of the attacked images, contributed attacks counted; `broken` is of those, the rest of all images."""
    n = len(broken)
    for image in [image for contribution in contributions for image in contribution.images if image.image < n]:
        broken[image.image] = min(broken[image.image], image.l2)
    near = [None if radii is None else radii[:n] for radii in (certified, smoothed)]
    few = ImageRadii(right[:n], broken, near[0], near[1])
    sound = None if few.contradicted.any() else certified
    return replace(few, proven=_proven(right, sound, smoothed), evaluated=len(right))


def _digits(digits: str) -> np.ndarray:
    """Return (n,) bool: where a digit is 1."""
    return np.frombuffer(digits.encode(), np.uint8) == ord("1")
