"""Per-image evidence of one row: merged from the stages, held against itself, counted into a Record. No torch here.

The sandwich gate: on the same images, certified <= robust <= clean, per image. Every adversarial image counts wherever
its measured distance lets it, whichever norm and radius it was looked for in: one found in a Linf ball whose l2 distance
is 0.3 breaks the image at every l2 radius from 0.3 on, and contradicts a certified l2 radius of 0.3 or more.

A track may attack the first of its evaluation images alone. What attacks and probes found is null for all others; here such a
column has the attacked images alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmark.evaluation.proportion import proportion
from benchmark.results.attack import RobustResult
from benchmark.results.certificate import CertifiedResult
from benchmark.results.proportion import Proportion
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, ThreatModel
from benchmark.specs.track import Track

ROUNDING = 1e-12
SHARED = ("label", "clean_prediction", "clean_margin")  # what every stage says of an image


def merge(tables: dict[str, pa.Table], open_division: bool = False) -> pa.Table:
    """One row an image, in order, with the columns of all stages and `image`, its place among the evaluation images.

    The clean margin is the first stage's: stages run on different machines may differ in its last digits. In the open
    division a model may answer otherwise in every stage: then it is the least, and the prediction that which goes with it.

    Raises:
        BenchmarkError: two stages disagree about a label or, in the closed division, the clean verdict of an image, or
            share another column.
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
        columns |= _least_clean([*tables.values()])
    return pa.table(columns)


def unsteady(tables: dict[str, pa.Table]) -> int:
    """On how many images the stages disagree about the clean prediction or verdict."""
    seen = [np.stack([column(t, "clean_prediction"), column(t, "clean_margin") > 0]) for t in tables.values()]
    return int((np.stack(seen) != seen[0]).any((0, 1)).sum())


def _least_clean(tables: list[pa.Table]) -> dict[str, pa.Array]:
    margins = np.stack([column(table, "clean_margin") for table in tables])
    predictions = np.stack([column(table, "clean_prediction") for table in tables])
    least, images = margins.argmin(0), np.arange(margins.shape[1])
    return {
        "clean_margin": pa.array(margins[least, images]),
        "clean_prediction": pa.array(predictions[least, images]),
    }


def attack_ids(evidence: pa.Table) -> list[str]:
    return [name.removesuffix(":success") for name in evidence.column_names if name.endswith(":success")]


def attacked(evidence: pa.Table) -> int:
    """How many images are attacked, the first ones; all where nothing attacks."""
    found = [
        len(column(evidence, name)) for name in evidence.column_names if name.endswith(":success") or is_probe(name)
    ]
    return min(found, default=evidence.num_rows)


def is_probe(name: str) -> bool:
    return name.startswith(("probed ", "pictured "))


def probed(evidence: pa.Table) -> dict[tuple[str, float], np.ndarray]:
    """Which of the attacked images (m,) the probes of the stage `reliability`, or PGD for the stage `pictures`, broke, by
    the norm and radius of the ball.
    """
    found: dict[tuple[str, float], np.ndarray] = {}
    for name in evidence.column_names:
        if is_probe(name):
            _, norm, eps = name.split(" ")
            broken = column(evidence, name)
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
            finite_column(evidence, f"{attack}:{norm}", row)
    if "certified_l2" not in evidence.column_names:
        finite_column(evidence, "clean_margin", row)
        return
    radius, margin = finite_column(evidence, "certified_l2", row), finite_column(evidence, "clean_margin", row)
    wrong = np.flatnonzero((radius > 0) & (margin <= 0))
    if len(wrong):
        image = int(wrong[0])
        raise BenchmarkError(
            f"{row}: image {image} is certified at l2 {radius[image]:.6g} but misclassified when clean "
            f"(margin {margin[image]:.6g}); the certificate is wrong and nothing is published"
        )
    for attack in attack_ids(evidence):
        distance = finite_column(evidence, f"{attack}:l2", row)
        reached = distance <= radius[: len(distance)] + ROUNDING
        contradicted = np.flatnonzero(column(evidence, f"{attack}:success") & reached)
        if len(contradicted):
            image = int(contradicted[0])
            raise BenchmarkError(
                f"{row}: image {image} is certified at l2 {radius[image]:.6g} (clean margin {margin[image]:.6g}) but "
                f"{attack} broke it at l2 {distance[image]:.6g} (margin {column(evidence, f'{attack}:margin')[image]:.6g}); "
                "the certificate is wrong and nothing is published"
            )
    for (norm, eps), broken in probed(evidence).items():
        contradicted = np.flatnonzero(broken & (norm == "L2") & (eps <= radius[: len(broken)]))
        if len(contradicted):
            image = int(contradicted[0])
            raise BenchmarkError(
                f"{row}: image {image} is certified at l2 {radius[image]:.6g} (clean margin {margin[image]:.6g}) but a "
                f"probe broke it within l2 {eps:g}; the certificate is wrong and nothing is published"
            )


