"""Two builds of a row compared, number by number; and two rows on the same images: is one better?

Verdicts are strings of 1 and 0, one place an image. An order of two rows needs two answers. `mcnemar`: would these two
networks differ in the same way on other images? It says nothing of the next training. `over_seeds_and_images`: would the two
methods, on other images too?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.stats import binomtest

from benchmark.results.per_image import PerImage, counts
from benchmark.results.record import Record
from benchmark.results.study_table import Difference, contrast

ERROR = 0.05  # of a whole board: the chance that any of its orders is made by images and seeds alone


def mcnemar(one: Sequence[int] | str, other: Sequence[int] | str) -> float:
    """Two-sided p-value of McNemar's exact test: of the images on which the two differ, each wins as often as the other.

    Raises:
        ValueError: verdicts of other numbers of images.
    """
    pairs = list(zip(one, other, strict=True))
    wins, losses = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)  # type: ignore[operator]
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def over_seeds_and_images(one: Sequence[str], other: Sequence[str], error: float) -> Difference | None:
    """Difference of the mean shares of right verdicts, `one` minus `other`, with its interval at confidence 1 - `error`.

    Each string is a training; all are of the same images. None where either side has one training alone.

    Let v_si = m + a_s + b_i + c_si be the verdict of training s on image i: seeds and images are drawn, c is what remains.
    The variance of the difference of two rows' means has three parts. Images: the variance over i of the mean over s of
    one row's verdicts minus the other's, over the number of images; the rows share the images, so this is paired. Seeds:
    the variance over s of the share of right images, over the number of trainings, for each row by itself, since equal
    seeds of two methods have nothing in common. Each part's estimate holds c's share too, so their sum counts that more
    than once: the interval is rather too wide. The three are added as in Welch's test, degrees of freedom by Satterthwaite,
    no standard deviation below one image's share.

    The error rate is that of Student's approximation: two rows of equal method are told apart with probability `error` or
    less (tests/results/test_paired.py counts), where McNemar's test on single trainings errs far more often.

    Raises:
        ValueError: verdicts of other numbers of images.
    """
    a, b = _matrix(one), _matrix(other)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"verdicts of {a.shape[1]} and of {b.shape[1]} images")
    by_image = a.mean(axis=0) - b.mean(axis=0)
    samples = [a.mean(axis=1).tolist(), b.mean(axis=1).tolist(), (by_image - by_image.mean()).tolist()]
    return contrast((1, -1, 1), samples, error, 1 / a.shape[1])


def better(images: tuple[str, str], seeds: tuple[Sequence[str], Sequence[str]] | None, comparisons: int) -> int:
    """1 where the first of two rows is shown to be better, -1 where the other is, 0 where no order is shown.

    Both tests must say so at ERROR shared out over all `comparisons` of a board (Bonferroni), so that the chance of any
    false order on it is at most ERROR; an order by both tests is false no more often than by either.

    Args:
        images: the verdicts of the two rows' own networks.
        seeds: those of their trainings, or None where a row has but one: then the images decide alone.
    """
    error = ERROR / comparisons
    if mcnemar(*images) > error:
        return 0
    sign = 1 if images[0].count("1") > images[1].count("1") else -1
    if seeds is None:
        return sign
    found = over_seeds_and_images(*seeds, error)
    return sign if found is not None and found.shown and found.estimate * sign > 0 else 0


def _matrix(verdicts: Sequence[str]) -> np.ndarray:
    """Trainings and images to (trainings, images)."""
    digits = [np.frombuffer(training.encode(), np.uint8) for training in verdicts]
    return np.array(digits, dtype=np.float64) - ord("0")


Verdict = Literal["same", "within", "OUTSIDE"]


@dataclass(frozen=True)
class Line:
    """One number or fact of a row.

    Attributes:
        images: by how many images it differs; None where nothing is counted.
        changed: of how many images the verdict changed, where images were compared in pairs.
        p: of McNemar's test, where chance is allowed.
    """

    metric: str
    published: str
    built: str
    verdict: Verdict
    images: int | None = None
    changed: int | None = None
    p: float | None = None


def changed_codes(published: Record, built: Record) -> list[str]:
    """The stages whose code has another digest, which any edit changes."""
    return [
        name.removeprefix("code ")
        for name in sorted(published.sha256.keys() | built.sha256.keys())
        if name.startswith("code ") and published.sha256.get(name) != built.sha256.get(name)
    ]


def facts(published: Record, built: Record) -> list[Line]:
    """What depends on no machine."""
    named: list[tuple[str, object, object]] = [
        ("division", published.division, built.division),
        ("trust", published.trust, built.trust),
        ("seed", published.seed, built.seed),
        ("parameters", published.parameters, built.parameters),
        ("FLOPs", published.flops, built.flops),
    ]
    others: list[tuple[str, object, object]] = [
        ("settings", published.settings, built.settings),
        ("smoothing", published.smoothed and published.smoothed.rules, built.smoothed and built.smoothed.rules),
        ("corruptions", published.corrupted and published.corrupted.rules, built.corrupted and built.corrupted.rules),
    ]
    named += [(what, "as published", "others") for what, one, other in others if one != other]
    lines = [Line(what, str(one), str(other), "same" if one == other else "OUTSIDE") for what, one, other in named]
    specs = [{attack.id: (attack.spec, attack.engine) for attack in record.attacks} for record in (published, built)]
    lines += [
        Line(f"{name}: parameters", "as published", "others", "OUTSIDE")
        for name in specs[0]
        if name in specs[1] and specs[0][name] != specs[1][name]
    ]
    return lines + _same_digests(published, built, lambda name: name.startswith("data "))


def exactly(published: Record, built: Record, before: PerImage, now: PerImage, *, evidence: bool) -> list[Line]:
    """Every number, image and digest has to be the same.

    Args:
        evidence: whether the two files of evidence were written by the same pyarrow, and so are the same bytes.
    """
    ours, theirs = (counts(record) | _parts(record) for record in (published, built))
    lines = [_count(name, ours.get(name), theirs.get(name)) for name in dict.fromkeys([*ours, *theirs])]
    for name in dict.fromkeys([*before.scores, *now.scores]):
        lines.append(_same_images(f"images of {name}", before.scores.get(name, ""), now.scores.get(name, "")))
    for name in dict.fromkeys([*before.radii, *now.radii]):
        lines.append(_same_images(f"{name} radii", before.radii.get(name, ()), now.radii.get(name, ())))
    others = ("data ", "code ") if evidence else ("data ", "code ", "evidence")
    return lines + _same_digests(published, built, lambda name: not name.startswith(others))


def by_chance(published: Record, built: Record, before: PerImage, now: PerImage) -> list[Line]:
    """Every number of images, with McNemar's p: the chance of so one-sided a change if each changed image is as likely to
    have become better as worse. Of the same weights rounding alone differs: no test, but at most one image.
    """
    same_weights = published.sha256["weights"] == built.sha256["weights"]
    ours, theirs = counts(published), counts(built)
    lines = []
    for name in dict.fromkeys([*ours, *theirs]):
        line = _count(name, ours.get(name), theirs.get(name))
        one, other = before.score(name), now.score(name)
        if name in ours and name in theirs and one is not None and other is not None:
            changes, p = sum(a != b for a, b in zip(one, other, strict=True)), mcnemar(other, one)
            allowed = ours[name][1] // published.n  # an image's corrupted copies are one image
            outside = same_weights and line.images is not None and line.images > allowed
            verdict: Verdict = "OUTSIDE" if outside else "within" if changes else "same"
            line = replace(line, verdict=verdict, changed=changes, p=None if same_weights else p)
        lines.append(line)
    return lines


def _count(name: str, before: tuple[int, int] | None, now: tuple[int, int] | None) -> Line:
    """A number of images; outside unless it is the same."""
    words = [f"{one[0]} of {one[1]}" if one else "none" for one in (before, now)]
    images = abs(before[0] - now[0]) if before and now else None
    return Line(name, words[0], words[1], "same" if before == now else "OUTSIDE", images)


def _same_images(name: str, before: Sequence[object], now: Sequence[object]) -> Line:
    """Each image's verdict or radius; the first that differs is named."""
    if len(before) != len(now):
        return Line(name, f"{len(before)} images", f"{len(now)} images", "OUTSIDE")
    other = [image for image, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    if not other:
        return Line(name, "", "", "same", changed=0)
    words = [f"image {other[0]}: {values[other[0]]}" for values in (before, now)]
    return Line(name, words[0], words[1], "OUTSIDE", changed=len(other))


def _parts(record: Record) -> dict[str, tuple[int, int]]:
    """What each attack's components left: where attacks stop on the way depends on rounding."""
    return {
        f"{attack.id} after {part}": (left, attack.accuracy.n)
        for attack in record.attacks
        for part, left in attack.remaining.items()
    }


def _same_digests(published: Record, built: Record, chosen: Callable[[str], bool]) -> list[Line]:
    lines = []
    for name in sorted(filter(chosen, published.sha256.keys() | built.sha256.keys())):
        one, other = (record.sha256.get(name, "none") for record in (published, built))
        lines.append(Line(f"sha256 of {name}", one[:12], other[:12], "same" if one == other else "OUTSIDE"))
    return lines
