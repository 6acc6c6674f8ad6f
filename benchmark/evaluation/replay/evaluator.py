"""Evaluate images again with a row's model, and compare the verdicts and certified radii with recorded ones.

In the arithmetic of the Record every margin must be bit-identical. Elsewhere a margin may differ by TOLERANCE of the largest
logit. A verdict that such a difference could turn is undecided: no contradiction, and not checked either.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from benchmark.attacks import autoattack, pgd
from benchmark.attacks.ball import ROUNDING, distances, into_ball
from benchmark.attacks.prediction import logits, margins, predict
from benchmark.attacks.replaced_attention import OtherPatterns, Remote, ReplacedAttention, mean_patterns, patterns
from benchmark.data.tensors import training_images
from benchmark.evaluation.certified_radii import certificate_module, certified_radii
from benchmark.evaluation.evidence import ATTENTION_COLUMNS, PATTERN_COLUMNS, PATTERN_IMAGES
from benchmark.evaluation.replay.findings import Verification, some
from benchmark.records.evidence import column
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import AttackSpec, CertificateSpec, ThreatModel

SHORT = 1e-3  # relative: how much smaller a radius may come out, since each batch ends its search at another place
RESTARTS, STEPS = 4, 20  # of PGD on the margin, at a certified radius
TOLERANCE = 1e-4  # of 1 + the largest logit, where rounding differs
PARTS = ("apgd-ce", "apgd-t")  # of AutoAttack: those that break most, and take seconds


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on n images, each (n,): the class, the margin of the true logit, and the lead of the class over the next."""

    prediction: np.ndarray
    margin: np.ndarray
    lead: np.ndarray
    largest: float  # logit, of all images


