"""Failure indicators and curves from the probes' results: pure. Counts are of the images that are correct when clean."""

from __future__ import annotations

import itertools

import torch

from benchmark.reliability.allowance import allowance
from benchmark.reliability.probes import DRAWS, RADIUS_STEPS, STEPS, ProbeResults
from benchmark.results.reliability import FailureIndicator, GradientNorms, RadiusPoint, StepPoint
from benchmark.specs.threat import ThreatModel

SAME = 1e-4  # as in evaluation/division.py: two passes of one network differ by rounding alone
RISE = 0.05  # of the mean clean margin: steps of fixed size go to and fro around a minimum
SIGNIFICANT = 3.0  # standard errors
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def correct(results: ProbeResults) -> torch.Tensor:
    """(n,) bool: the images that are correct when clean, which an attack can break."""
    return results["clean"] > 0


def step_curve(results: ProbeResults) -> tuple[StepPoint, ...]:
    """Empty when no image is correct."""
    at = correct(results)
    if not at.any():
        return ()
    margins = {k: results[f"steps {k}"] for k in STEPS}
    return tuple(
        StepPoint(steps=k, margin=float(m[at].mean()), accuracy=float((at & (m > 0)).double().mean()))
        for k, m in margins.items()
    )


def radius_curve(results: ProbeResults, balls: tuple[ThreatModel, ...]) -> tuple[RadiusPoint, ...]:
    """Each ball is attacked separately: an image broken in a small ball may be left in a larger one, which is a failure."""
    at = correct(results)
    if not at.any():
        return ()
    robust = {ball.eps: at & (results[f"radius {ball.eps:g}"] > 0) for ball in balls}
    return tuple(RadiusPoint(eps=eps, accuracy=float(s.double().mean())) for eps, s in robust.items())


def gradient_norms(results: ProbeResults) -> GradientNorms | None:
    norms = results["gradient"][correct(results)]
    if not len(norms):
        return None
    usable = _usable(norms)
    shares = torch.tensor(QUANTILES, dtype=torch.float64)
    values = torch.quantile(norms[usable], shares).tolist() if usable.any() else []
    pairs = tuple((q, float(f"{value:.6g}")) for q, value in zip(QUANTILES, values, strict=False))
    return GradientNorms(images=len(norms), zeros=int((~usable).sum()), quantiles=pairs)


def failure_indicators(
    results: ProbeResults, threat: ThreatModel, balls: tuple[ThreatModel, ...]
) -> list[FailureIndicator]:
    """All indicators from the probes; when no image is correct, a single one that says that there is nothing to attack."""
    at = correct(results)
    if not at.any():
        return [
            FailureIndicator(
                name="images to attack",
                measured=f"none of {len(at)} images is right when clean",
                sound=True,
                explanation="The attacked accuracy is 0 whatever the attacks can do.",
            )
        ]
    return [
        _same_answer(results),
        _gradients(results),
        _loss_gradients(results),
        _steps_climb(results, threat),
        _never_rises(results, threat),
        _steps_suffice(results, threat),
        _beats_blind(results, threat),
        _reaches_zero(results, balls),
        _larger_is_worse(results, balls),
    ]


def _same_answer(results: ProbeResults) -> FailureIndicator:
    """Unsound when the margin of any image differs between two passes by more than rounding."""
    gap = (results["clean"] - results["again"]).abs()
    differs = int((gap > SAME * (1 + results["clean"].abs())).sum())
    return FailureIndicator(
        name="the same answer twice",
        measured=f"{differs} of {len(gap)} clean images change their margin from one pass to the next",
        sound=not differs,
        explanation="The model is random: an attack follows the gradient of another draw than the one that judges it, and an "
        "image may stand by luck. Attacks must average over draws, and the accuracy may be too high without.",
    )


def _gradients(results: ProbeResults) -> FailureIndicator:
    """Unsound when more images than the allowance have no gradient of the margin, which does not saturate."""
    norms = gradient_norms(results)
    assert norms is not None
    middle = f"; the median l2 norm is {dict(norms.quantiles)[0.5]:.3g} logits a pixel" if norms.quantiles else ""
    return FailureIndicator(
        name="the margin has gradients",
        measured=f"{norms.zeros} of {norms.images} images have a zero gradient or none{middle}",
        sound=norms.zeros <= allowance(len(results["clean"])),
        explanation="Something in the model, such as rounding, cuts gradients off. Attacks that follow gradients stand still "
        "there, and the images count as robust although nothing was tried.",
    )


def _loss_gradients(results: ProbeResults) -> FailureIndicator:
    """Unsound when more images than the allowance have a cross-entropy without gradient in float32."""
    zeros = int((~_usable(results["loss gradient"][correct(results)])).sum())
    return FailureIndicator(
        name="the cross-entropy has gradients",
        measured=f"{zeros} of {int(correct(results).sum())} images have a zero gradient or none",
        sound=zeros <= allowance(len(results["clean"])),
        explanation="Where the margin's gradient is sound, the logits are so large that the cross-entropy is flat in "
        "float32. FGSM, PGD and APGD-CE stand still; only losses that ignore the scale of the logits say anything.",
    )


