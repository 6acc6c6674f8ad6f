"""A Record's numbers counted again: from its numbers by image, and from the evidence. No model, no torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from benchmark.evaluation import evidence as counting
from benchmark.evaluation.evidence import (
    ATTENTION_COLUMNS,
    PATTERN_COLUMNS,
    attack_ids,
    check_sandwich,
    check_smoothed,
    column,
    corrupted,
    per_image,
    proportion,
    smoothed,
    without_attention,
)
from benchmark.evaluation.replay.findings import Findings
from benchmark.records.beside import WithoutAttention
from benchmark.records.per_image import PerImage, contradictions, shares
from benchmark.records.proportion import Proportion
from benchmark.records.record import Record
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import Track

OF_AN_ATTACK = ("success", "prediction", "margin", "linf", "l2")
OF_SMOOTHING = ("prediction", "l2", "candidate", "count", "samples", "spent")
PROBED = re.compile(r"(probed|pictured) (Linf|L2) \d[\d.e+-]*")
SAME_SHARE = 1e-9  # of an interval's ends, which other versions of scipy may round otherwise


def check_itself(record: Record, images: PerImage | None, findings: Findings) -> None:
    """What a Record and its numbers by image say of themselves: shares and intervals, sums, and the sandwich gate."""
    for name, share in numbers(record).items():
        again = Proportion.of(share.count, share.n) if 0 <= share.count <= share.n > 0 else None
        counts_images = not name.startswith("corrupted")  # an image has several corrupted copies
        if again is None or (counts_images and not _same(share, again)):
            findings.contradict(f"share of {name}", _words(share), _words(again))
    findings.check("shares with their intervals, worked out again", len(numbers(record)))
    if images is None:
        findings.unchecked.append("the sums over images: the Record's numbers by image are not here")
        return
    for words in contradictions(record, images):
        findings.contradict(words)
    _check_sums_sandwich(record, images, findings)
    findings.check("images' numbers: their sums, and certified <= robust <= clean", record.n)


def _check_sums_sandwich(record: Record, images: PerImage, findings: Findings) -> None:
    """Certified <= robust <= clean per image, by the radii and scores that stand beside the Record."""
    counted = {"clean": record.n} | {f"robust {one.threat.label}": one.accuracy.n for one in record.robust}
    scores = {name: np.array(images.score(name) or [], dtype=int) for name in counted}
    radii = np.array(images.radii.get("certified", (0.0,) * record.n))
    if any(len(scores[name]) != n for name, n in counted.items()) or len(radii) != record.n:
        return  # `contradictions` has said it
    clean = scores["clean"]
    for image in np.flatnonzero((radii > 0) & (clean == 0)).tolist():
        findings.contradict("certified, but wrong when clean", f"l2 {radii[image]:.6g}", "wrong when clean", image)
    for one in record.robust:
        label, eps = one.threat.label, one.threat.eps
        standing = scores[f"robust {label}"][: record.n]
        n = len(standing)  # those that are attacked
        if one.accuracy.n > record.n:
            findings.contradict(f"images of robust {label}", record.n, one.accuracy.n)
        for image in np.flatnonzero(standing > clean[:n]).tolist():
            findings.contradict(f"robust {label}, but wrong when clean", "robust", "wrong", image)
        reached = (radii[:n] >= eps) & (one.threat.norm == "L2") & (eps > 0)
        for image in np.flatnonzero(reached & (standing == 0)).tolist():
            findings.contradict(f"certified, but broken within {label}", f"l2 {radii[image]:.6g}", "broken", image)


def numbers(record: Record) -> dict[str, Proportion]:
    """All shares of a Record by name."""
    every = shares(record)
    if copies := record.corrupted:
        parts = [("severity", copies.severities), *((one.name, one.severities) for one in copies.corruptions)]
        for name, values in parts:
            every |= {f"corrupted {name} {s}": p for s, p in zip(copies.rules.severities, values, strict=True)}
    if record.attention:
        every |= {"uniform attention": record.attention.uniform.clean, "no attention": record.attention.none.clean}
        every |= {f"{what} pattern": part.clean for what, part in _patterns(record).items()}
    return every


def _patterns(record: Record) -> dict[str, WithoutAttention]:
    """What a Record has of other patterns: "mean", "other"."""
    parts = {what: getattr(record.attention, what, None) for what in PATTERN_COLUMNS}
    return {what: part for what, part in parts.items() if part}


def whole(evidence: pa.Table, record: Record, findings: Findings) -> bool:
    """Whether the evidence has a value of the right kind for every image wherever the Record needs one."""
    if evidence.num_rows != record.n:
        findings.contradict("images in the evidence", record.n, evidence.num_rows)
        return False
    probes = [name for name in evidence.column_names if counting.is_probe(name)]
    lacking = [name for name in [*_needed(record), *probes] if not _is_whole(evidence, name)]
    for name in lacking:
        findings.contradict(f"the evidence has no whole column {name!r}")
    ids = {attack.id for attack in record.attacks}
    for name in sorted({*attack_ids(evidence)} ^ ids):
        findings.contradict(f"attack {name} stands in the {'Record' if name in ids else 'evidence'} alone")
    return not lacking


def _needed(record: Record) -> list[str]:
    names = ["label", "clean_prediction", "clean_margin"]
    names += [f"{attack.id}:{what}" for attack in record.attacks for what in OF_AN_ATTACK]
    names += ["certified_l2"] if record.certified else []
    names += [f"smoothed_{what}" for what in OF_SMOOTHING] if record.smoothed else []
    cells = record.corrupted.rules.cells if record.corrupted else ()
    names += [*ATTENTION_COLUMNS.values()] if record.attention else []
    names += [PATTERN_COLUMNS[what] for what in _patterns(record)]
    return names + [f"corrupted {name} {severity}" for name, severity in cells]


def _is_whole(evidence: pa.Table, name: str) -> bool:
    if evidence.column_names.count(name) != 1 or not counting.is_whole(evidence, name):
        return False
    kind = evidence[name].type
    if name.endswith(":success") or name.startswith("corrupted ") or PROBED.fullmatch(name):
        return pa.types.is_boolean(kind)
    if name.startswith(("probed ", "pictured ")):
        return False
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def recount(record: Record, images: PerImage | None, evidence: pa.Table, track: Track, findings: Findings) -> None:
    """Every number of the Record, and every image's, from the `whole` evidence; the sandwich gate, and smoothing's."""
    again = recounted(record, evidence, track)
    was, now = numbers(record), numbers(again)
    for name in dict.fromkeys([*was, *now]):
        one, other = was.get(name), now.get(name)
        if one is None or other is None or not _same(one, other):
            findings.contradict(name, _words(one), _words(other))
    ours, theirs = (
        one.attention
        and (
            one.attention.uniform.changed,
            one.attention.none.changed,
            *(part.changed for part in _patterns(one).values()),
        )
        for one in (record, again)
    )
    if ours != theirs:
        findings.contradict("predictions that change when attention is replaced", ours, theirs)
    _gate(findings, lambda: check_sandwich(evidence, record.row))
    if rules := record.smoothed and record.smoothed.rules:
        _gate(findings, lambda: check_smoothed(evidence, rules, record.row))
    findings.check("numbers counted again from the evidence, and the sandwich gate", len(now))
    if images is None:
        return
    by_image = per_image(evidence, again)
    for kind, before, after in (
        ("of an image", images.scores, by_image.scores),
        ("radius", images.radii, by_image.radii),
    ):
        for name in {**before, **after}:
            recorded, found = (np.array([*side.get(name, ())]) for side in (before, after))
            if len(recorded) != len(found):
                findings.contradict(f"images with {name} {kind}", len(recorded), len(found))
            else:
                findings.compare(f"{name} {kind}", recorded, found)


def recounted(record: Record, evidence: pa.Table, track: Track) -> Record:
    """The Record with its numbers as the evidence has them. Of the open division without the attacks' own, which were counted
    against a clean pass of their stage.
    """
    changed: dict[str, Any] = {
        "clean": counting.clean(evidence),
        "robust": counting.robust(evidence, track, record.settings.adaptive),
    }
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
        made = record.smoothed
        changed["smoothed"] = smoothed(evidence, track.certified_radii, made.rules, made.guarantee)
    if record.corrupted:
        seen = record.corrupted
        changed["corrupted"] = corrupted(evidence, seen.rules, seen.parameters, seen.versions)
    if {*ATTENTION_COLUMNS.values()} <= {*evidence.column_names}:
        changed["attention"] = without_attention(evidence)
    return record.model_copy(update=changed)


def _gate(findings: Findings, gate: Callable[[], None]) -> None:
    try:
        gate()
    except BenchmarkError as error:
        findings.contradict(str(error).removeprefix(f"{findings.row}: ").partition("; ")[0])


def _same(one: Proportion, other: Proportion) -> bool:
    near = all(abs(getattr(one, end) - getattr(other, end)) <= SAME_SHARE for end in ("value", "low", "high"))
    return near and (one.count, one.n) == (other.count, other.n)


def _words(share: Proportion | None) -> str:
    if share is None:
        return "none"
    return f"{share.count} of {share.n} ({share.value:.6g}, {share.low:.6g} to {share.high:.6g})"
