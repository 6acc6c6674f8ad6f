"""Compare a Record with all the bytes that are at hand, in a process that had no part in making it.

Where a row's evidence is not at hand, as in a fresh clone, its published weights are replayed (`_replay_published`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from benchmark.data.tensors import tensors
from benchmark.evaluation.division import RANDOM
from benchmark.evaluation.evidence import unbroken
from benchmark.evaluation.replay.evaluator import PARTS, Evaluator
from benchmark.evaluation.replay.findings import Source, Verification
from benchmark.evaluation.replay.recount import check_itself, check_rules, recount, whole
from benchmark.evaluation.replay.stored import Stored, check_kept, read, read_tensors
from benchmark.records.evidence import attacked, column, is_probe
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record
from benchmark.records.regression import Built, differences
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.machine import environment, machine
from benchmark.sandbox.model import evaluated_model
from benchmark.specs.rows import Row
from benchmark.specs.threat import AttackSpec

BROKEN, STANDING = 2, 2  # images of an attack that are attacked again
UNSTEADY = (RANDOM, "the model changes its own")  # reasons of the open division: another pass may answer otherwise


def verify(built: Built, of: Source, row: Row | BenchmarkError, device: torch.device, sample: int, seed: int) -> Verification:
    """Make all checks of one Record; `of` says where it is kept.

    Args:
        row: the row in the working directory, or why there is none; then only the Record itself is checked.
        sample: certificates made again, 0 for all; `seed` draws them.
    """
    record, findings = built.record, Verification.begin(built.record, of)
    check_itself(record, built.images, findings)
    replayed = False
    if reason := other_row(record, row):
        findings.unchecked.append(f"weights, data, evidence and images: {reason}")
    elif isinstance(row, Row):
        try:
            replayed = _by_bytes(built, row, device, sample, seed, findings)
        except BenchmarkError as error:
            findings.contradict(str(error))
    findings.unchecked.append("training, parameters, FLOPs, digests of code, claims: `rvb repro` and `rvb regress` do that")
    if replayed and findings.holds:
        findings.tier = "replayed"
    return findings


def other_row(record: Record, row: Row | BenchmarkError) -> str:
    """Return why the row in the working directory is not the Record's; "" where it is."""
    if isinstance(row, BenchmarkError):
        return str(row)
    if record.track_version != row.track.version:
        return f"computed by version {record.track_version} of the track, which is at {row.track.version} today"
    settings = row.settings
    if (record.settings.model, record.settings.certificate) != (settings.model, settings.certificate):
        return "submission.yaml asks for another model or certificate today"
    if record.division != row.submission.division:
        return f"the submission is in the division {row.submission.division} today, the Record in {record.division}"
    return ""


@contextmanager
def opened(
    record: Record, row: Row, device: torch.device, findings: Verification, *, exact: bool
) -> Iterator[tuple[Stored, Evaluator | None]]:
    """Yield the bytes at hand of a Record, and the evaluator of its network; None where weights or data are not its own."""
    # the row's process starts before labels are read, of which it would otherwise have a copy
    with evaluated_model(row, device) if row.weights.exists() else nullcontext() as sandboxed:
        stored = read(row, record, findings)
        if sandboxed is None or not stored.weights or stored.images is None:
            yield stored, None
            return
        images, labels = (tensor.to(device) for tensor in tensors(stored.images))
        rules = row.track.evaluation
        torch.manual_seed(rules.seed)  # for what an open model draws
        sandboxed.confirm(images, rules.batch_size, row.name)
        yield stored, Evaluator(sandboxed.model, images, labels, rules.batch_size, exact, findings)


def _by_bytes(built: Built, row: Row, device: torch.device, sample: int, seed: int, findings: Verification) -> bool:
    """Check digests, numbers and verdicts. Return whether all of it could be replayed."""
    record, images = built.record, built.images
    local = replace(built, record=record.model_copy(update={"environment": environment()}), machine=machine())
    unlike = differences(built, local)
    check_rules(record, row, findings)
    with opened(record, row, device, findings, exact=not unlike) as (stored, evaluator):
        if findings.own:
            check_kept(row, record, stored, findings)
        if evaluator and unlike:
            findings.unchecked.append(f"last bits of margins and distances: {', '.join(unlike)}")
        if stored.evidence is None or not whole(stored.evidence, record, findings):
            findings.unchecked.append("every margin and attack: there is no evidence to compare them with")
            if evaluator:
                _replay_published(evaluator, record, images, sample, seed)
            return False
        recount(record, images, stored.evidence, row.track, findings)
        _note_never_stored(row, record, stored.evidence, findings)
        if evaluator is None:
            findings.unchecked.append("verdicts and certificates: they need the Record's own weights and data")
            return False
        replayed = _replay(evaluator, row, record, stored, stored.evidence)
        spec = record.settings.certificate
        if spec:
            replayed &= evaluator.recheck(spec, column(stored.evidence, "certified_l2"), sample, seed)
        return replayed


