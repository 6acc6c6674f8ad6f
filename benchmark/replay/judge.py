"""A row's model judging images anew, and its verdicts held against recorded ones.

In the arithmetic of the Record every margin has to be the same to the bit. Elsewhere a margin may stray by TOLERANCE of the
largest logit; where that could turn a verdict, the verdict is undecided: no contradiction, and not checked either.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from benchmark.evaluation.division import RANDOM
from benchmark.evaluation.evidence import ATTENTION_COLUMNS, column
from benchmark.replay.findings import Findings, some
from benchmark.results.record import Record
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import ROUNDING, distances
from benchmark.verdicts.prediction import logits, margins
from benchmark.verdicts.replaced_attention import ReplacedAttention

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
        findings.check(f"clean predictions and margins, {_how(judge)}", len(judge.images))


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
    _check_inside(known, judge.images, threat, name, findings)
    moved = distances(known, judge.images)
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


def _check_inside(
    adversarial: torch.Tensor, images: torch.Tensor, threat: ThreatModel, name: str, findings: Findings
) -> None:
    far = distances(adversarial, images)[threat.norm]
    for image in (far > threat.eps + ROUNDING).nonzero()[:, 0].tolist():
        findings.contradict(f"{name} ball", f"{threat.label} at most", f"{float(far[image]):.9g}", image)
    low, high = adversarial.flatten(1).amin(1), adversarial.flatten(1).amax(1)
    for image in ((low < 0) | (high > 1)).nonzero()[:, 0].tolist():
        pixels = f"pixels from {float(low[image]):.9g} to {float(high[image]):.9g}"
        findings.contradict(f"{name} box", "pixels in [0, 1]", pixels, image)


def note_undecided(judge: Judge, findings: Findings) -> None:
    """Says how many verdicts were left open because of rounding."""
    if judge.undecided:
        findings.unchecked.append(
            f"verdicts of {len(judge.undecided)} images on which rounding decides (a lead of {TOLERANCE:g} of the logits): "
            f"{some(sorted(judge.undecided))}"
        )


def _how(judge: Judge) -> str:
    return "bit for bit" if judge.exact else f"to {TOLERANCE:g} of the largest logit, which turns no verdict"
