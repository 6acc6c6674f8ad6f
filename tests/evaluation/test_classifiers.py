"""Classifiers that are independent of the model under study."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmark.evaluation.classifiers import fitted, timm_classifier
from benchmark.runtime.errors import BenchmarkError


def half(n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Images of two classes: the left or the right half is light."""
    labels = np.arange(n) % 2
    images = np.random.default_rng(0).random((n, 1, 4, 4)).astype(np.float32) / 4
    for image, label in zip(images, labels, strict=True):
        image[:, :, 2 * label : 2 * label + 2] += 0.75
    return images, labels


@pytest.mark.slow
def test_fitted_classifiers_learn_and_refuse() -> None:
    images, labels = half(40)
    for name, classify in fitted(images, labels, 0).items():
        scores = classify(torch.from_numpy(images))
        assert scores.shape == (40, 2), name
        assert (scores.argmax(1).numpy() == labels).all(), name
    for name, classify in fitted(images, labels + (np.arange(40) == 0) * 2, 0).items():
        assert classify(torch.from_numpy(images)).shape == (40, 3), name
    with pytest.raises(BenchmarkError, match="class 1 has no image"):
        fitted(images, labels * 2, 0)
    with pytest.raises(BenchmarkError, match="too large"):
        fitted(np.zeros((2, 3, 64, 64), np.float32), np.array([0, 1]), 0)


@pytest.mark.slow
def test_timms_models_with_local_weights(tmp_path) -> None:
    import timm

    torch.manual_seed(0)
    net = timm.create_model("test_vit", pretrained=False).eval()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    classify = timm_classifier("test_vit", str(tmp_path / "net.pt"))
    config = net.pretrained_cfg
    images = torch.rand(2, 3, *config["input_size"][1:], generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(config[key])[:, None, None] for key in ("mean", "std"))
    with torch.no_grad():
        assert torch.equal(classify(images), net((images - mean) / std))
    assert classify(torch.rand(2, 3, 40, 40)).shape == (2, 1000)
    for name, path, words in (
        ("test_vti", "net.pt", "timm knows no model"),
        ("test_vit", "nowhere.pt", "are missing"),
        ("test_efficientnet", "net.pt", "does not fit"),
    ):
        with pytest.raises(BenchmarkError, match=words):
            timm_classifier(name, str(tmp_path / path))
