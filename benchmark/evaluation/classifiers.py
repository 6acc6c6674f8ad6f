"""Classifiers that have nothing to do with the model under study, to ask what is seen in its perturbations."""

from __future__ import annotations

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

from benchmark.evaluation.pictures import Classifier
from benchmark.runtime.errors import BenchmarkError

LARGEST = 3072  # values an image that classifiers of plain pixels are fitted to


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
