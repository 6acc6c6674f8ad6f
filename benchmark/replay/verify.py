"""Compare a Record with all the bytes that are at hand, in a process that had no part in making it.

Where a row's evidence is not at hand, as in a fresh clone, its published weights stand in (`replay_published`).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from benchmark.attacks import autoattack
from benchmark.evaluation.evidence import attacked, column, is_probe, unbroken
from benchmark.loading.rows import Row
from benchmark.loading.trained import tensors
from benchmark.replay import judge as judging
from benchmark.replay.certificates import recheck
from benchmark.replay.findings import Findings
from benchmark.replay.judge import TOLERANCE, Judge, is_steady
from benchmark.replay.recount import check_itself, recount, whole
from benchmark.replay.stored import Stored, check_kept, read, read_tensors
from benchmark.results.attack import AttackResult
from benchmark.results.per_image import PerImage
from benchmark.results.record import Record
from benchmark.results.regression import Built, differences
from benchmark.results.verification import Source, Verification
from benchmark.runtime.environment import environment
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.machine import machine
from benchmark.sandbox.model import evaluated_model
from benchmark.specs.threat import AttackSpec
from benchmark.verdicts.ball import into_ball
from benchmark.verdicts.prediction import predict

BROKEN, STANDING = 2, 2  # images of an attack that are attacked again
PARTS = ("apgd-ce", "apgd-t")  # of AutoAttack: those that break most, and take seconds


def replay_published(
    judge: Judge, record: Record, images: PerImage, sample: int, seed: int, findings: Findings
) -> None:
    """Clean predictions of all images, `sample` certificates, and AutoAttack on a few images, drawn by `seed`."""
    if not is_steady(record):
        findings.unchecked.append("verdicts: the model is random, another pass says otherwise")
        return
    _clean(judge, images, findings)
    spec = record.settings.certificate
    if spec is not None and "certified" in images.radii:
        recheck(judge, spec, np.array(images.radii["certified"]), sample, seed, findings)
    for attack in record.attacks:
        if attack.spec.attack == "autoattack" and attack.id in images.scores:
            _attack(judge, attack, _values(images, attack.id), STANDING, seed, findings)


def _values(images: PerImage, name: str) -> np.ndarray:
    return np.array([int(digit) for digit in images.scores[name]])


def _clean(judge: Judge, images: PerImage, findings: Findings) -> None:
    recorded, found = _values(images, "clean") > 0, judge.verdicts(judge.images)
    clear = judge.exact | (np.abs(found.margin) > TOLERANCE * (1 + found.largest))
    right = found.margin > 0
    findings.compare("clean, right", recorded, right, (recorded != right) & clear)
    findings.check("clean predictions", len(recorded))


def _attack(judge: Judge, attack: AttackResult, standing: np.ndarray, most: int, seed: int, findings: Findings) -> None:
    """Attack again some of the images that stood, which have to stand, and of those that were broken."""
    clean = judge.verdicts(judge.images).margin[: len(standing)] > 0
    draw = np.random.default_rng(seed)
    done, again = 0, 0
    for stood, count in ((True, most), (False, BROKEN)):
        candidates = np.flatnonzero(clean & ((standing > 0) == stood))
        for image in sorted(draw.permutation(candidates)[:count].tolist()):
            broken = _broken(judge, attack.spec, image)
            if stood and broken:
                findings.contradict(f"{attack.id}", "standing", "broken", image)
            done, again = done + 1, again + (broken is not stood)
    parts = " and ".join(PARTS)
    findings.check(f"images of {attack.id} attacked again by {parts}, of which {again} fared as recorded", done)


def _broken(judge: Judge, spec: AttackSpec, image: int) -> bool:
    """Whether a part of AutoAttack breaks an image, with the random numbers that it had in the Record."""
    x, y = judge.images[image : image + 1], judge.labels[image : image + 1]
    for part in PARTS:
        found = autoattack.attack(judge.model, x, y, spec.threat, seed=spec.seed, component=part, indices=[image])
        found = into_ball(found, x, spec.threat, spec.id)
        if not predict(judge.model, found, y, judge.batch_size).correct.all():
            return True
    return False


@dataclass(frozen=True)
class Target(Built):
    """A Record to verify; `of` says where it stands."""

    of: Source

    @property
    def own(self) -> bool:
        """Whether the bytes in work/ stand beside it, and so have to be its own."""
        return self.of != "published"


def verify(target: Target, row: Row | BenchmarkError, device: torch.device, sample: int, seed: int) -> Verification:
    """All checks of one Record.

    Args:
        row: as it is today, or why it is no row today; then the Record is held against itself alone.
        sample: certificates made again, 0 for all; `seed` draws them.
    """
    findings, record = Findings(target.record.row), target.record
    check_itself(record, target.images, findings)
    replayed = False
    if reason := other_row(record, row):
        findings.unchecked.append(f"weights, data, evidence and images: {reason}")
    elif isinstance(row, Row):
        try:
            replayed = _by_bytes(target, row, device, sample, seed, findings)
        except BenchmarkError as error:
            findings.contradict(str(error))
    findings.unchecked.append(
        "training, parameters, FLOPs, digests of code, claims: `rvb repro` and `rvb regress` do that"
    )
    return Verification(
        track=record.track,
        row=record.row,
        of=target.of,
        trust=record.trust,
        tier="replayed" if replayed and not findings.contradictions else "claimed",
        checked=tuple(findings.checked),
        unchecked=tuple(findings.unchecked),
        contradictions=tuple(findings.contradictions),
    )


def other_row(record: Record, row: Row | BenchmarkError) -> str:
    """Why today's row is not the one that the Record speaks of; "" where it is."""
    if isinstance(row, BenchmarkError):
        return str(row)
    if record.track_version != row.track.version:
        return f"computed by version {record.track_version} of the track, which is at {row.track.version} today"
    now = row.settings
    if (record.settings.model, record.settings.certificate) != (now.model, now.certificate):
        return "submission.yaml asks for another model or certificate today"
    if record.division != row.submission.division:
        return f"the submission is in the division {row.submission.division} today, the Record in {record.division}"
    return ""


