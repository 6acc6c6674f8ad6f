"""Per-image evidence of one row: merged from the stages, checked for contradictions, counted into a Record. No torch here.

The sandwich gate: on the same images, certified <= robust <= clean, per image. Every adversarial image counts wherever
its measured distance lets it, whichever norm and radius it was looked for in: one found in a Linf ball whose l2 distance
is 0.3 breaks the image at every l2 radius from 0.3 on, and contradicts a certified l2 radius of 0.3 or more.

The smoothed version of a model is another classifier, so attacks on the model say nothing against its radii. Its gate is
`check_smoothed`: the radius of each image must follow from the counts that stand beside it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import betainc, ndtr, ndtri
from scipy.stats import binomtest

from benchmark.results.attack import RobustResult
from benchmark.results.certificate import CertifiedResult
from benchmark.results.corruptions import CorruptionAccuracy, CorruptionResult
from benchmark.results.proportion import Proportion
from benchmark.results.smoothing import SmoothedResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.corruptions import CorruptionSpec
from benchmark.specs.smoothing import SmoothingSpec
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import Track

ROUNDING = 1e-12
SHARED = ("label", "clean_prediction", "clean_margin")  # what every stage says of an image


def proportion(hits: np.ndarray) -> Proportion:
    """Share of true values with its 95% Wilson score interval."""
    count, n = int(np.count_nonzero(hits)), len(hits)
    interval = binomtest(count, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Proportion(value=count / n, low=float(interval.low), high=float(interval.high), count=count, n=n)


def merge(tables: dict[str, pa.Table]) -> pa.Table:
    """One row an image, in order, with the columns of all stages and `image`, its place among the evaluation images.

    The clean margin is the first stage's: stages run on different machines may differ in its last digits.

    Raises:
        BenchmarkError: two stages disagree about a label or the clean verdict of an image, or share another column.
    """
    first_name, first = next(iter(tables.items()))
    columns = {"image": pa.array(range(first.num_rows))}
    for name, table in tables.items():
        for shared, of_table, of_first in (
            ("label", table["label"], first["label"]),
            ("clean prediction", table["clean_prediction"], first["clean_prediction"]),
            ("clean verdict", pc.greater(table["clean_margin"], 0), pc.greater(first["clean_margin"], 0)),
        ):
            if not of_table.equals(of_first):
                raise BenchmarkError(
                    f"stages {first_name} and {name} disagree on the {shared} of an evaluation image; "
                    "delete the row's folder under work/ and run `rvb repro`"
                )
        twice = [c for c in table.column_names if c in columns and c not in SHARED]
        if twice:
            raise BenchmarkError(f"stage {name} and one before it both hold {twice[0]}; one would hide the other")
        columns |= {c: table[c].combine_chunks() for c in table.column_names if c not in columns}
    return pa.table(columns)


def attack_ids(evidence: pa.Table) -> list[str]:
    return [name.removesuffix(":success") for name in evidence.column_names if name.endswith(":success")]


def probed(evidence: pa.Table) -> dict[tuple[str, float], np.ndarray]:
    """Which images (n,) the probes of the stage `reliability`, or PGD for the stage `pictures`, broke, by the norm and
    radius of the ball.
    """
    found: dict[tuple[str, float], np.ndarray] = {}
    for name in evidence.column_names:
        if name.startswith(("probed ", "pictured ")):
            _, norm, eps = name.split(" ")
            broken = _column(evidence, name)
            found[norm, float(eps)] = broken | found.get((norm, float(eps)), np.zeros_like(broken))
    return found


def check_sandwich(evidence: pa.Table, row: str) -> None:
    """
    Raises:
        BenchmarkError: an image is certified although misclassified, or both certified and successfully attacked; with
            the image's index, both verdicts and both margins.
    """
    for attack in attack_ids(evidence):
        for norm in ("linf", "l2"):
            _finite(evidence, f"{attack}:{norm}", row)
    if "certified_l2" not in evidence.column_names:
        _finite(evidence, "clean_margin", row)
        return
    radius, margin = _finite(evidence, "certified_l2", row), _finite(evidence, "clean_margin", row)
    wrong = np.flatnonzero((radius > 0) & (margin <= 0))
    if len(wrong):
        image = int(wrong[0])
        raise BenchmarkError(
            f"{row}: image {image} is certified at l2 {radius[image]:.6g} but misclassified when clean "
            f"(margin {margin[image]:.6g}); the certificate is wrong and nothing is published"
        )
    for attack in attack_ids(evidence):
        distance = _finite(evidence, f"{attack}:l2", row)
        contradicted = np.flatnonzero(_column(evidence, f"{attack}:success") & (distance <= radius + ROUNDING))
        if len(contradicted):
            image = int(contradicted[0])
            raise BenchmarkError(
                f"{row}: image {image} is certified at l2 {radius[image]:.6g} (clean margin {margin[image]:.6g}) but "
                f"{attack} broke it at l2 {distance[image]:.6g} (margin {_column(evidence, f'{attack}:margin')[image]:.6g}); "
                "the certificate is wrong and nothing is published"
            )
    for (norm, eps), broken in probed(evidence).items():
        contradicted = np.flatnonzero(broken & (norm == "L2") & (eps <= radius))
        if len(contradicted):
            image = int(contradicted[0])
            raise BenchmarkError(
                f"{row}: image {image} is certified at l2 {radius[image]:.6g} (clean margin {margin[image]:.6g}) but a "
                f"probe broke it within l2 {eps:g}; the certificate is wrong and nothing is published"
            )


def check_smoothed(evidence: pa.Table, rules: SmoothingSpec, row: str) -> None:
    """Checks the smoothed radii against their counts: for every smoothed classifier whose radius is smaller than the one
    given, at least `count` of `samples` votes for the candidate must be less likely than alpha / looks.

    Raises:
        BenchmarkError: the counts do not carry a radius, or contradict each other or the rules; with the image's index.
    """
    radius = _finite(evidence, "smoothed_l2", row)
    names = ("prediction", "candidate", "count", "samples", "spent")
    prediction, candidate, count, samples, spent = (_finite(evidence, f"smoothed_{name}", row) for name in names)
    answered = radius > 0
    fits = (radius >= 0) & (prediction == np.where(answered, candidate, -1)) & (count >= 0) & (count <= samples)
    fits &= (samples >= 1) & (samples + rules.n0 <= spent) & (spent <= rules.n + rules.n0)
    some = np.maximum(count, 1)  # no hit at all carries no radius; betainc wants a positive count
    tail = np.where(count > 0, betainc(some, np.maximum(samples - some, 0) + 1, ndtr(radius / rules.sigma)), 1.0)
    wrong = np.flatnonzero(~fits | (answered & (tail > rules.alpha / rules.looks)))
    if len(wrong):
        image = int(wrong[0])
        raise BenchmarkError(
            f"{row}: image {image} has smoothed l2 radius {radius[image]:.6g} and class {prediction[image]}, which do not "
            f"follow from {count[image]} of {samples[image]} samples on class {candidate[image]}, {spent[image]} drawn; "
            "nothing is published"
        )


def clean(evidence: pa.Table) -> Proportion:
    return proportion(_column(evidence, "clean_margin") > 0)


def after_attack(evidence: pa.Table, attack: str) -> Proportion:
    """Accuracy when this attack alone is run."""
    return proportion((_column(evidence, "clean_margin") > 0) & ~_column(evidence, f"{attack}:success"))


def robust(evidence: pa.Table, track: Track, adaptive: tuple[AttackSpec, ...] = ()) -> tuple[RobustResult, ...]:
    """For each threat model of the track: the share of images correct when clean that no attack broke within its radius, be
    it the track's, one of the `adaptive` ones that were made for the row, or a probe of the attacks' reliability.
    """
    specs = {spec.id: spec for suite in (*track.suites.values(), adaptive) for spec in suite}
    results = []
    for threat in track.threats:
        unbroken = _column(evidence, "clean_margin") > 0
        for attack in attack_ids(evidence):
            near = _column(evidence, f"{attack}:{threat.norm.lower()}") <= threat.eps + ROUNDING
            unbroken &= ~(_column(evidence, f"{attack}:success") & near)
        for (norm, eps), broken in probed(evidence).items():
            if norm == threat.norm and eps <= threat.eps:
                unbroken &= ~broken
        inside = tuple(i for i, s in specs.items() if s.norm == threat.norm and s.eps <= threat.eps)
        results.append(RobustResult(threat=threat, accuracy=proportion(unbroken), attacks=inside))
    return tuple(results)


def certified(evidence: pa.Table, track: Track, certificate: str) -> tuple[CertifiedResult, ...]:
    """For each radius of the track: the share of images correct when clean whose certified radius reaches it."""
    correct, radius = _column(evidence, "clean_margin") > 0, _column(evidence, "certified_l2")
    return tuple(
        CertifiedResult(
            threat=ThreatModel(norm="L2", eps=eps),
            accuracy=proportion(correct & (radius >= eps)),
            certificate=certificate,
        )
        for eps in track.certified_radii
    )


def smoothed(evidence: pa.Table, track: Track, rules: SmoothingSpec, guarantee: str) -> SmoothedResult:
    """The smoothed version's numbers: correct where it answers with the label; certified where its radius reaches too."""
    correct = _column(evidence, "smoothed_prediction") == _column(evidence, "label")
    radius = _column(evidence, "smoothed_l2")
    return SmoothedResult(
        rules=rules,
        guarantee=guarantee,
        spent=float(_column(evidence, "smoothed_spent").mean()),
        clean=proportion(correct),
        certified=tuple(
            CertifiedResult(
                threat=ThreatModel(norm="L2", eps=eps),
                accuracy=proportion(correct & (radius >= eps)),
                certificate="smoothing",
            )
            for eps in track.certified_radii
        ),
    )


