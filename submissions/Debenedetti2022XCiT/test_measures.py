"""Table 9's measure on the digits: independent classifiers that are good ones, the same numbers again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

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
    from benchmark.loading import tracks

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
