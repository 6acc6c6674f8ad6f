"""What this paper measures of a model beside its accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from torch import nn
from torchvision.transforms import v2

from benchmark.attacks.prediction import margins
from benchmark.evaluation.pictures import perturbed, rescaled
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel

LARGEST = 3072  # values an image that classifiers of plain pixels are fitted to

Classifier = Callable[[torch.Tensor], torch.Tensor]  # images (n, c, h, w) in [0, 1] to scores (n, classes)


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


def shares(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    classifiers: Mapping[str, Classifier],
    *,
    eps: float,
    steps: int = 100,
    top: int = 5,
    negative: bool = False,
    batch_size: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """Table 9: how often independent, standardly trained classifiers name an image's class from its perturbation alone.

    Args:
        model: against which PGD finds the perturbations, in the Linf ball `eps` (pixels of [0, 1]).
        images: (n, c, h, w) in [0, 1]; `labels` (n,).
        classifiers: by name; each sees the rescaled perturbation.
        top: a class counts when it is among so many best (the thesis: 5 of 1,000). A tie counts against it.
        negative: show classifiers the negative: on a black background PGD takes the thing away, which leaves its negative.

    Returns:
        The share of images, in [0, 1], by classifier.

    Raises:
        ValueError: no classifier, no image, or `top` is not below the number of classes, where every answer is right.
    """
    if not classifiers or not len(labels):
        raise ValueError("it needs a classifier and an image")
    threat, hits = ThreatModel(norm="Linf", eps=eps), dict.fromkeys(classifiers, 0)
    for start in range(0, len(labels), batch_size):
        x, y = images[start : start + batch_size], labels[start : start + batch_size]
        pictures = rescaled(perturbed(model, x, y, threat, steps=steps, seed=seed + start) - x, eps)
        pictures = 1 - pictures if negative else pictures
        for name, classifier in classifiers.items():
            with torch.no_grad():
                hits[name] += int(_among_best(classifier(pictures), y, top, name).sum())
    return {name: count / len(labels) for name, count in hits.items()}


def _among_best(scores: torch.Tensor, labels: torch.Tensor, top: int, name: str) -> torch.Tensor:
    """(n,) bool: fewer than `top` other classes score as high as the label."""
    if not 0 < top < scores.shape[1]:
        raise ValueError(f"top {top} of the {scores.shape[1]} classes of {name}: every answer would be right; give less")
    own = scores.gather(1, labels[:, None])
    return (scores >= own).sum(1) - 1 < top


def fitted(images: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, Classifier]:
    """scikit-learn's support vector machine (RBF), random forest and one-layer perceptron, fitted to clean images.

    Args:
        images: (n, c, h, w) in [0, 1], small ones; `labels` (n,), each of 0 to classes - 1 at least once.

    Raises:
        BenchmarkError: images of more than 3,072 values, or a class without an image.
    """
    if images[0].size > LARGEST:
        raise BenchmarkError(f"images of {images[0].size} values are too large for classifiers of pixels; use timm's")
    if len(missing := np.setdiff1d(np.arange(labels.max() + 1), labels)):
        raise BenchmarkError(f"class {missing[0]} has no image to fit a classifier to")
    kinds = {
        "SVM": SVC(random_state=seed, decision_function_shape="ovr"),
        "random forest": RandomForestClassifier(random_state=seed),
        "perceptron": MLPClassifier(random_state=seed, max_iter=1000),
    }
    flat = images.reshape(len(images), -1)
    return {name: _scores(kind.fit(flat, labels)) for name, kind in kinds.items()}


def _scores(kind: ClassifierMixin) -> Classifier:
    score = kind.decision_function if hasattr(kind, "decision_function") else kind.predict_proba

    def classify(images: torch.Tensor) -> torch.Tensor:
        found = torch.from_numpy(np.asarray(score(images.flatten(1).cpu().numpy()))).to(images.device)
        return found if found.ndim == 2 else torch.stack([-found, found], 1)  # of two classes it is one number

    return classify


def timm_classifier(name: str, checkpoint: str) -> nn.Module:
    """timm's model `name` with the weights of a local file, its own normalisation and size: RGB images in [0, 1] to logits.

    The thesis asks convnext_xlarge, beit_large_patch16_224 and a Swin transformer, all standardly trained on ImageNet.

    Raises:
        BenchmarkError: timm knows no such model, or the file is missing or does not fit it.
    """
    import timm

    if not timm.is_model(name):
        raise BenchmarkError(f"timm knows no model {name!r}; see timm.list_models()")
    if not Path(checkpoint).is_file():
        raise BenchmarkError(f"the weights {checkpoint} of timm's {name} are missing; put them there")
    net = timm.create_model(name, pretrained=False)
    try:
        timm.models.load_checkpoint(net, checkpoint, weights_only=True)
    except Exception as error:
        raise BenchmarkError(f"{checkpoint} does not fit timm's {name}: {str(error).splitlines()[0]}") from error
    config = timm.data.resolve_data_config(model=net)
    resized = v2.Resize(config["input_size"][1:], v2.InterpolationMode.BICUBIC)
    shown = (resized, v2.Lambda(partial(torch.clamp, min=0, max=1)), v2.Normalize(config["mean"], config["std"]))
    return nn.Sequential(*shown, net).eval().requires_grad_(False)
