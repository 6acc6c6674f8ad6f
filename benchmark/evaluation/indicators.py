"""Failure indicators: warnings that the attacks on a row may be too weak, from its probes and from its attacks compared.

After Carlini et al. 2019 (On Evaluating Adversarial Robustness, section 5), Athalye et al. 2018 (Obfuscated Gradients,
section 3.1) and Pintor et al. 2022 (Indicators of Attack Failure). A warning does not prove that gradients are masked, and no
warning does not prove robustness: indicators say where an attacked accuracy may be too high.

Nothing is run here. Counts are of the images that are correct when clean.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from benchmark.records.reliability import FailureIndicator, GradientNorms, RadiusPoint, StepPoint
from benchmark.specs.threat import AttackSpec, ThreatModel

# what probes.py measures; it is not imported here, so that steps that only warn do not depend on its attacks
ProbeResults = dict[str, torch.Tensor]  # (n,) each, by name
STEPS = (0, 1, 2, 5, 10, 20, 50, 100)  # 0 is the random start
RADIUS_STEPS = 20  # cross the ball from side to side
DRAWS = 100
SAME = 1e-4  # as in evaluation/division.py: two passes of one network differ by rounding alone
RISE = 0.05  # of the mean clean margin: steps of fixed size oscillate around a minimum
SIGNIFICANT = 3.0  # standard errors
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
ALLOWED_SHARE = 0.01  # of all images
FALSE = 0.05  # share of the checked gradients
GAP = 0.10  # Croce and Hein 2020 lowered published evaluations by more than this for 13 of 50 defences
WHITE_BOX = "apgd-ce"
EXPLANATIONS = {  # by indicator: what it means where it fails
    "images to attack": "The attacked accuracy is 0 whatever the attacks can do.",
    "the same answer twice": "The model is random: an attack follows the gradient of another draw than the one that judges "
    "it, and an image may stand by luck. Attacks must average over draws, and the accuracy may be too high without.",
    "the margin has gradients": "Something in the model, such as rounding, cuts gradients off. Attacks that follow gradients "
    "stand still there, and the images count as robust although nothing was tried.",
    "the cross-entropy has gradients": "Where the margin's gradient is sound, the logits are so large that the cross-entropy "
    "is flat in float32. FGSM, PGD and APGD-CE stand still; only losses that ignore the scale of the logits say anything.",
    "steps raise the loss": "The gradient does not lead downhill: it is cut off, saturated, or points at random. An attack "
    "that follows it finds nothing, whether or not there is something to find.",
    "the margin never rises": "Steps that should lower the margin raise it: the loss surface is rough or random at the scale "
    "of a step, and where an attack ends is luck.",
    "the curve is flat at its end": "More steps still break more images, so an attack of this many steps has not finished, "
    "nor may AutoAttack's of as many. More steps would give a lower number.",
    "iterated gradients beat one step and chance": "An attack that sees the model's gradients at every step should find "
    "whatever a single step or blind guessing finds. Where it does not, gradients mislead it.",
    "accuracy reaches 0": "In a ball that holds images of other classes every image can be broken. Unless the model gives "
    "nearly everything one class, what stands there stands because the attack fails, as it may in small balls.",
    "larger balls break more": "A larger ball holds the smaller one, so no more images can be robust in it. A rise is a "
    "failure of the attack, and the smaller ball may suffer from it too.",
    "AutoAttack's own flags": "AutoAttack's authors warn that its result may be too high for such a model; it needs an "
    "attack made for it.",
    "white-box beats black-box": "Blind search finds what gradients do not lead to: gradients are masked, and more search "
    "would lower the accuracy further.",
    "AutoAttack beats the other attacks": "The strongest attack fails where a simple one succeeds, so it may fail on more. "
    "The images count as lost, but others like them may be missing.",
    "many steps beat one": "More steps should find what one step finds. Where they do not, the gradient away from the image "
    "is of no use to the attack.",
    "PGD agrees with APGD": "On the same loss, plain steps fail where adapted ones succeed: the loss surface is rough or "
    "badly scaled. Numbers from PGD alone are far too high for this model.",
    "probes find nothing new": "These images count as lost, but the row's attacks should have found them: there may be more.",
    "the same answer however asked": "The model's answer for an image depends on the other images, on the batch's size or on "
    "whether gradients are taken. What attacks see is then not what is judged.",
    "gradients are those of the answers": "A small step along a gradient does not change the logits as the gradient says. "
    "Attacks are led astray, and the images count as robust although nothing was tried.",
    "the same answer nearby": "Less than half a step of an 8-bit pixel should change hardly any verdict. Where it does, the "
    "model may know the images themselves rather than what they show.",
}
FITTED = (
    "The model does better on the images that it is judged on than on others of the same test set: it may have been fitted "
    "to them, or have them at hand."
)
EXPLANATIONS |= dict.fromkeys(("as good on unseen images", "as robust on unseen images"), FITTED)


def indicator(name: str, measured: str, sound: object) -> FailureIndicator:
    """Return an indicator with its explanation; a warning unless it is `sound`."""
    return FailureIndicator(name=name, measured=measured, sound=bool(sound), explanation=EXPLANATIONS[name])


def allowance(n: int) -> float:
    """Return how many of n images a weaker attack may break that a stronger one left: one, or 1%, whichever is more.

    Random starts and rounding decide images whose margin is nearly 0. On three sound rows of the digits track every count was
    0 of 100.
    """
    return max(1.0, ALLOWED_SHARE * n)


def correct(results: ProbeResults) -> torch.Tensor:
    """Return which images (n,) are correct when clean, so that an attack can break them."""
    return results["clean"] > 0


def step_curve(results: ProbeResults) -> tuple[StepPoint, ...]:
    """Return mean margin and accuracy by the number of PGD steps; empty when no image is correct."""
    at = correct(results)
    margins = {k: results[f"steps {k}"] for k in STEPS if at.any()}
    return tuple(
        StepPoint(steps=k, margin=float(m[at].mean()), accuracy=float((at & (m > 0)).double().mean()))
        for k, m in margins.items()
    )


def radius_curve(results: ProbeResults, balls: tuple[ThreatModel, ...]) -> tuple[RadiusPoint, ...]:
    """Return the accuracy under PGD by the radius; empty when no image is correct. Each ball is attacked separately: that an
    image broken in a small ball is left in a larger one is a failure.
    """
    at = correct(results)
    robust = {ball.eps: at & (results[f"radius {ball.eps:g}"] > 0) for ball in balls if at.any()}
    return tuple(RadiusPoint(eps=eps, accuracy=float(s.double().mean())) for eps, s in robust.items())


def gradient_norms(results: ProbeResults) -> GradientNorms | None:
    """Return quantiles of the norms of the margin's gradient; None when no image is correct."""
    norms = results["gradient"][correct(results)]
    if not len(norms):
        return None
    usable = _usable(norms)
    shares = torch.tensor(QUANTILES, dtype=torch.float64)
    values = torch.quantile(norms[usable], shares).tolist() if usable.any() else []
    pairs = tuple((q, float(f"{value:.6g}")) for q, value in zip(QUANTILES, values, strict=False))
    return GradientNorms(images=len(norms), zeros=int((~usable).sum()), quantiles=pairs)


