"""One trial of the fuzzer: a mutated network is refused in words, or its certificate stands against attacks at its radii."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ball_search import breaks
from mutations import IMAGES, Mutation, mutated

from benchmark.layers.description import describe, rebuild
from benchmark.runtime.errors import BenchmarkError


class FalseCertificate(AssertionError):
    pass


@dataclass(frozen=True)
class Outcome:
    """`end` is "does not run" (the network itself raises), "refused" or "accepted"; then how many images were attacked."""

    end: str
    attacked: int = 0


def trial(which: int, mutations: list[Mutation]) -> Outcome:
    """
    Raises:
        FalseCertificate: an image within a certified radius, as the original object computes it in float32, is given
            another class.
        Exception: a refusal that is no BenchmarkError.
    """
    certificate, model = mutated(which, mutations)
    try:
        with torch.no_grad():
            labels = model(IMAGES.clone()).float().nan_to_num().argmax(1)
    except Exception:  # whatever a broken network raises
        return Outcome("does not run")
    try:
        certificate.float32_gap(model, IMAGES, labels)
        radii = certificate.certify(model, IMAGES, labels, precision=0.05)
    except BenchmarkError:
        return Outcome("refused")
    network, attacked = rebuild(*describe(model)).double(), 0
    for image, label, radius in zip(IMAGES, labels.tolist(), radii.tolist(), strict=True):
        if radius > 0:
            attacked += 1
            if breaks(model, network, image, label, radius):
                raise FalseCertificate(f"{which} {mutations}: certified at l2 {radius:.6g}, broken within")
    return Outcome("accepted", attacked)
