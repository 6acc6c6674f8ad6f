"""A published Record held against its published weights, where its evidence is not at hand: as in a fresh clone."""

from __future__ import annotations

import numpy as np

from benchmark.attacks import autoattack
from benchmark.replay.certificates import recheck
from benchmark.replay.findings import Findings
from benchmark.replay.judge import TOLERANCE, Judge, is_steady
from benchmark.results.attack import AttackResult
from benchmark.results.per_image import PerImage
from benchmark.results.record import Record
from benchmark.specs.threat import AttackSpec
from benchmark.verdicts.ball import into_ball
from benchmark.verdicts.prediction import predict

BROKEN, STANDING = 2, 2  # images of an attack that are attacked again
PARTS = ("apgd-ce", "apgd-t")  # of AutoAttack: those that break most, and take seconds


def replay(judge: Judge, record: Record, images: PerImage, sample: int, seed: int, findings: Findings) -> None:
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
