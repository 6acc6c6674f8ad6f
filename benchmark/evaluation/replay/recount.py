"""Count a Record's numbers again: from its numbers by image, and from the evidence. No model, no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from benchmark.evaluation import evidence as counting
from benchmark.evaluation.evidence import ATTENTION_COLUMNS, PATTERN_COLUMNS, proportion
from benchmark.evaluation.replay.findings import Verification
from benchmark.records.accuracy import Proportion
from benchmark.records.beside import WithoutAttention
from benchmark.records.evidence import attack_ids, column, is_probe, is_whole, published_distances
from benchmark.records.per_image import PerImage, contradictions, shares
from benchmark.records.record import Record
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.rows import Row
from benchmark.specs.track import ADAPTIVE, Track

OF_AN_ATTACK = ("success", "prediction", "margin", "linf", "l2")
OF_SMOOTHING = ("prediction", "l2", "candidate", "count", "samples", "spent")
PROBED = re.compile(r"(probed|pictured) (Linf|L2) \d[\d.e+-]*")
SAME_SHARE = 1e-9  # of an interval's ends, which other versions of scipy may round differently


def check_itself(record: Record, images: PerImage, findings: Verification) -> None:
    """Check a Record and its numbers by image in themselves: shares and intervals, sums, and the sandwich gate."""
    shares_by_name = numbers(record)
    for name, share in shares_by_name.items():
        again = Proportion.of(share.count, share.n) if 0 <= share.count <= share.n > 0 else None
        counts_images = not name.startswith("corrupted")  # an image has several corrupted copies
        if again is None or (counts_images and not _same(share, again)):
            findings.contradict(f"share of {name}", _words(share), _words(again))
    findings.check("shares with their intervals, worked out again", len(shares_by_name))
    declared, given = (part and part.name for part in (record.settings.certificate, record.certificate))
    if declared != given:
        findings.contradict("certificate", declared, given)
    if record.certified and not given:
        findings.contradict("certified numbers of a Record without a certificate")
    for problem in contradictions(record, images):
        findings.contradict(problem.what, problem.recorded, problem.verdict, problem.image)
    findings.check("images' numbers: their sums, and certified <= robust <= clean", record.n)


def check_rules(record: Record, row: Row, findings: Verification) -> None:
    """Compare a Record's attacks and rules with its track's: without an attack or hard images it would count too much."""
    suites = {**row.track.suites, ADAPTIVE: record.settings.adaptive}
    due = {spec.id: (suite, spec) for suite, specs in suites.items() for spec in specs}
    reported = {attack.id: (attack.suite, attack.spec) for attack in record.attacks}
    for name in sorted(due.keys() | reported.keys()):
        if due.get(name) != reported.get(name):
            findings.contradict(f"attack {name} is not as track {record.track} asks")
    rules = row.track.evaluation
    for what, differ in {
        "number of images and the seed": (record.n, record.seed) != (rules.images, rules.seed),
        "smoothing": record.smoothed and record.smoothed.rules != row.track.smoothing,
        "corruptions": record.corrupted and record.corrupted.rules != row.track.corruptions,
    }.items():
        if differ:
            findings.contradict(f"{what} are not as track {record.track} asks")
    if record.settings.adaptive != row.settings.adaptive:
        findings.unchecked.append("attacks contributed against the row: submission.yaml declares others today")


def numbers(record: Record) -> dict[str, Proportion]:
    """Return all shares of a Record by name."""
    every = shares(record)
    if copies := record.corrupted:
        parts = [("severity", copies.severities), *((part.name, part.severities) for part in copies.corruptions)]
        for name, values in parts:
            every |= {f"corrupted {name} {s}": p for s, p in zip(copies.rules.severities, values, strict=True)}
    changed = _without_attention(record).items()
    return every | {name.removesuffix("_prediction").replace("_", " "): part.clean for name, part in changed}


def _without_attention(record: Record) -> dict[str, WithoutAttention]:
    """Return a Record's results with its attention replaced, by column of the evidence."""
    columns: list[tuple[str, str]] = [*ATTENTION_COLUMNS.items(), *PATTERN_COLUMNS.items()]
    return {name: part for what, name in columns if (part := getattr(record.attention, what, None))}


def whole(evidence: pa.Table, record: Record, findings: Verification) -> bool:
    """Return whether the evidence has a value of the right type for every image wherever the Record needs one."""
    if evidence.num_rows != record.n:
        findings.contradict("images in the evidence", record.n, evidence.num_rows)
        return False
    probes = [name for name in evidence.column_names if is_probe(name)]
    lacking = [name for name in [*_needed(record, evidence), *probes] if not _is_whole(evidence, name)]
    for name in lacking:
        findings.contradict(f"the evidence has no whole column {name!r}")
    ids = {attack.id for attack in record.attacks}
    for name in sorted({*attack_ids(evidence)} ^ ids):
        findings.contradict(f"attack {name} stands in the {'Record' if name in ids else 'evidence'} alone")
    return not lacking


