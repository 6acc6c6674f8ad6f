"""One trial of the fuzzer: a mutated network is refused in words, or its certificate stands against attacks at its radii."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ball_search import breaks
from mutations import IMAGES, Mutation, mutated
from torch import nn

from benchmark.layers.description import describe, rebuild
from benchmark.runtime.errors import BenchmarkError


@dataclass(frozen=True)
class Outcome:
    """`end` is "does not run" (the network itself raises), "refused" or "accepted"; then how many images were attacked, and the
    radii of those that the original object, in float32, gives another class within.
    """

    end: str
    attacked: int = 0
    false: tuple[float, ...] = ()


def predicted(model: nn.Module) -> torch.Tensor | None:
    """The classes that a mutated network gives the images, or None where it does not run."""
    try:
        with torch.no_grad():
            return model(IMAGES.clone()).float().nan_to_num().argmax(1)
    except Exception:  # whatever a broken network raises
        return None


def trial(which: int, mutations: list[Mutation]) -> Outcome:
    """Raises:
    Exception: a refusal that is no BenchmarkError.
    """
    certificate, model = mutated(which, mutations)
    labels = predicted(model)
    if labels is None:
        return Outcome("does not run")
    try:
        certificate.float32_gap(model, IMAGES, labels)
        radii = certificate.certify(model, IMAGES, labels, precision=0.05)
    except BenchmarkError:
        return Outcome("refused")
    network = rebuild(*describe(model)).double()
    certified = [one for one in zip(IMAGES, labels.tolist(), radii.tolist(), strict=True) if one[2] > 0]
    false = tuple(one[2] for one in certified if breaks(model, network, *one))
    return Outcome("accepted", len(certified), false)
