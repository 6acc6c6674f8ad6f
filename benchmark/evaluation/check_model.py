"""What the harness takes for granted of a model, tried on a few random images: same seed, same weights; each image by
itself; nothing changed on the way. No training and no data are needed.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator

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


def passed(name: str, found: str) -> Check:
    return Check(name=name, ok=True, found=found)


def failed(name: str, words: object) -> Check:
    return Check(name=name, ok=False, found=str(words))


def sample(track: Track, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, c, h, w), uniform in [0, 1], and labels (n,), the same every time."""
    drawn = torch.rand((IMAGES, *track.data.shape), generator=torch.Generator().manual_seed(0))
    return drawn.to(device), (torch.arange(IMAGES) % track.data.classes).to(device)


def checks(make: Make, track: Track, images: torch.Tensor) -> Iterator[Check]:
    """Check the model that `make` builds. A failure of `output` is the last check: nothing else means anything then."""
    model, wanted = make(0), (IMAGES, track.data.classes)
    with torch.no_grad():
        output = model(images.clone())
    if tuple(output.shape) != wanted:
        yield failed("output", f"{IMAGES} images give shape {tuple(output.shape)}; return logits of {wanted}")
    elif output.dtype != torch.float32:
        yield failed("output", f"logits are {output.dtype}; return float32, in which every verdict is judged")
    else:
        yield passed("output", f"{IMAGES} images give logits of shape {wanted}, float32")
        yield _seed(model, make(0), images)
        yield _state(model, make(1), images)
        yield _input_unchanged(model, images)
        if track.smoothing:
            yield _noisy(model, images, track.smoothing.sigma)


def _seed(model: nn.Module, again: nn.Module, images: torch.Tensor) -> Check:
    """Two builds under one seed."""
    name, one, other = "same seed, same weights", model.state_dict(), again.state_dict()
    differs = sorted(
        k for k in one.keys() | other.keys() if not (k in one and k in other and torch.equal(one[k], other[k]))
    )
    if differs:
        words = (
            f"{differs[0]} differs between two builds of one seed; draw initial weights from torch's generator alone"
        )
        return failed(name, words)
    if gap := _gap(_at_seed(model, images), _at_seed(again, images)):
        advice = "something outside the weights is drawn anew at each build; make it a buffer or draw it from torch"
        return failed(name, f"equal weights, but logits {gap:.3g} apart; {advice}")
    return passed(name, f"{len(one)} tensors and all logits are equal in two builds")


def _state(model: nn.Module, other: nn.Module, images: torch.Tensor) -> Check:
    """Weights put into a model that was built under another seed: they must be all that makes the model."""
    other.load_state_dict(model.state_dict())
    own = _at_seed(model, images)
    gap = _gap(own, _at_seed(other, images))
    if gap > SAME * (1 + float(own.abs().max())):
        words = f"a model with the same weights says otherwise by {gap:.3g}; what it draws must be a persistent buffer"
        return failed("weights are the model", words)
    return passed("weights are the model", "put into another build, they give the same logits")


@torch.no_grad()
def _input_unchanged(model: nn.Module, images: torch.Tensor) -> Check:
    given = images.clone()
    model(given)
    if torch.equal(given, images):
        return passed("input is left alone", "the batch is the same after a pass")
    words = f"a pass changes its images by up to {_gap(given, images):.3g}; work on a copy (`x = x - m`)"
    return failed("input is left alone", words)


@torch.no_grad()
def _noisy(model: nn.Module, images: torch.Tensor, sigma: float) -> Check:
    """Images with smoothing's noise, whose pixels may lie outside [0, 1]."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).to(images.device)
    if torch.isfinite(model(images + sigma * noise)).all():
        return passed("noise", f"finite logits under noise of deviation {sigma:g}, as smoothing asks")
    words = "logits are not finite for pixels outside [0, 1], which smoothing asks; begin with x = x.clamp(0, 1)"
    return failed("noise", words)


def by_itself(model: nn.Module, images: torch.Tensor) -> Check:
    """Whether an image's logits are the same however it is asked (asking.py); of a model that is not random."""
    asked = depends_on_asking(answers(model, images, IMAGES, 0), "the model", is_open=True)
    advice = "" if asked.sound else "; no statistic may be taken over the batch"
    return Check(name="each image by itself", ok=asked.sound, found=f"{asked.measured}{advice}")


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, track: Track, is_open: bool) -> Check:
    """Whether margin and cross-entropy have a gradient by each image that is finite and not zero; open models need none."""
    probed = probes(model, first_threat(track.threats) or ThreatModel(norm="L2", eps=0.5), track.data.shape, 0)
    unusable = 0
    for name in ("gradient", "loss gradient"):
        torch.manual_seed(0)
        norms = probed[name](images.clone(), labels)[name]
        unusable = max(unusable, int((~torch.isfinite(norms) | (norms == 0)).sum()))
    if not unusable:
        return passed("gradients", "finite and not zero on all images")
    advice = "the division is open" if is_open else "mend what cuts them off, or declare `division: open`"
    words = f"none, zero or not finite on {unusable} of {IMAGES} images; {advice}"
    return Check(name="gradients", ok=is_open, found=words)


def seconds_an_image(model: nn.Module, images: torch.Tensor) -> float:
    """The quicker of two passes."""
    return min(timeit.repeat(lambda: logits(model, images, IMAGES), number=1, repeat=2)) / IMAGES


@torch.no_grad()
def left_behind(model: nn.Module, images: torch.Tensor) -> list[str]:
    """Return what a pass in evaluation mode leaves on the model's modules or takes from torch's generator, in words."""
    before, drawn = _attributes(model), torch.get_rng_state()
    model(images.clone())
    after = _attributes(model)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    generator = [] if torch.equal(drawn, torch.get_rng_state()) else ["torch's generator"]
    return [f"attribute {key}" for key in changed] + generator


def _attributes(model: nn.Module) -> dict[str, object]:
    """Plain values by themselves, anything else by which object it is; tensors also by how often they were written to."""
    attributes: dict[str, object] = {}
    for name, module in model.named_modules():
        inside = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules")}
        for key, value in {**inside, **dict(module._buffers)}.items():
            plain = isinstance(value, int | float | str | bool | type(None))
            version = value._version if isinstance(value, torch.Tensor) else 0
            size = len(value) if isinstance(value, list | dict | set) else 0
            attributes[f"{name}.{key}".lstrip(".")] = value if plain else (id(value), version, size)
    return attributes


def _at_seed(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Logits with torch's generator in one state, so that a random model says the same."""
    torch.manual_seed(0)
    return logits(model, images, IMAGES)


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
