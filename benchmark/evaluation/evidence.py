"""Merge the per-image evidence of a row's steps, check it, and count it into a Record. No torch here.

The sandwich gate: certified <= robust <= clean, per image. An adversarial image counts by its measured distance, in whichever
norm and radius it was found. One from a Linf ball at l2 distance 0.3 breaks the image at every l2 radius from 0.3 on, and
contradicts a certified l2 radius of 0.3 or more.

The smoothed version is another classifier than the attacked one, so attacks say nothing about its radii. Its gate is
`check_smoothed`: each image's radius must follow from its counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import betainc, ndtr, ndtri

from benchmark.records.accuracy import CertifiedResult, Proportion, RobustResult
from benchmark.records.beside import AttentionResult, CorruptionAccuracy, CorruptionResult, SmoothedResult, WithoutAttention
from benchmark.records.evidence import ROUNDING, attack_ids, attacked, column, is_whole, probed
from benchmark.records.per_image import PerImage, contradictions
from benchmark.records.record import Record
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import CorruptionSpec, SmoothingSpec, Track

SHARED = ("label", "clean_prediction", "clean_margin")  # columns of every step
ATTENTION_COLUMNS: dict[Literal["uniform", "none"], str] = {
    "uniform": "uniform_attention_prediction",
    "none": "no_attention_prediction",
}  # columns of classes; -1 where the first two tie or logits are not finite
PATTERN_COLUMNS = {"mean": "mean_pattern_prediction", "other": "other_pattern_prediction"}  # of some networks, the same
PATTERN_IMAGES = 1000  # the first training images, of which patterns' means are


def proportion(hits: np.ndarray) -> Proportion:
    """Return the share of true values with its 95% Wilson score interval."""
    return Proportion.of(int(np.count_nonzero(hits)), len(hits))


def mean_proportion(right: np.ndarray) -> Proportion:
    """Return the share of true values among copies (m, n) of n images, with Wilson's 95% interval for n: images are
    independent, copies are not. An image's share lies in [0, 1], so its variance is at most p (1 - p), that of one verdict.
    """
    n, share, z = right.shape[1], np.count_nonzero(right) / right.size, float(ndtri(0.975))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    low, high = min(share, max(0.0, float(middle - half))), max(share, min(1.0, float(middle + half)))
    return Proportion(value=share, low=low, high=high, count=int(np.count_nonzero(right)), n=right.size)


def merge(tables: dict[str, pa.Table], open_division: bool = False) -> pa.Table:
    """Return a table with one row an image, in order, of all steps' columns and `image`, the place in the evaluation.

    The clean margin is the first step's, since other machines' may differ in the last digits. Where a model of the open
    division gives steps different answers, it is the least, with its prediction.

    Raises:
        BenchmarkError: two steps disagree about a label or, in the closed division, the clean verdict of an image, or share
            another column.
    """
    first_name, first = next(iter(tables.items()))
    columns = {"image": pa.array(range(first.num_rows))}
    for name, table in tables.items():
        for shared, of_table, of_first in (
            ("label", table["label"], first["label"]),
            ("clean prediction", table["clean_prediction"], first["clean_prediction"]),
            ("clean verdict", pc.greater(table["clean_margin"], 0), pc.greater(first["clean_margin"], 0)),
        ):
            if not of_table.equals(of_first) and (shared == "label" or not open_division):
                raise BenchmarkError(
                    f"stages {first_name} and {name} disagree on the {shared} of an evaluation image; "
                    "delete the row's folder under work/ and run `rvb repro`"
                )
        twice = [c for c in table.column_names if c in columns and c not in SHARED]
        if twice:
            raise BenchmarkError(f"stage {name} and one before it both hold {twice[0]}; one would hide the other")
        columns |= {c: table[c].combine_chunks() for c in table.column_names if c not in columns}
    if open_division and unsteady(tables):
        margins, predictions = (np.stack([column(t, name) for t in tables.values()]) for name in reversed(SHARED[1:]))
        least, images = margins.argmin(0), np.arange(margins.shape[1])
        columns["clean_margin"] = pa.array(margins[least, images])
        columns["clean_prediction"] = pa.array(predictions[least, images])
    return pa.table(columns)


def unsteady(tables: dict[str, pa.Table]) -> int:
    """Return the number of images on whose clean prediction or verdict the steps disagree."""
    clean = [np.stack([column(t, "clean_prediction"), column(t, "clean_margin") > 0]) for t in tables.values()]
    return int((np.stack(clean) != clean[0]).any((0, 1)).sum())


def check_sandwich(evidence: pa.Table, row: str) -> None:
    """Raise a BenchmarkError where an image is certified although misclassified, or both certified and successfully attacked.
    It names the image, both verdicts and both margins.
    """
    for attack in attack_ids(evidence):
        for norm in ("linf", "l2"):
            finite_column(evidence, f"{attack}:{norm}", row)
    margin = finite_column(evidence, "clean_margin", row)
    if "certified_l2" not in evidence.column_names:
        return
    radius = finite_column(evidence, "certified_l2", row)

    def refuse(contradicted: np.ndarray, words: str, *columns: np.ndarray) -> None:
        for image in np.flatnonzero(contradicted).tolist():
            raise BenchmarkError(
                f"{row}: image {image} is certified at l2 {radius[image]:.6g} "
                f"{words.format(*(values[image] for values in columns))}; the certificate is wrong and nothing is published"
            )

    refuse((radius > 0) & (margin <= 0), "but misclassified when clean (margin {:.6g})", margin)
    for attack in attack_ids(evidence):
        distance, after = column(evidence, f"{attack}:l2"), column(evidence, f"{attack}:margin")
        reached = column(evidence, f"{attack}:success") & (distance <= radius[: len(distance)] + ROUNDING)
        words = f"(clean margin {{:.6g}}) but {attack} broke it at l2 {{:.6g}} (margin {{:.6g}})"
        refuse(reached, words, margin, distance, after)
    for (norm, eps), broken in probed(evidence).items():
        reached = broken & (norm == "L2") & (eps <= radius[: len(broken)])
        refuse(reached, f"(clean margin {{:.6g}}) but a probe broke it within l2 {eps:g}", margin)


def clean(evidence: pa.Table) -> Proportion:
    return proportion(column(evidence, "clean_margin") > 0)


def robust(evidence: pa.Table, track: Track, adaptive: tuple[AttackSpec, ...] = ()) -> tuple[RobustResult, ...]:
    """Count robust images for each threat model of the track: attacked, right when clean, and broken by no attack of the
    track, no `adaptive` attack on the row and no probe.

    Raises:
        BenchmarkError: other images were attacked than the track requires.
    """
    count, due = attacked(evidence), track.evaluation.attacked or evidence.num_rows
    if track.threats and count != due:
        raise BenchmarkError(f"{count} images were attacked where track {track.name} wants {due}; run `rvb repro`")
    specs = {spec.id: spec for suite in (*track.suites.values(), adaptive) for spec in suite}
    results = []
    for threat in track.threats:
        inside = tuple(i for i, s in specs.items() if s.norm == threat.norm and s.eps <= threat.eps)
        results.append(RobustResult(threat=threat, accuracy=proportion(unbroken(evidence, threat)), attacks=inside))
    return tuple(results)


def unbroken(evidence: pa.Table, threat: ThreatModel) -> np.ndarray:
    """Return which attacked images (m,) are right when clean and broken by no attack or probe within `threat`."""
    robust: np.ndarray = column(evidence, "clean_margin")[: attacked(evidence)] > 0
    for attack in attack_ids(evidence):
        near = column(evidence, f"{attack}:{threat.norm.lower()}") <= threat.eps + ROUNDING
        robust &= ~(column(evidence, f"{attack}:success") & near)
    for (norm, eps), broken in probed(evidence).items():
        if norm == threat.norm and eps <= threat.eps:
            robust &= ~broken
    return robust


def certified(evidence: pa.Table, track: Track, certificate: str) -> tuple[CertifiedResult, ...]:
    """Count, for each radius of the track, the images that are right when clean and certified at it."""
    correct, radius = column(evidence, "clean_margin") > 0, column(evidence, "certified_l2")
    return reaching(track.certified_radii, correct, radius, certificate)


def reaching(radii: Sequence[float], right: np.ndarray, radius: np.ndarray, certificate: str) -> tuple[CertifiedResult, ...]:
    """Count, for each of `radii`, the images that are `right` (n,) and whose l2 `radius` (n,) reaches it."""
    return tuple(
        CertifiedResult(
            threat=ThreatModel(norm="L2", eps=eps), accuracy=proportion(right & (radius >= eps)), certificate=certificate
        )
        for eps in radii
    )


def check_smoothed(evidence: pa.Table, rules: SmoothingSpec, row: str) -> None:
    """Raise a BenchmarkError, with the image, where a smoothed radius does not follow from its counts and the rules.

    `count` of `samples` on the candidate must be less likely than alpha / looks for every smoothed classifier of a smaller
    radius.
    """
    radius = finite_column(evidence, "smoothed_l2", row)
    names = ("prediction", "candidate", "count", "samples", "spent")
    prediction, candidate, count, samples, spent = (finite_column(evidence, f"smoothed_{name}", row) for name in names)
    answered = radius > 0
    fits = (radius >= 0) & (prediction == np.where(answered, candidate, -1)) & (count >= 0) & (count <= samples)
    fits &= (samples >= 1) & (samples + rules.n0 <= spent) & (spent <= rules.n + rules.n0)
    some = np.maximum(count, 1)  # betainc needs a positive count; without a hit there is no radius
    tail = np.where(count > 0, betainc(some, np.maximum(samples - some, 0) + 1, ndtr(radius / rules.sigma)), 1.0)
    wrong = np.flatnonzero(~fits | (answered & (tail > rules.alpha / rules.looks)))
    if len(wrong):
        image = int(wrong[0])
        raise BenchmarkError(
            f"{row}: image {image} has smoothed l2 radius {radius[image]:.6g} and class {prediction[image]}, which do not "
            f"follow from {count[image]} of {samples[image]} samples on class {candidate[image]}, {spent[image]} drawn; "
            "nothing is published"
        )


def smoothed(evidence: pa.Table, radii: Sequence[float], rules: SmoothingSpec, guarantee: str) -> SmoothedResult:
    """Return the clean and certified accuracy of the smoothed version. An image is certified only if its class is right."""
    right = column(evidence, "smoothed_prediction") == column(evidence, "label")
    radius = column(evidence, "smoothed_l2")
    return SmoothedResult(
        rules=rules,
        guarantee=guarantee,
        spent=float(column(evidence, "smoothed_spent").mean()),
        clean=proportion(right),
        certified=reaching(radii, right, radius, "smoothing"),
    )


def corrupted(evidence: pa.Table, rules: CorruptionSpec, parameters: str, versions: dict[str, str]) -> CorruptionResult:
    """Return the accuracy on corrupted copies, by corruption and severity, and the means. Raise a BenchmarkError for a column
    that is missing or lacks an image.
    """
    right = {}
    for corruption, severity in rules.cells:
        name = f"corrupted {corruption} {severity}"
        if name not in evidence.column_names or evidence[name].null_count:
            raise BenchmarkError(f"the evidence column {name!r} is missing or lacks an image; run `rvb repro` to build it")
        right[corruption, severity] = column(evidence, name)

    def mean(*cells: tuple[str, int]) -> Proportion:
        return mean_proportion(np.stack([right[cell] for cell in cells]))

    return CorruptionResult(
        rules=rules,
        parameters=parameters,
        versions=versions,
        accuracy=mean(*rules.cells),
        severities=tuple(mean(*((name, severity) for name in rules.names)) for severity in rules.severities),
        corruptions=tuple(
            CorruptionAccuracy(
                name=name,
                severities=tuple(proportion(right[name, severity]) for severity in rules.severities),
                mean=mean(*((name, severity) for severity in rules.severities)),
            )
            for name in rules.names
        ),
    )


def without_attention(evidence: pa.Table) -> AttentionResult:
    """Return the accuracy of the network with its attention replaced."""

    def counted(name: str) -> WithoutAttention:
        predicted = column(evidence, name)
        changed = int((predicted != column(evidence, "clean_prediction")).sum())
        return WithoutAttention(clean=proportion(predicted == column(evidence, "label")), changed=changed)

    columns = [*ATTENTION_COLUMNS.items(), *PATTERN_COLUMNS.items()]
    return AttentionResult(**{what: counted(name) for what, name in columns if name in evidence.column_names})


def per_image(evidence: pa.Table, record: Record) -> PerImage:
    """Return the Record's numbers image by image; raise a BenchmarkError where they contradict it."""
    images = by_image(evidence, record)
    if wrong := contradictions(record, images):
        raise BenchmarkError(f"{record.row}: {wrong[0].words}; nothing is published")
    return images