def _is_steady(record: Record, findings: Verification, what: str) -> bool:
    """Return whether another pass over the same images has to give the same; else note `what` is not compared."""
    steady = record.division == "closed" or not any(reason.startswith(UNSTEADY) for reason in record.division_reasons)
    if not steady:
        findings.unchecked.append(f"{what}: the model is random, another pass says otherwise")
    return steady


def _replay_published(evaluator: Evaluator, record: Record, images: PerImage, sample: int, seed: int) -> None:
    """Compare clean predictions of all images, `sample` certificates, and AutoAttack on a few images, drawn by `seed`."""
    findings = evaluator.findings
    if not _is_steady(record, findings, "verdicts"):
        return
    verdicts = evaluator.verdicts(evaluator.images)
    clear = evaluator.exact | (np.abs(verdicts.margin) > evaluator.reach(verdicts))
    recorded, right = _right(images, "clean"), verdicts.margin > 0
    findings.compare("clean, right", recorded, right, (recorded != right) & clear)
    findings.check("clean predictions", len(recorded))
    spec = record.settings.certificate
    if spec is not None and "certified" in images.radii:
        evaluator.recheck(spec, np.array(images.radii["certified"]), sample, seed)
    for attack in record.attacks:
        if attack.spec.attack == "autoattack" and attack.id in images.scores:
            _attack_again(evaluator, attack.spec, right, _right(images, attack.id), seed)


def _right(images: PerImage, name: str) -> np.ndarray:
    return np.array([digit == "1" for digit in images.scores[name]])


def _attack_again(evaluator: Evaluator, spec: AttackSpec, right: np.ndarray, standing: np.ndarray, seed: int) -> None:
    """Attack some of the images that are recorded as robust, which have to stay so, and some that were broken."""
    draw, findings = np.random.default_rng(seed), evaluator.findings
    done, again = 0, 0
    for stood, count in ((True, STANDING), (False, BROKEN)):
        candidates = np.flatnonzero(right[: len(standing)] & (standing == stood))
        for image in sorted(draw.permutation(candidates)[:count].tolist()):
            broken = evaluator.breaks(spec, image)
            if stood and broken:
                findings.contradict(spec.id, "standing", "broken", image)
            done, again = done + 1, again + (broken is not stood)
    parts = " and ".join(PARTS)
    findings.check(f"images of {spec.id} attacked again by {parts}, of which {again} fared as recorded", done)


def _replay(evaluator: Evaluator, row: Row, record: Record, stored: Stored, evidence: pa.Table) -> bool:
    """Replay the clean images, then each attack's. Return whether all of them could be evaluated."""
    findings = evaluator.findings
    steady = _is_steady(record, findings, "predictions, margins and successes")
    evaluator.replay_clean(evidence, steady)
    if record.attention and steady:
        evaluator.replay_without_attention(evidence, row.data)
    of_attacks, done = evaluator.of_first(attacked(evidence)), 0
    for attack in [attack for attack in record.attacks if attack.id in stored.adversarial]:
        images = read_tensors(stored.adversarial[attack.id], [attack.id])
        if isinstance(images, str):
            findings.contradict(images)
        else:
            done += of_attacks.replay_attack(images[attack.id], attack.spec.threat, attack.id, evidence, steady)
    what = "ball, box, distances" + (", predictions, margins, success" if steady else "")
    findings.check(f"attacks' images, {len(of_attacks.images)} each: {what}", done)
    evaluator.note_undecided()
    return steady and done == len(record.attacks)


def _note_never_stored(row: Row, record: Record, evidence: pa.Table, findings: Verification) -> None:
    """Note what is in no file and so cannot be replayed."""
    probes = [name for name in evidence.column_names if is_probe(name)]
    if probes:
        without = evidence.drop_columns(probes)
        alone = {t.label: int((unbroken(without, t) & ~unbroken(evidence, t)).sum()) for t in row.track.threats}
        words = ", ".join(f"{count} in {label}" for label, count in alone.items() if count) or "none"
        findings.unchecked.append(
            f"images of the probes (reliability, pictures), which are not stored; images that only they broke: {words}"
        )
    if record.smoothed:
        findings.unchecked.append("samples of the smoothed version, not stored: its radii were compared with its counts")
    if record.corrupted:
        findings.unchecked.append("corrupted copies, not stored: their verdicts count as recorded")
