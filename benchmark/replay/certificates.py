"""A sample of a Record's certified radii made again, and attacked at those radii."""

from __future__ import annotations

import inspect

import numpy as np
import torch

from benchmark.attacks import pgd
from benchmark.evaluation.certified_radii import certificate_module, certified_radii
from benchmark.replay.findings import Findings
from benchmark.replay.judge import Judge
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.certificate import CertificateSpec
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import into_ball
from benchmark.verdicts.prediction import predict

SHORT = 1e-3  # relative: how much smaller a radius may come out, since each batch ends its search at another place
RESTARTS, STEPS = 4, 20  # of PGD down the margin


def recheck(judge: Judge, spec: CertificateSpec, radii: np.ndarray, sample: int, seed: int, findings: Findings) -> bool:
    """Certifies `sample` of the certified images again (0: all), drawn by `seed`, and attacks each at its recorded radius.

    The certificate has to give at least the recorded l2 `radii` (n,), less SHORT. False where it could not be asked.
    """
    certified = np.flatnonzero(radii > 0)
    count = min(sample, len(certified)) if sample else len(certified)
    chosen = np.sort(np.random.default_rng(seed).choice(certified, count, replace=False))
    place = torch.from_numpy(chosen).to(judge.images.device)
    try:
        again = certified_radii(judge.model, judge.images[place], judge.labels[place], _finer(spec), judge.batch_size)
    except BenchmarkError as error:
        findings.unchecked.append(f"certificates: {error}")
        return False
    for image, radius in zip(chosen.tolist(), again.tolist(), strict=True):
        if radius < radii[image] * (1 - SHORT):
            findings.contradict("certified l2 radius", f"{radii[image]:.9g}", f"{radius:.9g}", image)
        _attack(judge, image, float(radii[image]), seed, findings)
    findings.check(f"of {len(certified)} certified radii made again (at least, to {SHORT:g}) and attacked", count)
    return True


def _finer(spec: CertificateSpec) -> CertificateSpec:
    """The same certificate, searching finely enough for SHORT where it has a `precision`."""
    known = inspect.signature(certificate_module(spec.name).certify).parameters
    if "precision" not in known:
        return spec
    precision = min(float(spec.parameters.get("precision", known["precision"].default)), SHORT / 2)
    return spec.model_copy(update={"parameters": {**spec.parameters, "precision": precision}})


def _attack(judge: Judge, image: int, radius: float, seed: int, findings: Findings) -> None:
    """PGD within the certified ball, judged by the float32 model."""
    threat = ThreatModel(norm="L2", eps=radius)
    start = judge.images[image].repeat(RESTARTS, 1, 1, 1)
    labels = judge.labels[image].repeat(RESTARTS)
    found = pgd.attack(
        judge.model, start, labels, threat, seed=seed + image, steps=STEPS, step_size=radius / 5, climb="margin"
    )
    found = into_ball(found, start, threat, "pgd at the certified radius")
    margin = predict(judge.model, found, labels, RESTARTS).margin
    if not (margin > 0).all():
        words = f"broken there by pgd (margin {float(margin.min()):.6g})"
        findings.contradict("certified l2 radius", f"{radius:.9g}", words, image)