def by_image(evidence: pa.Table, record: Record) -> PerImage:
    """Return the same without a comparison with the Record."""
    right = column(evidence, "clean_margin") > 0
    scores = {"clean": right}
    scores |= {f"robust {robust.threat.label}": unbroken(evidence, robust.threat) for robust in record.robust}
    if record.division == "closed":  # a random model has another clean pass in every step: see `merge`
        of_attacks = right[: attacked(evidence)]
        scores |= {name: of_attacks & ~column(evidence, f"{name}:success") for name in attack_ids(evidence)}
    radii = {}
    if record.certified:
        radii["certified"] = radius = column(evidence, "certified_l2")
        scores |= {f"certified {c.threat.label}": right & (radius >= c.threat.eps) for c in record.certified}
    if record.smoothed:
        radii["smoothed"] = radius = column(evidence, "smoothed_l2")
        answered = column(evidence, "smoothed_prediction") == column(evidence, "label")
        scores["smoothed clean"] = answered
        smoothed = record.smoothed.certified
        scores |= {f"smoothed {c.threat.label}": answered & (radius >= c.threat.eps) for c in smoothed}
    if copies := record.corrupted:
        for name in (corruption.name for corruption in copies.corruptions):
            verdicts = [column(evidence, f"corrupted {name} {severity}") for severity in copies.rules.severities]
            scores[f"corrupted: {name}"] = np.sum(verdicts, axis=0)
    return PerImage(
        row=record.row,
        scores={name: "".join(map(str, np.asarray(score).astype(int))) for name, score in scores.items()},
        radii={name: tuple(values.tolist()) for name, values in radii.items()},
    )


def finite_column(evidence: pa.Table, name: str, row: str) -> np.ndarray:
    """Return a `column`; raise a BenchmarkError where a value is missing or not finite."""
    values = column(evidence, name)
    if not is_whole(evidence, name) or not np.isfinite(values).all():
        raise BenchmarkError(f"{row}: the evidence column {name} holds a value that is missing or not finite")
    return values
