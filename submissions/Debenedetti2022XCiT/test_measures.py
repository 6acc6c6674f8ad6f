"""Table 9's measure: exact on a known model; on the digits by classifiers that are good ones, the same numbers again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmark.runtime.errors import BenchmarkError

PATH = Path(__file__).parent / "measures.py"


@pytest.fixture(scope="module")
def measures():
    spec = importlib.util.spec_from_file_location("measures_of_xcit", PATH)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_semantic_content_of_a_digits_model(measures) -> None:
    from benchmark.data.prepare import read, split
    from benchmark.specs import tracks

    spec = tracks.load("digits").data
    test = split(spec, read(spec))["test"]
    images, labels = torch.from_numpy(test.floats()[:60]), torch.from_numpy(test.labels[:60])

    class Templates(torch.nn.Module):
        """Nearest class mean: its perturbations take the digit away, stroke by stroke."""

        def __init__(self) -> None:
            super().__init__()
            pixels = torch.from_numpy(train.floats()).flatten(1)
            self.means = torch.stack([pixels[train.labels == k].mean(0) for k in range(10)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -((x.flatten(1)[:, None] - self.means) ** 2).sum(2)

    train = split(spec, read(spec))["train"]
    training = torch.from_numpy(train.floats()), torch.from_numpy(train.labels)
    given = {"eps": 0.15, "steps": 10, "top": 1, "training": training}
    found = measures.semantic_content(Templates().eval(), images, labels, seed=0, **given)
    names = {"SVM", "random forest", "perceptron"}
    assert found.keys() == names | {f"{name}, clean images" for name in names}
    assert all(found[f"{name}, clean images"] > 0.9 for name in names)
    assert all(0 <= found[name] <= 1 for name in names)
    assert found == measures.semantic_content(Templates().eval(), images, labels, seed=0, **given)


class OnePixelAClass(torch.nn.Module):
    """Class k is pixel k: PGD darkens the label's pixel and lightens all others, each by the whole radius."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * x.flatten(1)


def test_shares_are_of_what_classifiers_read_in_the_perturbation(measures) -> None:
    model, greys, labels = OnePixelAClass().eval(), torch.full((10, 1, 2, 5), 0.5), torch.arange(10)
    classifiers = {
        "dark": lambda x: -x.flatten(1),
        "light": lambda x: x.flatten(1),
        "constant": lambda x: torch.zeros(len(x), 10),  # ties with all others
        "second": lambda x: -x.flatten(1) + 2 * torch.eye(10)[(x.flatten(1).argmin(1) + 1) % 10],
    }
    first = measures.shares(model, greys, labels, classifiers, eps=0.25, steps=20, top=1, batch_size=4)
    assert first == {"dark": 1.0, "light": 0.0, "constant": 0.0, "second": 0.0}
    turned = measures.shares(model, greys, labels, classifiers, eps=0.25, steps=20, top=1, negative=True)
    assert (turned["dark"], turned["light"]) == (0.0, 1.0)
    top = measures.shares(model, greys, labels, classifiers, eps=0.25, steps=20, top=2)
    assert top == {"dark": 1.0, "light": 0.0, "constant": 0.0, "second": 1.0}
    with pytest.raises(ValueError, match="every answer would be right"):
        measures.shares(model, greys, labels, classifiers, eps=0.25, top=10)
    with pytest.raises(ValueError, match="needs a classifier and an image"):
        measures.shares(model, greys, labels, {}, eps=0.25)


def half(n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Images of two classes: the left or the right half is light."""
    labels = np.arange(n) % 2
    images = np.random.default_rng(0).random((n, 1, 4, 4)).astype(np.float32) / 4
    for image, label in zip(images, labels, strict=True):
        image[:, :, 2 * label : 2 * label + 2] += 0.75
    return images, labels


@pytest.mark.slow
def test_fitted_classifiers_learn_and_refuse(measures) -> None:
    images, labels = half(40)
    for name, classify in measures.fitted(images, labels, 0).items():
        scores = classify(torch.from_numpy(images))
        assert scores.shape == (40, 2), name
        assert (scores.argmax(1).numpy() == labels).all(), name
    for name, classify in measures.fitted(images, labels + (np.arange(40) == 0) * 2, 0).items():
        assert classify(torch.from_numpy(images)).shape == (40, 3), name
    with pytest.raises(BenchmarkError, match="class 1 has no image"):
        measures.fitted(images, labels * 2, 0)
    with pytest.raises(BenchmarkError, match="too large"):
        measures.fitted(np.zeros((2, 3, 64, 64), np.float32), np.array([0, 1]), 0)


@pytest.mark.slow
def test_timms_models_with_local_weights(measures, tmp_path) -> None:
    import timm

    torch.manual_seed(0)
    net = timm.create_model("test_vit", pretrained=False).eval()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    classify = measures.timm_classifier("test_vit", str(tmp_path / "net.pt"))
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
            measures.timm_classifier(name, str(tmp_path / path))
