"""Copies of a network for which the largest sound radius is known by construction: ties, and planted counterexamples.

Only the head's rows and biases change, so everything before it is the row's own network. A tie has radius 0. A plant is an
image x' found by ascent whose margin over one rival is lower by f than the clean image's. The rival's bias is then set so
that the clean image has a margin slightly below f, and the other rivals are too far away to matter: x' is misclassified, and
a certificate whose radius reaches x' is wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.evaluation.audit_layers import ascend, float64_copy, shrink
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import distances, into_ball
from benchmark.verdicts.prediction import predict

CHUNK = 256  # images that go through the network at once
Certify = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def lower_margins(
    network: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    rivals: torch.Tensor,
    radii: torch.Tensor,
    *,
    steps: int,
    seed: int,
    box: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Searches, for each image, the image within its l2 radius (and [0, 1]) with the lowest margin over its rival.

    Args:
        network: in float64.
        images: (n, c, h, w) float64 in [0, 1]; labels, rivals and radii (n,).
        box: whether to stay in [0, 1]; if not, the result only refutes certificates that hold outside [0, 1] too.

    Returns:
        The drop of the margin (n,) and the images (n, c, h, w), float64.
    """
    generator = torch.Generator().manual_seed(seed)

    def lower(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, radius, pair = images[part], radii[part], torch.stack([labels[part], rivals[part]], 1)
        start = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)

        def margin(images: torch.Tensor) -> torch.Tensor:
            both = network(images).gather(1, pair)
            return both[:, 0] - both[:, 1]

        def project(move: torch.Tensor) -> torch.Tensor:
            inside = shrink(move, radius)
            return (x + inside).clamp(0, 1) - x if box else inside

        clean = margin(x)
        fall, move = ascend(lambda move: clean - margin(x + move), project, shrink(start, radius / 4), radius, steps)
        return fall, x + move

    parts = [lower(part) for part in torch.arange(len(images), device=images.device).split(CHUNK)]
    falls, lowest = zip(*parts, strict=True)
    return torch.cat(falls), torch.cat(lowest)


def has_head(model: nn.Module) -> bool:
    """Whether the last layer is a linear head with a bias, as ties and plants need."""
    head = model[-1] if isinstance(model, nn.Sequential) and len(model) else None
    return isinstance(head, NormalisedHead) or (isinstance(head, nn.Linear) and head.bias is not None)


def _head(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and biases as stored."""
    head = model[-1]  # type: ignore[index]
    return (head.raw if isinstance(head, NormalisedHead) else head.weight).data, head.bias.data


def tied(model: nn.Module, label: int, rival: int) -> nn.Module:
    """A copy whose logit of `rival` is that of `label`, for every image."""
    model = copy.deepcopy(model)
    for part in _head(model):
        part[rival] = part[label]
    return model


def audit_ties(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, certify: Certify, row: str) -> int:
    """Certifies images under a tie of their label with the class before it, and with the one after it.

    Returns:
        How many images were certified under a tie.

    Raises:
        BenchmarkError: a tied image got a radius above 0.
    """
    classes, tried = len(_head(model)[1]), 0
    for label in labels.unique().tolist():
        mine = labels == label
        for rival in {(label - 1) % classes, (label + 1) % classes}:
            radii = certify(tied(model, label, rival), images[mine], labels[mine])
            tried += len(radii)
            if not (radii == 0).all():
                raise BenchmarkError(
                    f"{row}: an image whose classes {label} and {rival} tie exactly is certified at l2 "
                    f"{float(radii.max()):.6g}; the certificate is wrong and nothing is published"
                )
    return tried


@dataclass(frozen=True)
class Plant:
    """A network with an adversarial example of known distance for one image."""

    model: nn.Module
    image: int
    rival: int
    distance: float
    margins: tuple[float, float]  # clean and planted, float64


def plants(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    rivals: torch.Tensor,
    radii: torch.Tensor,
    *,
    steps: int,
    seed: int,
) -> list[Plant]:
    """One plant for each image, rival and radius (n,), where ascent lowers the margin by more than float32 rounding.

    For both the float32 network and its float64 copy the clean image is correct and the planted one misclassified.
    """
    network = float64_copy(model)
    x = images.double()
    _, found = lower_margins(network, x, labels, rivals, radii, steps=steps, seed=seed)
    made = []
    for i in range(len(images)):
        threat = ThreatModel(norm="L2", eps=float(radii[i]))
        moved = into_ball(found[i : i + 1], images[i : i + 1], threat, "the auditor's ascent")
        both, pair = torch.cat([images[i : i + 1], moved]), labels[i].expand(2)
        with torch.no_grad():
            logits = network(both.double())
        plant = _plant(model, logits, int(labels[i]), int(rivals[i]))
        single = predict(plant, both, pair, 2).margin.double()
        double = predict(float64_copy(plant), both.double(), pair, 2).margin.double()
        if (single[0] > 0) & (double[0] > 0) & (single[1] < 0) & (double[1] < 0):
            distance = float(distances(moved, images[i : i + 1])["L2"])
            made.append(Plant(plant, i, int(rivals[i]), distance, (float(double[0]), float(double[1]))))
    return made


def _plant(model: nn.Module, logits: torch.Tensor, label: int, rival: int) -> nn.Module:
    """A copy with the biases changed; `logits` (2, classes) float64 of the clean and the moved image."""
    clean, moved = logits[:, label : label + 1] - logits
    fall = float(clean[rival] - moved[rival])
    sliver = 4e-6 * (1 + float(logits.abs().max()))
    shift = (10 * fall + 1 - clean).clamp(min=0)  # the others, out of the way
    shift[rival] = fall - sliver - clean[rival]
    shift[label] = 0
    model = copy.deepcopy(model)
    bias = _head(model)[1]
    bias -= shift.to(bias.dtype)
    return model


def audit_planted(made: list[Plant], images: torch.Tensor, labels: torch.Tensor, certify: Certify, row: str) -> float:
    """Certifies each planted image.

    Returns:
        The largest ratio of a certified radius to the distance of the counterexample.

    Raises:
        BenchmarkError: a certificate reaches its counterexample.
    """
    closest = 0.0
    for plant in made:
        one = slice(plant.image, plant.image + 1)
        radius = float(certify(plant.model, images[one], labels[one]))
        if not radius < plant.distance:
            raise BenchmarkError(
                f"{row}: planted counterexample {plant.image} (class {plant.rival}) lies at l2 {plant.distance:.6g} "
                f"(margins {plant.margins[0]:.3g} clean, {plant.margins[1]:.3g} there) but {radius:.6g} is certified; "
                "the certificate is wrong and nothing is published"
            )
        closest = max(closest, radius / plant.distance)
    return closest