def clean(evidence: pa.Table) -> Proportion:
    return proportion(column(evidence, "clean_margin") > 0)


def robust(evidence: pa.Table, track: Track, adaptive: tuple[AttackSpec, ...] = ()) -> tuple[RobustResult, ...]:
    """For each threat model of the track: attacked images right when clean that no attack broke within its radius, be it the
    track's, one of the `adaptive` ones, brought against the row, or a probe of the attacks' reliability.

    Raises:
        BenchmarkError: other images were attacked than the track wants.
    """
    found, due = attacked(evidence), track.evaluation.attacked or evidence.num_rows
    if track.threats and found != due:
        raise BenchmarkError(f"{found} images were attacked where track {track.name} wants {due}; run `rvb repro`")
    specs = {spec.id: spec for suite in (*track.suites.values(), adaptive) for spec in suite}
    results = []
    for threat in track.threats:
        inside = tuple(i for i, s in specs.items() if s.norm == threat.norm and s.eps <= threat.eps)
        results.append(RobustResult(threat=threat, accuracy=proportion(unbroken(evidence, threat)), attacks=inside))
    return tuple(results)


def unbroken(evidence: pa.Table, threat: ThreatModel) -> np.ndarray:
    """Which of the attacked images (m,) are right when clean and within `threat` broken by no attack and no probe."""
    found: np.ndarray = column(evidence, "clean_margin")[: attacked(evidence)] > 0
    for attack in attack_ids(evidence):
        near = column(evidence, f"{attack}:{threat.norm.lower()}") <= threat.eps + ROUNDING
        found &= ~(column(evidence, f"{attack}:success") & near)
    for (norm, eps), broken in probed(evidence).items():
        if norm == threat.norm and eps <= threat.eps:
            found &= ~broken
    return found


def certified(evidence: pa.Table, track: Track, certificate: str) -> tuple[CertifiedResult, ...]:
    """For each radius of the track: images right when clean whose certified radius reaches it."""
    correct, radius = column(evidence, "clean_margin") > 0, column(evidence, "certified_l2")
    return reaching(track.certified_radii, correct, radius, certificate)


def reaching(
    radii: Sequence[float], right: np.ndarray, radius: np.ndarray, certificate: str
) -> tuple[CertifiedResult, ...]:
    """For each of `radii`: images that are `right` (n,) and whose l2 `radius` (n,) reaches it."""
    return tuple(
        CertifiedResult(
            threat=ThreatModel(norm="L2", eps=eps),
            accuracy=proportion(right & (radius >= eps)),
            certificate=certificate,
        )
        for eps in radii
    )


def finite_column(evidence: pa.Table, name: str, row: str) -> np.ndarray:
    values = column(evidence, name)
    if not is_whole(evidence, name) or not np.isfinite(values).all():
        raise BenchmarkError(f"{row}: the evidence column {name} holds a value that is missing or not finite")
    return values


def is_whole(evidence: pa.Table, name: str) -> bool:
    """Whether the column has a value of each image or, where it speaks of attacks, of each attacked one: as many as other
    such columns, the first ones.
    """
    values = evidence[name]
    of_attacks = is_probe(name) or ":" in name or name.startswith("probe ")
    known = attacked(evidence) if of_attacks else evidence.num_rows
    return values.null_count == len(values) - known and values.slice(0, known).null_count == 0


def column(evidence: pa.Table, name: str) -> np.ndarray:
    """The values that are known: see `attacked`."""
    values = evidence[name]
    return (values.drop_null() if values.null_count else values).to_numpy()