def corrupted(evidence: pa.Table, rules: CorruptionSpec, parameters: str, versions: dict[str, str]) -> CorruptionResult:
    """Accuracy on the corrupted copies: of each corruption and severity, and the means over them.

    Raises:
        BenchmarkError: a corruption or severity of the rules lacks its column, or an image its verdict.
    """
    correct = {cell: _verdicts(evidence, f"corrupted {cell[0]} {cell[1]}") for cell in rules.cells}

    def mean(*cells: tuple[str, int]) -> Proportion:
        return mean_proportion(np.stack([correct[cell] for cell in cells]))

    return CorruptionResult(
        rules=rules,
        parameters=parameters,
        versions=versions,
        accuracy=mean(*rules.cells),
        severities=tuple(mean(*((name, severity) for name in rules.names)) for severity in rules.severities),
        corruptions=tuple(
            CorruptionAccuracy(
                name=name,
                severities=tuple(proportion(correct[name, severity]) for severity in rules.severities),
                mean=mean(*((name, severity) for severity in rules.severities)),
            )
            for name in rules.names
        ),
    )


def mean_proportion(correct: np.ndarray) -> Proportion:
    """Share of true values among copies (m, n) of n images, with Wilson's 95% interval for n: only the images are
    independent, not the copies of one image. An image's share of correct copies lies in [0, 1], so its variance is at most
    p (1 - p), that of a single verdict.
    """
    n, share, z = correct.shape[1], np.count_nonzero(correct) / correct.size, float(ndtri(0.975))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    low, high = min(share, max(0.0, float(middle - half))), max(share, min(1.0, float(middle + half)))
    return Proportion(value=share, low=low, high=high, count=int(np.count_nonzero(correct)), n=correct.size)


def _verdicts(evidence: pa.Table, name: str) -> np.ndarray:
    if name not in evidence.column_names or evidence[name].null_count:
        raise BenchmarkError(f"the evidence column {name!r} is missing or lacks an image; run `rvb repro` to build it")
    return _column(evidence, name)


def _finite(evidence: pa.Table, name: str, row: str) -> np.ndarray:
    values = _column(evidence, name)
    if evidence[name].null_count or not np.isfinite(values).all():
        raise BenchmarkError(f"{row}: the evidence column {name} holds a value that is missing or not finite")
    return values


def _column(evidence: pa.Table, name: str) -> np.ndarray:
    return evidence[name].to_numpy()