def _needed(record: Record, evidence: pa.Table) -> list[str]:
    names = ["label", "clean_prediction", "clean_margin"]
    names += [f"{attack.id}:{what}" for attack in record.attacks for what in OF_AN_ATTACK]
    names += ["certified_l2"] if record.settings.certificate or record.certificate or record.certified else []
    names += [f"smoothed_{what}" for what in OF_SMOOTHING] if record.smoothed else []
    cells = record.corrupted.rules.cells if record.corrupted else ()
    names += sorted({*_without_attention(record), *({*PATTERN_COLUMNS.values()} & {*evidence.column_names})})
    return names + [f"corrupted {name} {severity}" for name, severity in cells]


def _is_whole(evidence: pa.Table, name: str) -> bool:
    if evidence.column_names.count(name) != 1 or not is_whole(evidence, name):
        return False
    dtype, probe = evidence[name].type, is_probe(name)
    if name.endswith(":success") or name.startswith("corrupted ") or probe:
        return pa.types.is_boolean(dtype) and (not probe or PROBED.fullmatch(name) is not None)
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype)


def recount(record: Record, images: PerImage, evidence: pa.Table, track: Track, findings: Verification) -> None:
    """Count every number of the Record, and every image's, from the `whole` evidence; check its gates."""
    again = recounted(record, evidence, track)
    before, after = numbers(record), numbers(again)
    for name in {**before, **after}:
        recorded, counted = before.get(name), after.get(name)
        if recorded is None or counted is None or not _same(recorded, counted):
            findings.contradict(name, _words(recorded), _words(counted))
    changed, counted_again = ([part.changed for part in _without_attention(r).values()] for r in (record, again))
    if changed != counted_again:
        findings.contradict("predictions that change when attention is replaced", changed, counted_again)
    _gate(findings, lambda: counting.check_sandwich(evidence, record.row))
    if rules := record.smoothed and record.smoothed.rules:
        _gate(findings, lambda: counting.check_smoothed(evidence, rules, record.row))
    findings.check("numbers counted again from the evidence, and the sandwich gate", len(after))
    counted_images = counting.by_image(evidence, again)
    _compare_images("of an image", images.scores, counted_images.scores, findings)
    _compare_images("radius", images.radii, counted_images.radii, findings)
    if images.broken:  # publishing adds them
        _compare_images("distance", {"broken": images.broken}, {"broken": published_distances(evidence)}, findings)


def _compare_images(
    kind: str, before: Mapping[str, Sequence[Any]], after: Mapping[str, Sequence[Any]], findings: Verification
) -> None:
    for name in {**before, **after}:
        recorded, counted = (np.array([*side.get(name, ())]) for side in (before, after))
        if len(recorded) != len(counted):
            findings.contradict(f"images with {name} {kind}", len(recorded), len(counted))
        else:
            findings.compare(f"{name} {kind}", recorded, counted)


def recounted(record: Record, evidence: pa.Table, track: Track) -> Record:
    """Return the Record with the numbers that the evidence gives. In the open division each attack's own number stays: it was
    counted against a clean pass of its stage.
    """
    robust = counting.robust(evidence, track, record.settings.adaptive)
    changed: dict[str, Any] = {"clean": counting.clean(evidence), "robust": robust}
    if record.certificate:
        changed["certified"] = counting.certified(evidence, track, record.certificate.name)
    if record.division == "closed":
        right, attacks = column(evidence, "clean_margin") > 0, []
        for attack in record.attacks:
            success = column(evidence, f"{attack.id}:success")
            accuracy = proportion(right[: len(success)] & ~success)
            attacks.append(attack.model_copy(update={"accuracy": accuracy}))
        changed["attacks"] = tuple(attacks)
    if record.smoothed:
        rules, guarantee = record.smoothed.rules, record.smoothed.guarantee
        changed["smoothed"] = counting.smoothed(evidence, track.certified_radii, rules, guarantee)
    if copies := record.corrupted:
        changed["corrupted"] = counting.corrupted(evidence, copies.rules, copies.parameters, copies.versions)
    if {*ATTENTION_COLUMNS.values()} <= {*evidence.column_names}:
        changed["attention"] = counting.without_attention(evidence)
    return record.model_copy(update=changed)


def _gate(findings: Verification, gate: Callable[[], None]) -> None:
    try:
        gate()
    except BenchmarkError as error:
        findings.contradict(str(error).removeprefix(f"{findings.row}: ").partition("; ")[0])


def _same(first: Proportion, second: Proportion) -> bool:
    near = all(abs(getattr(first, end) - getattr(second, end)) <= SAME_SHARE for end in ("value", "low", "high"))
    return near and (first.count, first.n) == (second.count, second.n)


def _words(share: Proportion | None) -> str:
    if share is None:
        return "none"
    return f"{share.count} of {share.n} ({share.value:.6g}, {share.low:.6g} to {share.high:.6g})"
