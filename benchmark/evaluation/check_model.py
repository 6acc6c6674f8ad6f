"""What the harness takes for granted of a model, tried on a few random images: same seed, same weights; each image by
itself; nothing changed on the way. No training and no data are needed.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.evaluation.asking import answers, depends_on_asking
from benchmark.evaluation.indicators import SAME
from benchmark.evaluation.probes import first_threat, probes
from benchmark.results.check import Check
from benchmark.specs.threat import ThreatModel
from benchmark.specs.track import Track
from benchmark.verdicts.prediction import MIN_ROWS, logits

IMAGES = 2 * MIN_ROWS

Make = Callable[[int], nn.Module]  # an untrained model in evaluation mode, built under this seed


@dataclass(frozen=True)
class Sample:
    """`images` (n, c, h, w) uniform in [0, 1] and `labels` (n,), the same every time."""

    images: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def of(cls, track: Track, device: torch.device) -> Sample:
        drawn = torch.rand((IMAGES, *track.data.shape), generator=torch.Generator().manual_seed(0))
        return cls(drawn.to(device), (torch.arange(IMAGES) % track.data.classes).to(device))


def checks(make: Make, track: Track, device: torch.device) -> Iterator[Check]:
    """Every check of the model that `make` builds, one after another.

    The first failure of `output` is the last that can be said, as nothing else means anything then.
    """
    sample = Sample.of(track, device)
    model = make(0)
    output = _output(model, sample, track)
    yield output
    if not output.ok:
        return
    yield _seed(model, make(0), sample)
    yield _state(model, make(1), sample)
    yield _input_unchanged(model, sample)
    if track.smoothing:
        yield _noisy(model, sample, track.smoothing.sigma)


def _output(model: nn.Module, sample: Sample, track: Track) -> Check:
    with torch.no_grad():
        found = model(sample.images.clone())
    wanted = (IMAGES, track.data.classes)
    if tuple(found.shape) != wanted:
        return _check("output", False, f"{IMAGES} images give shape {tuple(found.shape)}; return logits of {wanted}")
    if found.dtype != torch.float32:
        return _check("output", False, f"logits are {found.dtype}; return float32, in which every verdict is judged")
    return _check("output", True, f"{IMAGES} images give logits of shape {wanted}, float32")


def _noisy(model: nn.Module, sample: Sample, sigma: float) -> Check:
    """Images with smoothing's noise, whose pixels may lie outside [0, 1]."""
    noise = torch.randn(sample.images.shape, generator=torch.Generator().manual_seed(0)).to(sample.images.device)
    with torch.no_grad():
        found = model(sample.images + sigma * noise)
    if torch.isfinite(found).all():
        return _check("noise", True, f"finite logits under noise of deviation {sigma:g}, as smoothing asks")
    return _check(
        "noise",
        False,
        "logits are not finite for pixels outside [0, 1], which smoothing asks; begin with x = x.clamp(0, 1)",
    )


def _seed(model: nn.Module, again: nn.Module, sample: Sample) -> Check:
    """Two builds under one seed."""
    one, other = model.state_dict(), again.state_dict()
    differs = sorted(name for name in one.keys() | other.keys() if not _equal(one.get(name), other.get(name)))
    if differs:
        advice = "draw initial weights from torch's generator alone"
        return _check(
            "same seed, same weights", False, f"{differs[0]} differs between two builds of one seed; {advice}"
        )
    gap = _gap(_at_seed(model, sample.images), _at_seed(again, sample.images))
    if gap:
        advice = "something outside the weights is drawn anew at each build; make it a buffer or draw it from torch"
        return _check("same seed, same weights", False, f"equal weights, but logits {gap:.3g} apart; {advice}")
    return _check("same seed, same weights", True, f"{len(one)} tensors and all logits are equal in two builds")


def _state(model: nn.Module, other: nn.Module, sample: Sample) -> Check:
    """Weights put into a model that was built under another seed: they must be all that makes the model."""
    other.load_state_dict(model.state_dict())
    own = _at_seed(model, sample.images)
    gap = _gap(own, _at_seed(other, sample.images))
    if gap > SAME * (1 + float(own.abs().max())):
        words = f"a model with the same weights says otherwise by {gap:.3g}; what it draws must be a persistent buffer"
        return _check("weights are the model", False, words)
    return _check("weights are the model", True, "put into another build, they give the same logits")


def _input_unchanged(model: nn.Module, sample: Sample) -> Check:
    given = sample.images.clone()
    with torch.no_grad():
        model(given)
    if torch.equal(given, sample.images):
        return _check("input is left alone", True, "the batch is the same after a pass")
    gap = _gap(given, sample.images)
    return _check(
        "input is left alone", False, f"a pass changes its images by up to {gap:.3g}; work on a copy (`x = x - m`)"
    )


def by_itself(model: nn.Module, sample: Sample) -> Check:
    """Whether an image's logits are the same however it is asked (asking.py); of a model that is not random."""
    found = depends_on_asking(answers(model, sample.images, IMAGES, 0), "the model", is_open=True)
    advice = "" if found.sound else "; no statistic may be taken over the batch"
    return _check("each image by itself", found.sound, f"{found.measured}{advice}")


def gradients(model: nn.Module, sample: Sample, track: Track, is_open: bool) -> Check:
    """Whether margin and cross-entropy have a gradient by each image that is finite and not zero; open models need none."""
    probed = probes(model, first_threat(track.threats) or ThreatModel(norm="L2", eps=0.5), track.data.shape, 0)
    unusable = 0
    for name in ("gradient", "loss gradient"):
        torch.manual_seed(0)
        norms = probed[name](sample.images.clone(), sample.labels)[name]
        unusable = max(unusable, int((~torch.isfinite(norms) | (norms == 0)).sum()))
    if not unusable:
        return _check("gradients", True, "finite and not zero on all images")
    words = f"none, zero or not finite on {unusable} of {IMAGES} images"
    advice = "the division is open" if is_open else "mend what cuts them off, or declare `division: open`"
    return _check("gradients", is_open, f"{words}; {advice}")


def seconds_an_image(model: nn.Module, sample: Sample) -> float:
    """The quicker of two passes."""
    return min(timeit.repeat(lambda: logits(model, sample.images, IMAGES), number=1, repeat=2)) / IMAGES


def left_behind(model: nn.Module, sample: Sample) -> list[str]:
    """What a pass in evaluation mode leaves on the model's modules or takes from torch's generator, in words."""
    before, drawn = _attributes(model), torch.get_rng_state()
    with torch.no_grad():
        model(sample.images.clone())
    after = _attributes(model)
    found = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return [f"attribute {key}" for key in found] + ["torch's generator"] * (
        not torch.equal(drawn, torch.get_rng_state())
    )


def _attributes(model: nn.Module) -> dict[str, object]:
    """Plain values by themselves, anything else by which object it is; tensors also by how often they were written to."""
    found: dict[str, object] = {}
    for name, module in model.named_modules():
        inside = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules")}
        for key, value in {**inside, **dict(module._buffers)}.items():
            plain = isinstance(value, int | float | str | bool | type(None))
            version = value._version if isinstance(value, torch.Tensor) else 0
            size = len(value) if isinstance(value, list | dict | set) else 0
            found[f"{name}.{key}".lstrip(".")] = value if plain else (id(value), version, size)
    return found


def _at_seed(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Logits with torch's generator in one state, so that a random model says the same."""
    torch.manual_seed(0)
    return logits(model, images, IMAGES)


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def _check(name: str, ok: bool, found: str) -> Check:
    return Check(name=name, ok=ok, found=found)