def _by_bytes(target: Target, row: Row, device: torch.device, sample: int, seed: int, findings: Findings) -> bool:
    """Digests, numbers, and what the model says today; whether all of it was there to be replayed."""
    record = target.record
    # the row's process starts before labels are read, of which it would else have a copy
    with evaluated_model(row, device) if row.weights.exists() else nullcontext() as judged:
        stored = read(row, record, target.own, findings)
        if target.own:
            check_kept(row, record, stored, findings)
        if stored.evidence is None or not whole(stored.evidence, record, findings):
            findings.unchecked.append("every margin and attack: there is no evidence to hold them against")
            if stored.weights and stored.images is not None and judged is not None and target.images is not None:
                images, labels = (one.to(device) for one in tensors(stored.images))
                size = row.track.evaluation.batch_size
                judge = Judge(judged.model, images, labels, size, _is_exact(target, findings))
                replay_published(judge, record, target.images, sample, seed, findings)
            return False
        recount(record, target.images, stored.evidence, row.track, findings)
        _note_never_stored(row, record, stored.evidence, findings)
        if not stored.weights or stored.images is None or judged is None:
            findings.unchecked.append("verdicts and certificates: they need the Record's own weights and data")
            return False
        images, labels = (one.to(device) for one in tensors(stored.images))
        exact = _is_exact(target, findings)
        judged.confirm(images, row.track.evaluation.batch_size, row.name)
        judge = Judge(judged.model, images, labels, row.track.evaluation.batch_size, exact)
        replayed = _replay(judge, record, stored, findings)
        return _recheck(judge, record, stored, sample, seed, findings) and replayed


def _is_exact(target: Target, findings: Findings) -> bool:
    """Whether this process computes as the one did that made the Record."""
    here = Built(target.record.model_copy(update={"environment": environment()}), target.images, machine())
    unlike = differences(target, here)
    if unlike:
        findings.unchecked.append(f"last bits of margins and distances: {', '.join(unlike)}")
    return not unlike


def _replay(judge: Judge, record: Record, stored: Stored, findings: Findings) -> bool:
    """Clean images, then each attack's; whether every one could be judged."""
    assert stored.evidence is not None  # checked by who asks
    steady = is_steady(record)
    if not steady:
        findings.unchecked.append(
            "predictions, margins and successes: the model is random, another pass says otherwise"
        )
    judging.replay_clean(judge, stored.evidence, steady, findings)
    if record.attention and steady:
        judging.replay_without_attention(judge, stored.evidence, findings)
    of_attacks, done = judge.of_first(attacked(stored.evidence)), 0
    for attack in record.attacks:
        if attack.id not in stored.adversarial:
            continue  # said where they were looked for
        path = stored.adversarial[attack.id]
        images = read_tensors(path, [attack.id])
        if not isinstance(images, dict):
            findings.contradict(images)
            continue
        done += judging.replay_attack(
            of_attacks, images[attack.id], attack.spec.threat, attack.id, stored.evidence, steady, findings
        )
    what = "ball, box, distances" + (", predictions, margins, success" if steady else "")
    findings.check(f"attacks' images, {len(of_attacks.images)} each: {what}", done)
    judging.note_undecided(judge, findings)
    return steady and done == len(record.attacks)


def _recheck(judge: Judge, record: Record, stored: Stored, sample: int, seed: int, findings: Findings) -> bool:
    spec = record.settings.certificate
    if spec is None and record.certificate is None:
        return True
    if spec is None or record.certificate is None or record.certificate.name != spec.name:
        findings.contradict("certificate", spec and spec.name, record.certificate and record.certificate.name)
        return False
    assert stored.evidence is not None  # checked by who asks
    return recheck(judge, spec, column(stored.evidence, "certified_l2"), sample, seed, findings)


def _note_never_stored(row: Row, record: Record, evidence: pa.Table, findings: Findings) -> None:
    """What no file holds, so that nobody can replay it."""
    probes = [name for name in evidence.column_names if is_probe(name)]
    if probes:
        without = evidence.drop_columns(probes)
        alone = {t.label: int((unbroken(without, t) & ~unbroken(evidence, t)).sum()) for t in row.track.threats}
        words = ", ".join(f"{count} in {label}" for label, count in alone.items() if count) or "none"
        findings.unchecked.append(
            f"images of the probes (reliability, pictures), which are not stored; images that only they broke: {words}"
        )
    if record.smoothed:
        findings.unchecked.append("samples of the smoothed version, not stored: its radii were held against its counts")
    if record.corrupted:
        findings.unchecked.append("corrupted copies, not stored: their verdicts count as recorded")
