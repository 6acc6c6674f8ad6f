"""A row's model judging images anew, and its verdicts and certified radii held against recorded ones.

In the arithmetic of the Record every margin has to be the same to the bit. Elsewhere a margin may stray by TOLERANCE of the
largest logit; where that could turn a verdict, the verdict is undecided: no contradiction, and not checked either.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from benchmark.attacks import pgd
from benchmark.attacks.ball import ROUNDING, distances, into_ball
from benchmark.attacks.prediction import logits, margins, predict
from benchmark.attacks.replaced_attention import ReplacedAttention
from benchmark.evaluation.certified_radii import certificate_module, certified_radii
from benchmark.evaluation.division import RANDOM
from benchmark.evaluation.evidence import ATTENTION_COLUMNS, column
from benchmark.evaluation.replay.findings import Findings, some
from benchmark.records.record import Record
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.certificate import CertificateSpec
from benchmark.specs.threat import ThreatModel

SHORT = 1e-3  # relative: how much smaller a radius may come out, since each batch ends its search at another place
RESTARTS, STEPS = 4, 20  # of PGD down the margin, at a certified radius
TOLERANCE = 1e-4  # of 1 + the largest logit, where rounding differs
UNSTEADY = (RANDOM, "the model changes its own")  # reasons of the open division: another pass may say otherwise


@dataclass(frozen=True)
class Verdicts:
    """Of n images, each (n,): the class, the true logit less the largest other, and the lead of the class over the next."""

    prediction: np.ndarray
    margin: np.ndarray
    lead: np.ndarray
    largest: float  # logit, of all images


@dataclass
class Judge:
    """A row's `model` with the images (n, c, h, w) and labels (n,) that it is judged on, in batches of `batch_size`.

    `exact` says whether the same bits are due as in the evidence. `undecided` are the images whose verdict rests on rounding.
    """

    model: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    batch_size: int
    exact: bool
    undecided: set[int] = field(default_factory=set)

    def of_first(self, count: int) -> Judge:
        """The judge of the first images alone, with the same list of those undecided."""
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def verdicts(self, images: torch.Tensor) -> Verdicts:
        """Of images (n, c, h, w) in the place of the evaluation images; a BenchmarkError where a logit is not finite."""
        output = logits(self.model, images, self.batch_size)
        first, second = output.topk(2, dim=1).values.T
        found = (output.argmax(1), margins(output, self.labels), first - second)
        prediction, margin, lead = (tensor.cpu().numpy() for tensor in found)
        return Verdicts(prediction, margin, lead, float(output.abs().max()))

    def compare(
        self, evidence: pa.Table, prefix: str, found: Verdicts, findings: Findings, use: np.ndarray
    ) -> np.ndarray:
        """Holds predictions and margins of the images `use` (n,) against the evidence; which verdicts are decided (n,).

        `prefix` is what stands before `prediction` and `margin` in the names of the columns.
        """
        margin, prediction = column(evidence, f"{prefix}margin"), column(evidence, f"{prefix}prediction")
        reach = 0.0 if self.exact else TOLERANCE * (1 + found.largest)
        with np.errstate(invalid="ignore"):
            far = ~(np.abs(margin.astype(np.float64) - found.margin) <= reach)
        decided = (np.abs(found.margin) > reach) | self.exact
        clear = (found.lead > 2 * reach) | self.exact
        name = prefix.rstrip(":_")
        findings.compare(f"{name} margin", margin, found.margin, far & use)
        findings.compare(
            f"{name} prediction", prediction, found.prediction, (prediction != found.prediction) & clear & use
        )
        self.undecided |= {*np.flatnonzero(~(decided & clear) & use).tolist()}
        return decided & use


def is_steady(record: Record) -> bool:
    """Whether another pass over the same images has to say the same."""
    return record.division == "closed" or not any(reason.startswith(UNSTEADY) for reason in record.division_reasons)


def replay_clean(judge: Judge, evidence: pa.Table, steady: bool, findings: Findings) -> None:
    """Labels, clean predictions and margins."""
    findings.compare("label", column(evidence, "label"), judge.labels.cpu().numpy())
    if steady:
        found = judge.verdicts(judge.images)
        judge.compare(evidence, "clean_", found, findings, np.ones(len(judge.images), dtype=bool))
        how = "bit for bit" if judge.exact else f"to {TOLERANCE:g} of the largest logit, which turns no verdict"
        findings.check(f"clean predictions and margins, {how}", len(judge.images))


def replay_without_attention(judge: Judge, evidence: pa.Table, findings: Findings) -> None:
    """What the network predicts for the clean images when its attention is replaced."""
    for weights, name in ATTENTION_COLUMNS.items():
        changed = ReplacedAttention(judge.model, weights)
        seen = replace(judge, model=changed).verdicts(judge.images)
        recorded, found = column(evidence, name), np.where(seen.lead > 0, seen.prediction, -1)
        clear = judge.exact | (seen.lead > 2 * TOLERANCE * (1 + seen.largest))
        judge.undecided |= {*np.flatnonzero(~clear).tolist()}
        findings.compare(name.replace("_", " "), recorded, found, (recorded != found) & clear)
        if not changed.replaced:
            findings.contradict(f"{name}: no attention is found in the network")
    findings.check("predictions with replaced attention", len(ATTENTION_COLUMNS) * len(judge.images))


def replay_attack(
    judge: Judge, adversarial: torch.Tensor, threat: ThreatModel, name: str, evidence: pa.Table, steady: bool,
    findings: Findings,
) -> bool:  # fmt: skip
    """One attack's images (n, c, h, w): ball and box, distances, predictions, margins, and whether it succeeded. False where
    they are no images of this row.
    """
    if adversarial.shape != judge.images.shape or adversarial.dtype != torch.float32:
        shapes = f"float32 {tuple(judge.images.shape)}", f"{adversarial.dtype} {tuple(adversarial.shape)}"
        findings.contradict(f"{name} images", *shapes)
        return False
    adversarial = adversarial.to(judge.images.device)
    finite = torch.isfinite(adversarial).flatten(1).all(1)
    for image in (~finite).nonzero()[:, 0].tolist():
        findings.contradict(f"{name} pixels", "in [0, 1]", "not finite", image)
    known = torch.where(finite[:, None, None, None], adversarial, judge.images)  # nothing is asked about NaN
    use = finite.cpu().numpy()
    moved = distances(known, judge.images)
    for image in (moved[threat.norm] > threat.eps + ROUNDING).nonzero()[:, 0].tolist():
        far = f"{float(moved[threat.norm][image]):.9g}"
        findings.contradict(f"{name} ball", f"{threat.label} at most", far, image)
    low, high = known.flatten(1).amin(1), known.flatten(1).amax(1)
    for image in ((low < 0) | (high > 1)).nonzero()[:, 0].tolist():
        pixels = f"pixels from {float(low[image]):.9g} to {float(high[image]):.9g}"
        findings.contradict(f"{name} box", "pixels in [0, 1]", pixels, image)
    for norm in ("Linf", "L2"):
        recorded, found = column(evidence, f"{name}:{norm.lower()}"), moved[norm].cpu().numpy()
        near = ~(np.abs(recorded - found) <= (0.0 if judge.exact else ROUNDING))
        findings.compare(f"{name} {norm} distance", recorded, found, near & use)
    if not steady:
        return True
    verdicts = judge.verdicts(known)
    decided = judge.compare(evidence, f"{name}:", verdicts, findings, use)
    broken = (column(evidence, "clean_margin")[: len(use)] > 0) & (verdicts.margin <= 0)
    recorded = column(evidence, f"{name}:success")
    findings.compare(f"{name} success", recorded, broken, (recorded != broken) & decided)
    return True


def note_undecided(judge: Judge, findings: Findings) -> None:
    """Says how many verdicts were left open because of rounding."""
    if judge.undecided:
        findings.unchecked.append(
            f"verdicts of {len(judge.undecided)} images on which rounding decides (a lead of {TOLERANCE:g} of the logits): "
            f"{some(sorted(judge.undecided))}"
        )


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