@dataclass
class Evaluator:
    """A row's `model` with its evaluation images (n, c, h, w) and labels (n,), asked in batches of `batch_size`.

    `exact` says whether the evidence has to be reproduced bit for bit. Contradictions go to `findings`, and the images whose
    verdict depends on rounding to `undecided`.
    """

    model: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    batch_size: int
    exact: bool
    findings: Verification
    undecided: set[int] = field(default_factory=set)

    def of_first(self, count: int) -> Evaluator:
        """Return the evaluator of the first images alone, with the same findings and undecided images."""
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def verdicts(self, images: torch.Tensor) -> Verdicts:
        """Return the verdicts on versions (n, c, h, w) of the images; raise a BenchmarkError for logits not finite."""
        output = logits(self.model, images, self.batch_size)
        first, second = output.topk(2, dim=1).values.T
        values = (output.argmax(1), margins(output, self.labels), first - second)
        prediction, margin, lead = (tensor.cpu().numpy() for tensor in values)
        return Verdicts(prediction, margin, lead, float(output.abs().max()))

    def reach(self, verdicts: Verdicts) -> float:
        """Return the most by which rounding on this machine may change a logit: 0 if its arithmetic is the Record's."""
        return 0.0 if self.exact else TOLERANCE * (1 + verdicts.largest)

    def compare(self, evidence: pa.Table, prefix: str, verdicts: Verdicts, use: np.ndarray) -> np.ndarray:
        """Compare the verdicts on the images `use` (n,) with the columns `<prefix>prediction` and `<prefix>margin`. Return
        which verdicts are decided (n,).
        """
        margin, prediction = column(evidence, f"{prefix}margin"), column(evidence, f"{prefix}prediction")
        reach, name = self.reach(verdicts), prefix.rstrip(":_")
        with np.errstate(invalid="ignore"):
            far = ~(np.abs(margin.astype(np.float64) - verdicts.margin) <= reach)
        decided = (np.abs(verdicts.margin) > reach) | self.exact
        clear = (verdicts.lead > 2 * reach) | self.exact
        other = (prediction != verdicts.prediction) & clear
        self.findings.compare(f"{name} margin", margin, verdicts.margin, far & use)
        self.findings.compare(f"{name} prediction", prediction, verdicts.prediction, other & use)
        self.undecided |= {*np.flatnonzero(~(decided & clear) & use).tolist()}
        return decided & use

    def replay_clean(self, evidence: pa.Table, steady: bool) -> None:
        """Compare labels and, of a model that repeats its answers, clean predictions and margins."""
        self.findings.compare("label", column(evidence, "label"), self.labels.cpu().numpy())
        if steady:
            self.compare(evidence, "clean_", self.verdicts(self.images), np.ones(len(self.images), dtype=bool))
            how = "bit for bit" if self.exact else f"to {TOLERANCE:g} of the largest logit, which turns no verdict"
            self.findings.check(f"clean predictions and margins, {how}", len(self.images))

    def replay_without_attention(self, evidence: pa.Table, data: Path) -> None:
        """Compare predictions on clean images with attention replaced; `data` has the training images of mean patterns."""
        own = self.model
        networks: dict[str, nn.Module] = {name: ReplacedAttention(own, w) for w, name in ATTENTION_COLUMNS.items()}
        given = {*PATTERN_COLUMNS.values()} & {*evidence.column_names}
        if (shown := patterns(own, self.images[: self.batch_size])) and given:
            training = training_images(data, PATTERN_IMAGES).to(self.images.device)
            others = [OtherPatterns(own, p) for p in (mean_patterns(own, training, self.batch_size), None)]
            networks |= dict(zip(PATTERN_COLUMNS.values(), others, strict=True))
        elif given or shown:  # a network in another process shows none, and older evidence has none
            wrong = given and not isinstance(own, Remote)
            note = self.findings.contradict if wrong else self.findings.unchecked.append
            note(f"other patterns of attention: the {'network' if given else 'evidence'} has none to compare")
        for name, changed in networks.items():
            if name not in evidence.column_names:
                continue
            verdicts = replace(self, model=changed).verdicts(self.images)
            recorded, prediction = column(evidence, name), np.where(verdicts.lead > 0, verdicts.prediction, -1)
            clear = self.exact | (verdicts.lead > 2 * self.reach(verdicts))
            self.undecided |= {*np.flatnonzero(~clear).tolist()}
            self.findings.compare(name.replace("_", " "), recorded, prediction, (recorded != prediction) & clear)
            if isinstance(changed, ReplacedAttention) and not changed.replaced:
                self.findings.contradict(f"{name}: no attention is found in the network")
        self.findings.check("predictions with replaced attention", len(networks) * len(self.images))

    def replay_attack(
        self, adversarial: torch.Tensor, threat: ThreatModel, name: str, evidence: pa.Table, steady: bool
    ) -> bool:
        """Check an attack's images (n, c, h, w): ball, box and distances; of a model that repeats its answers verdicts too.
        Return False where they are not images of this row.
        """
        findings = self.findings
        if adversarial.shape != self.images.shape or adversarial.dtype != torch.float32:
            shapes = f"float32 {tuple(self.images.shape)}", f"{adversarial.dtype} {tuple(adversarial.shape)}"
            findings.contradict(f"{name} images", *shapes)
            return False
        adversarial = adversarial.to(self.images.device)
        finite = torch.isfinite(adversarial).flatten(1).all(1)
        for image in (~finite).nonzero()[:, 0].tolist():
            findings.contradict(f"{name} pixels", "in [0, 1]", "not finite", image)
        adversarial = torch.where(finite[:, None, None, None], adversarial, self.images)  # the model never sees NaN
        use = finite.cpu().numpy()
        moved = distances(adversarial, self.images)
        for image in (moved[threat.norm] > threat.eps + ROUNDING).nonzero()[:, 0].tolist():
            far = f"{float(moved[threat.norm][image]):.9g}"
            findings.contradict(f"{name} ball", f"{threat.label} at most", far, image)
        low, high = adversarial.flatten(1).amin(1), adversarial.flatten(1).amax(1)
        for image in ((low < 0) | (high > 1)).nonzero()[:, 0].tolist():
            pixels = f"pixels from {float(low[image]):.9g} to {float(high[image]):.9g}"
            findings.contradict(f"{name} box", "pixels in [0, 1]", pixels, image)
        for norm in ("Linf", "L2"):
            recorded, distance = column(evidence, f"{name}:{norm.lower()}"), moved[norm].cpu().numpy()
            far = ~(np.abs(recorded - distance) <= (0.0 if self.exact else ROUNDING))
            findings.compare(f"{name} {norm} distance", recorded, distance, far & use)
        if steady:
            verdicts = self.verdicts(adversarial)
            decided = self.compare(evidence, f"{name}:", verdicts, use)
            broken = (column(evidence, "clean_margin")[: len(use)] > 0) & (verdicts.margin <= 0)
            recorded = column(evidence, f"{name}:success")
            findings.compare(f"{name} success", recorded, broken, (recorded != broken) & decided)
        return True

    def note_undecided(self) -> None:
        """Note how many verdicts are left open because of rounding."""
        if self.undecided:
            words = f"on which rounding decides (a lead of {TOLERANCE:g} of the logits): {some(sorted(self.undecided))}"
            self.findings.unchecked.append(f"verdicts of {len(self.undecided)} images {words}")

    def recheck(self, spec: CertificateSpec, radii: np.ndarray, sample: int, seed: int) -> bool:
        """Certify `sample` of the certified images again (0: all), drawn by `seed`, and attack each at its recorded radius.

        The certificate has to give at least the recorded l2 `radii` (n,), less SHORT. Return False where it cannot be run.
        """
        certified = np.flatnonzero(radii > 0)
        count = min(sample, len(certified)) if sample else len(certified)
        chosen = np.sort(np.random.default_rng(seed).choice(certified, count, replace=False))
        place = torch.from_numpy(chosen).to(self.images.device)
        try:
            again = certified_radii(self.model, self.images[place], self.labels[place], _finer(spec), self.batch_size)
        except BenchmarkError as error:
            self.findings.unchecked.append(f"certificates: {error}")
            return False
        for image, radius in zip(chosen.tolist(), again.tolist(), strict=True):
            if radius < radii[image] * (1 - SHORT):
                self.findings.contradict("certified l2 radius", f"{radii[image]:.9g}", f"{radius:.9g}", image)
            threat, (x, y) = ThreatModel(norm="L2", eps=float(radii[image])), self._copies(image, RESTARTS)
            adversarial = pgd.attack(
                self.model, x, y, threat, seed=seed + image, steps=STEPS, step_size=threat.eps / 5, climb="margin"
            )
            margin = self._lowest_margin(image, adversarial, threat, "pgd at the certified radius")
            if not margin > 0:
                words = f"broken there by pgd (margin {margin:.6g})"
                self.findings.contradict("certified l2 radius", f"{threat.eps:.9g}", words, image)
        self.findings.check(f"of {len(certified)} certified radii made again (at least, to {SHORT:g}) and attacked", count)
        return True

    def breaks(self, spec: AttackSpec, image: int) -> bool:
        """Return whether PARTS of AutoAttack break an image, with the random numbers that it had in the Record."""
        (x, y), threat = self._copies(image, 1), spec.threat
        for part in PARTS:
            adversarial = autoattack.attack(self.model, x, y, threat, seed=spec.seed, component=part, indices=[image])
            if not self._lowest_margin(image, adversarial, threat, spec.id) > 0:
                return True
        return False

    def _copies(self, image: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[image].repeat(count, 1, 1, 1), self.labels[image].repeat(count)

    def _lowest_margin(self, image: int, adversarial: torch.Tensor, threat: ThreatModel, attack: str) -> float:
        """Return the float32 model's lowest margin on versions (k, c, h, w) of an image, after they are put into the ball."""
        x, y = self._copies(image, len(adversarial))
        inside = into_ball(adversarial, x, threat, attack)
        return float(predict(self.model, inside, y, len(inside)).margin.min())


def _finer(spec: CertificateSpec) -> CertificateSpec:
    """Return the certificate, with a `precision` that SHORT can tell where it has one."""
    parameters = inspect.signature(certificate_module(spec.name).certify).parameters
    if "precision" not in parameters:
        return spec
    precision = min(float(spec.parameters.get("precision", parameters["precision"].default)), SHORT / 2)
    return spec.model_copy(update={"parameters": {**spec.parameters, "precision": precision}})