def _steps_climb(results: ProbeResults, threat: ThreatModel) -> FailureIndicator:
    """Unsound when on more images than the allowance the cross-entropy, which PGD climbs, is no higher after the last step
    than at the random start. The margin itself may rise on sound networks where several rivals share the loss.
    """
    at, last = correct(results), STEPS[-1]
    stuck = int((at & ~(results[f"loss {last}"] > results["loss 0"])).sum())
    fall = float((results["steps 0"] - results[f"steps {last}"])[at].mean())
    return FailureIndicator(
        name="steps raise the loss",
        measured=f"{last} PGD steps in {threat.label} lower the mean margin by {fall:.3g}; on {stuck} of {int(at.sum())} "
        "images the cross-entropy does not rise",
        sound=stuck <= allowance(len(at)),
        explanation="The gradient does not lead downhill: it is cut off, saturated, or points at random. An attack that "
        "follows it finds nothing, whether or not there is something to find.",
    )


def _never_rises(results: ProbeResults, threat: ThreatModel) -> FailureIndicator:
    """Unsound when, from one point of the curve to the next, the mean margin rises by more than `SIGNIFICANT` standard errors
    of the paired differences and by more than `RISE` of the mean clean margin; or when more images than the allowance that
    were broken are correct again.
    """
    at, worst, again = correct(results), 0.0, 0
    scale, rises = float(results["clean"][at].mean()), False
    for few, many in itertools.pairwise(STEPS):
        before, after = results[f"steps {few}"][at], results[f"steps {many}"][at]
        change = after - before
        rise, error = float(change.mean()), float(change.std(correction=0)) / len(change) ** 0.5
        worst, again = max(worst, rise), max(again, int(((before <= 0) & (after > 0)).sum()))
        rises |= rise > SIGNIFICANT * error and rise > RISE * scale
    return FailureIndicator(
        name="the margin never rises",
        measured=f"with more PGD steps in {threat.label} the mean margin rises by {worst:.3g} at most, and {again} broken "
        "images at most stand again",
        sound=not rises and again <= allowance(len(at)),
        explanation="Steps that should lower the margin raise it: the loss surface is rough or random at the scale of a "
        "step, and where an attack ends is luck.",
    )


def _steps_suffice(results: ProbeResults, threat: ThreatModel) -> FailureIndicator:
    """Unsound when the last doubling of the steps breaks more images than twice the allowance: one attack with another start
    changes more, up to 5 images in 100 on the first rows of the digits track.
    """
    at, (half, last) = correct(results), STEPS[-2:]
    counts = [int((at & (results[f"steps {k}"] > 0)).sum()) for k in (half, last)]
    return FailureIndicator(
        name="the curve is flat at its end",
        measured=f"PGD in {threat.label} leaves {counts[0]} images standing after {half} steps and {counts[1]} after {last}",
        sound=counts[0] - counts[1] <= 2 * allowance(len(at)),
        explanation="More steps still break more images, so an attack of this many steps has not finished, nor may "
        "AutoAttack's of as many. More steps would give a lower number.",
    )


def _beats_blind(results: ProbeResults, threat: ThreatModel) -> FailureIndicator:
    """Unsound when one signed step, or random points, break more images than the allowance that PGD left at every point of
    the curve and from the clean image.
    """
    at = correct(results)
    left = torch.stack([results[name] > 0 for name in ("clean start", *(f"steps {k}" for k in STEPS[1:]))]).all(0)
    names = {"fgsm": "one FGSM step", "noise": f"{DRAWS} random points"}
    missed = {words: int((at & left & (results[name] <= 0)).sum()) for name, words in names.items() if name in results}
    return FailureIndicator(
        name="iterated gradients beat one step and chance",
        measured=f"of the images that up to {STEPS[-1]} PGD steps in {threat.label} left, "
        + " and ".join(f"{words} broke {count}" for words, count in missed.items()),
        sound=all(count <= allowance(len(at)) for count in missed.values()),
        explanation="An attack that sees the model's gradients at every step should find whatever a single step or blind "
        "guessing finds. Where it does not, gradients mislead it.",
    )


def _reaches_zero(results: ProbeResults, balls: tuple[ThreatModel, ...]) -> FailureIndicator:
    """Unsound when any image stands in the ball that holds every image: no allowance, since all of them can be broken."""
    last = balls[-1]
    robust = int((correct(results) & (results[f"radius {last.eps:g}"] > 0)).sum())
    return FailureIndicator(
        name="accuracy reaches 0",
        measured=f"PGD ({RADIUS_STEPS} steps) leaves {robust} images standing in {last.label}, which holds every image",
        sound=not robust,
        explanation="In a ball that holds images of other classes every image can be broken. Unless the model gives "
        "nearly everything one class, what stands there stands because the attack fails, as it may in small balls.",
    )


def _larger_is_worse(results: ProbeResults, balls: tuple[ThreatModel, ...]) -> FailureIndicator:
    """Unsound when from one ball to the next the images standing grow by more than the allowance."""
    at = correct(results)
    counts = [int((at & (results[f"radius {ball.eps:g}"] > 0)).sum()) for ball in balls]
    rise = max([0, *(after - before for before, after in itertools.pairwise(counts))])
    return FailureIndicator(
        name="larger balls break more",
        measured=f"images standing from {balls[0].label} to {balls[-1].eps:g}: {', '.join(map(str, counts))}",
        sound=rise <= allowance(len(at)),
        explanation="A larger ball holds the smaller one, so no more images can be robust in it. A rise is a failure of the "
        "attack, and the smaller ball may suffer from it too.",
    )


def _usable(norms: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(norms) & (norms > 0)
