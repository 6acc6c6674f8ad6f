"""What this paper measures of a model beside its accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmark.evaluation.classifiers import fitted, timm_classifier
from benchmark.evaluation.pictures import semantic_content as shares
from benchmark.verdicts.prediction import margins


def semantic_content(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    training: tuple[torch.Tensor, torch.Tensor],
    eps: float,
    steps: int = 100,
    top: int = 5,
    negative: bool = False,
    classifiers: Sequence[str] = (),
) -> dict[str, float]:
    """Table 9: the share of images whose class independent classifiers read off the perturbation that PGD finds.

    Args:
        images: (n, c, h, w) in [0, 1]; `labels` (n,).
        eps: Linf radius in pixels of [0, 1].
        top: so many best answers count (the paper: 5 of 1,000 classes).
        negative: classifiers see the negative, for light things on black, such as digits; the paper does not.
        training: images and labels that scikit-learn's classifiers are fitted to, where no `classifiers` are given.
        classifiers: timm's, each `<name>=<weights file>`; the paper's three on ImageNet.

    Returns:
        By classifier the share, and as `<classifier>, clean images` its accuracy on the images themselves.
    """
    pairs = [one.partition("=") for one in classifiers]
    known = {name: timm_classifier(name, path) for name, _, path in pairs}
    known = known or fitted(*(part.numpy() for part in training), seed)
    found = shares(model, images, labels, known, eps=eps, steps=steps, top=top, negative=negative, seed=seed)
    with torch.no_grad():
        clean = {n: float((margins(c(images), labels) > 0).float().mean()) for n, c in known.items()}
    return found | {f"{name}, clean images": share for name, share in clean.items()}
