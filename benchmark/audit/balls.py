"""Attacks inside certified l2 balls, at the certified radius itself, evaluated in float32 and in float64.

The track's attacks use a few fixed radii, at which a certificate that is a little too large would not be noticed.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.attacks import autoattack, pgd
from benchmark.audit.ascent import float64_copy, lower_margins
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import into_ball
from benchmark.verdicts.margins import margins
from benchmark.verdicts.prediction import predict

RIVALS = 9  # the nearest rivals whose margins are descended, as many as AutoAttack has targets


class Balls:
    """A row's model and certified images, with the attacks on the images' certified balls."""

    def __init__(
        self,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        radii: torch.Tensor,
        row: str,
        first: int = 0,
    ) -> None:
        """`first` is the number of the first of these images in the data set, by which a failure names them."""
        self.model, self.images, self.labels, self.radii = model, images, labels, radii
        self.row, self.first = row, first
        self.network = float64_copy(model)
        self.certified = (radii > 0).nonzero()[:, 0]

    def disagreements(self, batch_size: int) -> torch.Tensor:
        """Which images (n,) have different float32 and float64 verdicts; float64 runs image by image, float32 in batches.

        Raises:
            BenchmarkError: one of them is certified, or a certified image is wrong or tied in float64.
        """
        single = predict(self.model, self.images, self.labels, batch_size).margin.double()
        with torch.no_grad():
            logits = torch.cat([self.network(image[None].double()) for image in self.images])
        double = margins(logits, self.labels)
        differ = (single > 0) != (double > 0)
        bad = (self.radii > 0) & (differ | ~(double > 0))
        if bad.any():
            image = int(bad.nonzero()[0])
            raise BenchmarkError(
                f"{self.row}: image {self.first + image} is certified at l2 {float(self.radii[image]):.6g} but its clean "
                f"margin is {float(single[image]):.6g} in float32 and {float(double[image]):.6g} in float64; "
                "the certificate is wrong and nothing is published"
            )
        return differ

    def refute(self, image: int, adversarial: torch.Tensor, attack: str) -> None:
        """Evaluates the images (k, c, h, w), in any precision, that an attack found in the ball of one image.

        Raises:
            BenchmarkError: one is an adversarial example, for the float32 network or its float64 copy.
        """
        threat = ThreatModel(norm="L2", eps=float(self.radii[image]))
        start, label = self.images[image].expand_as(adversarial), self.labels[image].expand(len(adversarial))
        inside = into_ball(adversarial, start, threat, attack)
        single = predict(self.model, inside, label, len(adversarial)).margin.double()
        with torch.no_grad():
            double = margins(self.network(inside.double()), label)
        if not ((single > 0) & (double > 0)).all():
            raise BenchmarkError(
                f"{self.row}: image {self.first + image} is certified at l2 {threat.eps:.6g} but {attack} broke it there "
                f"(margin {float(single.min()):.6g} in float32, {float(double.min()):.6g} in float64); "
                "the certificate is wrong and nothing is published"
            )

    def pgd(self, image: int, restarts: int, seed: int, steps: int) -> None:
        """`restarts` runs of PGD on the cross-entropy; raises as `refute`."""
        threat = ThreatModel(norm="L2", eps=float(self.radii[image]))
        start, label = self.images[image].repeat(restarts, 1, 1, 1), self.labels[image].repeat(restarts)
        found = pgd.attack(self.model, start, label, threat, seed=seed, steps=steps, step_size=threat.eps / 5)
        self.refute(image, found, "pgd at the certified radius")

    def apgd(self, image: int, restarts: int, seed: int, components: tuple[str, ...]) -> None:
        """`restarts` runs of each APGD of AutoAttack (100 steps); raises as `refute`."""
        threat = ThreatModel(norm="L2", eps=float(self.radii[image]))
        start, label = self.images[image].repeat(restarts, 1, 1, 1), self.labels[image].repeat(restarts)
        for component in components:
            found = autoattack.attack(self.model, start, label, threat, seed=seed, component=component)
            self.refute(image, found, f"{component} at the certified radius")

    def descend(self, images: torch.Tensor, seed: int, steps: int) -> None:
        """Descends the float64 margin over each of the nearest rivals of each of `images` (k,); raises as `refute`."""
        x, labels = self.images[images].double(), self.labels[images]
        with torch.no_grad():
            others = self.network(x).scatter(1, labels[:, None], -torch.inf)
        count = min(RIVALS, others.shape[1] - 1)
        rivals = others.topk(count, dim=1).indices.flatten()
        every = images.repeat_interleave(count)
        _, found = lower_margins(
            self.network,
            self.images[every].double(),
            self.labels[every],
            rivals,
            self.radii[every],
            steps=steps,
            seed=seed,
        )
        for image, tried in zip(images.tolist(), found.split(count), strict=True):
            self.refute(image, tried, "margin descent at the certified radius")