def _usable(norms: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(norms) & (norms > 0)


def failure_indicators(results: ProbeResults, threat: ThreatModel, balls: tuple[ThreatModel, ...]) -> list[FailureIndicator]:
    """Return all indicators from the probes; when no image is correct, one that says there is nothing to attack."""
    at = correct(results)
    if at.any():
        return [*_of_gradients(results), *_of_steps(results, threat), *_of_radii(results, balls)]
    return [indicator("images to attack", f"none of {len(at)} images is right when clean", True)]


def _of_gradients(results: ProbeResults) -> Iterator[FailureIndicator]:
    """Warn about margins that differ between two passes by more than rounding, and about more images than the allowance
    without a gradient of the margin, which does not saturate, or of the cross-entropy in float32.
    """
    at, norms, allowed = correct(results), gradient_norms(results), allowance(len(results["clean"]))
    assert norms is not None
    gap = (results["clean"] - results["again"]).abs()
    differs = int((gap > SAME * (1 + results["clean"].abs())).sum())
    words = f"{differs} of {len(gap)} clean images change their margin from one pass to the next"
    yield indicator("the same answer twice", words, not differs)
    middle = f"; the median l2 norm is {dict(norms.quantiles)[0.5]:.3g} logits a pixel" if norms.quantiles else ""
    words = f"{norms.zeros} of {norms.images} images have a zero gradient or none{middle}"
    yield indicator("the margin has gradients", words, norms.zeros <= allowed)
    zeros = int((~_usable(results["loss gradient"][at])).sum())
    words = f"{zeros} of {int(at.sum())} images have a zero gradient or none"
    yield indicator("the cross-entropy has gradients", words, zeros <= allowed)


def _of_steps(results: ProbeResults, threat: ThreatModel) -> Iterator[FailureIndicator]:
    """Warn about more images than the allowance on which PGD does not progress, or loses to one step or chance."""
    at, last = correct(results), STEPS[-1]
    allowed, margin = allowance(len(at)), {k: results[f"steps {k}"] for k in STEPS}
    # the loss, not the margin: that may rise on sound networks, where several rivals share the loss
    stuck = int((at & ~(results[f"loss {last}"] > results["loss 0"])).sum())
    fall = float((margin[0] - margin[last])[at].mean())
    words = f"{last} PGD steps in {threat.label} lower the mean margin by {fall:.3g}; on {stuck} of {int(at.sum())} images"
    yield indicator("steps raise the loss", f"{words} the cross-entropy does not rise", stuck <= allowed)
    worst, again, rises, scale = 0.0, 0, False, float(results["clean"][at].mean())
    for few, many in itertools.pairwise(STEPS):
        before, after = margin[few][at], margin[many][at]
        change = after - before
        rise, error = float(change.mean()), float(change.std(correction=0)) / len(change) ** 0.5
        worst, again = max(worst, rise), max(again, int(((before <= 0) & (after > 0)).sum()))
        rises |= rise > SIGNIFICANT * error and rise > RISE * scale
    words = f"with more PGD steps in {threat.label} the mean margin rises by {worst:.3g} at most, and {again} broken images"
    yield indicator("the margin never rises", f"{words} at most stand again", not rises and again <= allowed)
    counts = [int((at & (margin[k] > 0)).sum()) for k in STEPS[-2:]]
    words = f"leaves {counts[0]} images standing after {STEPS[-2]} steps and {counts[1]} after {last}"
    # another random start alone changes up to 5 images in 100 on sound rows of digits
    flat = counts[0] - counts[1] <= 2 * allowed
    yield indicator("the curve is flat at its end", f"PGD in {threat.label} {words}", flat)
    left = torch.stack([results["clean start"] > 0, *(margin[k] > 0 for k in STEPS[1:])]).all(0)
    names = {"fgsm": "one FGSM step", "noise": f"{DRAWS} random points"}
    missed = {words: int((at & left & (results[name] <= 0)).sum()) for name, words in names.items() if name in results}
    words = f"of the images that up to {last} PGD steps in {threat.label} left, "
    words += " and ".join(f"{weaker} broke {count}" for weaker, count in missed.items())
    nearly_all = all(count <= allowed for count in missed.values())
    yield indicator("iterated gradients beat one step and chance", words, nearly_all)


def _of_radii(results: ProbeResults, balls: tuple[ThreatModel, ...]) -> Iterator[FailureIndicator]:
    """Warn about any image robust in the ball that holds every image, where all can be broken; and about robust images that
    increase by more than the allowance from one ball to the next.
    """
    at, last = correct(results), balls[-1]
    counts = [int((at & (results[f"radius {ball.eps:g}"] > 0)).sum()) for ball in balls]
    words = f"PGD ({RADIUS_STEPS} steps) leaves {counts[-1]} images standing in {last.label}, which holds every image"
    yield indicator("accuracy reaches 0", words, not counts[-1])
    rise = max([0, *(after - before for before, after in itertools.pairwise(counts))])
    words = f"images standing from {balls[0].label} to {last.eps:g}: {', '.join(map(str, counts))}"
    yield indicator("larger balls break more", words, rise <= allowance(len(at)))


@dataclass(frozen=True)
class Ran:
    """One attack of the suites: the images (n,) that it `broke`, robust images after each component, logged warnings."""

    spec: AttackSpec
    broke: np.ndarray
    remaining: dict[str, int]
    warnings: tuple[str, ...]


def suite_indicators(ran: list[Ran], correct: np.ndarray, objections: tuple[str, ...] = ()) -> Iterator[FailureIndicator]:
    """Compare the suites' attacks on images that are `correct` when clean, (n,) bool. `objections` are the warnings of
    AutoAttack's checks before any attack.
    """
    autoattack, pgd, fgsm = ([r for r in ran if r.spec.attack == name] for name in ("autoattack", "pgd", "fgsm"))
    n = len(correct)
    if autoattack:
        flags = [*objections, *(f"{r.spec.threat.label}: {w}" for r in autoattack for w in r.warnings)]
        words = "; ".join(flags) or f"none in {len(autoattack)} runs"
        yield indicator("AutoAttack's own flags", words, not flags)
        gains = {
            r.spec.threat.label: min(c for name, c in r.remaining.items() if name != "square") - r.remaining["square"]
            for r in autoattack
            if "square" in r.remaining and len(r.remaining) > 1
        }
        words = "images that Square broke after AutoAttack's white-box parts: "
        yield _missed("white-box beats black-box", words, gains, n)
    if pairs := _pairs([r for r in ran if r.spec.attack != "autoattack"], autoattack):
        counts = {f"{w.spec.id} in {s.spec.threat.label}": count for w, s, count in pairs}
        yield _missed("AutoAttack beats the other attacks", "images broken that AutoAttack left: ", counts, n)
    if pairs := _pairs(fgsm, pgd):
        counts = {f"{w.spec.id} against {s.spec.id}": count for w, s, count in pairs}
        yield _missed("many steps beat one", "images that FGSM broke and PGD left: ", counts, n)
    left = {  # two starts of one PGD differ by up to 5 images in 100 on sound networks: a small gap means nothing
        p.spec.threat.label: (int((correct & ~p.broke).sum()), a.remaining[WHITE_BOX], min(a.remaining.values()))
        for p in pgd
        for a in autoattack
        if p.spec.threat == a.spec.threat and WHITE_BOX in a.remaining
    }
    if left:
        parts = [f"{threat}: {plain}, {adaptive}, {every}" for threat, (plain, adaptive, every) in left.items()]
        words = "images left standing by PGD, by APGD-CE and by all of AutoAttack: " + "; ".join(parts)
        near = all(plain - adaptive <= max(1.0, GAP * n) for plain, adaptive, _ in left.values())
        yield indicator("PGD agrees with APGD", words, near)


def _pairs(weaker: list[Ran], stronger: list[Ran]) -> list[tuple[Ran, Ran, int]]:
    """Pair weaker attacks with stronger ones in the same or a larger ball; count the images that the weaker alone broke."""
    pairs = [(w, s) for w in weaker for s in stronger if w.spec.norm == s.spec.norm and w.spec.eps <= s.spec.eps]
    return [(w, s, int((w.broke & ~s.broke).sum())) for w, s in pairs]


def _missed(name: str, words: str, counts: dict[str, int], n: int) -> FailureIndicator:
    """Warn where a weaker attack broke more images than the allowance that a stronger one left; `counts` by pair."""
    measured = ", ".join(f"{pair}: {count}" for pair, count in counts.items()) or "not measured"
    return indicator(name, words + measured, all(count <= allowance(n) for count in counts.values()))


def true_gradients(compared: Mapping[str, tuple[int, int, int]]) -> FailureIndicator | None:
    """Return a warning if more than a few gradients are not those of the answers, or most could not be compared; else None.

    Args:
        compared: by the attack or step that was given the gradients: how many are false, were compared, and were kept.
    """
    words = []
    for where, (false, clear, kept) in compared.items():
        if false > max(2, FALSE * clear):
            words.append(f"{where}: {false} of {clear} gradients do not say how the logits change along them")
        elif kept - clear > max(2, kept / 2):
            words.append(f"{where}: {kept - clear} of {kept} gradients are smaller than the rounding of the logits")
    return indicator("gradients are those of the answers", "; ".join(words), False) if words else None


def probes_find_nothing_new(ran: list[Ran], probed: np.ndarray, threat: ThreatModel) -> FailureIndicator | None:
    """Warn where a probe broke an image within `threat` that every attack of the suites left there. `probed` (n,): images
    that are correct when clean and that a probe broke. No allowance: each such image is proof.
    """
    inside = [r.broke for r in ran if r.spec.norm == threat.norm and r.spec.eps <= threat.eps]
    if not inside:
        return None
    new = int(np.count_nonzero(probed & ~np.logical_or.reduce(inside)))
    words = f"images that probes within {threat.label} broke and every attack of the track left there: {new}"
    return indicator("probes find nothing new", words, not new)
