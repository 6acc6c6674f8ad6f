"""Compare a Record with all the bytes that are at hand, in a process that had no part in making it.

Where a row's evidence is not at hand, as in a fresh clone, its published weights stand in (`_replay_published`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch

from benchmark.attacks import autoattack
from benchmark.attacks.ball import into_ball
from benchmark.attacks.prediction import predict
from benchmark.data.tensors import tensors
from benchmark.evaluation.evidence import attacked, column, is_probe, unbroken
from benchmark.evaluation.replay import judge as judging
from benchmark.evaluation.replay.findings import Findings, Source, Verification
from benchmark.evaluation.replay.judge import TOLERANCE, Judge, is_steady
from benchmark.evaluation.replay.recount import check_itself, recount, whole
from benchmark.evaluation.replay.stored import Stored, check_kept, read, read_tensors
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record
from benchmark.records.regression import Built, differences
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.machine import environment, machine
from benchmark.sandbox.model import evaluated_model
from benchmark.specs.rows import Row
from benchmark.specs.threat import AttackSpec

BROKEN, STANDING = 2, 2  # images of an attack that are attacked again
PARTS = ("apgd-ce", "apgd-t")  # of AutoAttack: those that break most, and take seconds


@dataclass(frozen=True)
class Target:
    """A Record to verify; `of` says where it stands."""

    built: Built
    of: Source

    @property
    def record(self) -> Record:
        return self.built.record

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
    check_itself(record, target.built.images, findings)
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


@contextmanager
def opened(
    record: Record, row: Row, device: torch.device, findings: Findings, *, own: bool, exact: bool
) -> Iterator[tuple[Stored, Judge | None]]:
    """The bytes at hand of a Record, and its network with its evaluation images, for as long as the block lasts; None in
    its place where weights or data are not the Record's.
    """
    # the row's process starts before labels are read, of which it would else have a copy
    with evaluated_model(row, device) if row.weights.exists() else nullcontext() as judged:
        stored = read(row, record, own, findings)
        if judged is None or not stored.weights or stored.images is None:
            yield stored, None
            return
        images, labels = (tensor.to(device) for tensor in tensors(stored.images))
        rules = row.track.evaluation
        torch.manual_seed(rules.seed)  # for what an open model draws
        judged.confirm(images, rules.batch_size, row.name)
        yield stored, Judge(judged.model, images, labels, rules.batch_size, exact)


def _by_bytes(target: Target, row: Row, device: torch.device, sample: int, seed: int, findings: Findings) -> bool:
    """Digests, numbers, and what the model says today; whether all of it was there to be replayed."""
    record, numbers = target.record, target.built.images
    here = replace(target.built, record=record.model_copy(update={"environment": environment()}), machine=machine())
    unlike = differences(target.built, here)
    with opened(record, row, device, findings, own=target.own, exact=not unlike) as (stored, judge):
        if target.own:
            check_kept(row, record, stored, findings)
        if judge and unlike:
            findings.unchecked.append(f"last bits of margins and distances: {', '.join(unlike)}")
        if stored.evidence is None or not whole(stored.evidence, record, findings):
            findings.unchecked.append("every margin and attack: there is no evidence to hold them against")
            if judge and numbers is not None:
                _replay_published(judge, record, numbers, sample, seed, findings)
            return False
        recount(record, numbers, stored.evidence, row.track, findings)
        _note_never_stored(row, record, stored.evidence, findings)
        if judge is None:
            findings.unchecked.append("verdicts and certificates: they need the Record's own weights and data")
            return False
        replayed = _replay(judge, record, stored, stored.evidence, findings)
        return _recheck(judge, record, stored.evidence, sample, seed, findings) and replayed


def _replay_published(
    judge: Judge, record: Record, images: PerImage, sample: int, seed: int, findings: Findings
) -> None:
    """Clean predictions of all images, `sample` certificates, and AutoAttack on a few images, drawn by `seed`."""
    if not is_steady(record):
        findings.unchecked.append("verdicts: the model is random, another pass says otherwise")
        return
    verdicts = judge.verdicts(judge.images)
    clear = judge.exact | (np.abs(verdicts.margin) > TOLERANCE * (1 + verdicts.largest))
    recorded, right = _right(images, "clean"), verdicts.margin > 0
    findings.compare("clean, right", recorded, right, (recorded != right) & clear)
    findings.check("clean predictions", len(recorded))
    spec = record.settings.certificate
    if spec is not None and "certified" in images.radii:
        judging.recheck(judge, spec, np.array(images.radii["certified"]), sample, seed, findings)
    for attack in record.attacks:
        if attack.spec.attack == "autoattack" and attack.id in images.scores:
            _attack(judge, attack.spec, right, _right(images, attack.id), seed, findings)


def _right(images: PerImage, name: str) -> np.ndarray:
    return np.array([digit == "1" for digit in images.scores[name]])


def _attack(
    judge: Judge, spec: AttackSpec, right: np.ndarray, standing: np.ndarray, seed: int, findings: Findings
) -> None:
    """Attack again some of the images that stood, which have to stand, and of those that were broken."""
    draw = np.random.default_rng(seed)
    done, again = 0, 0
    for stood, count in ((True, STANDING), (False, BROKEN)):
        candidates = np.flatnonzero(right[: len(standing)] & (standing == stood))
        for image in sorted(draw.permutation(candidates)[:count].tolist()):
            broken = _broken(judge, spec, image)
            if stood and broken:
                findings.contradict(spec.id, "standing", "broken", image)
            done, again = done + 1, again + (broken is not stood)
    parts = " and ".join(PARTS)
    findings.check(f"images of {spec.id} attacked again by {parts}, of which {again} fared as recorded", done)


def _broken(judge: Judge, spec: AttackSpec, image: int) -> bool:
    """Whether a part of AutoAttack breaks an image, with the random numbers that it had in the Record."""
    x, y = judge.images[image : image + 1], judge.labels[image : image + 1]
    for part in PARTS:
        found = autoattack.attack(judge.model, x, y, spec.threat, seed=spec.seed, component=part, indices=[image])
        found = into_ball(found, x, spec.threat, spec.id)
        if not predict(judge.model, found, y, judge.batch_size).correct.all():
            return True
    return False


def _replay(judge: Judge, record: Record, stored: Stored, evidence: pa.Table, findings: Findings) -> bool:
    """Clean images, then each attack's; whether every one could be judged."""
    steady = is_steady(record)
    if not steady:
        findings.unchecked.append(
            "predictions, margins and successes: the model is random, another pass says otherwise"
        )
    judging.replay_clean(judge, evidence, steady, findings)
    if record.attention and steady:
        judging.replay_without_attention(judge, evidence, findings)
    of_attacks, done = judge.of_first(attacked(evidence)), 0
    for attack in [attack for attack in record.attacks if attack.id in stored.adversarial]:
        images = read_tensors(stored.adversarial[attack.id], [attack.id])
        if isinstance(images, str):
            findings.contradict(images)
            continue
        done += judging.replay_attack(
            of_attacks, images[attack.id], attack.spec.threat, attack.id, evidence, steady, findings
        )
    what = "ball, box, distances" + (", predictions, margins, success" if steady else "")
    findings.check(f"attacks' images, {len(of_attacks.images)} each: {what}", done)
    judging.note_undecided(judge, findings)
    return steady and done == len(record.attacks)


def _recheck(judge: Judge, record: Record, evidence: pa.Table, sample: int, seed: int, findings: Findings) -> bool:
    spec = record.settings.certificate
    names = spec and spec.name, record.certificate and record.certificate.name
    if names[0] != names[1]:
        findings.contradict("certificate", *names)
        return False
    return spec is None or judging.recheck(judge, spec, column(evidence, "certified_l2"), sample, seed, findings)


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
