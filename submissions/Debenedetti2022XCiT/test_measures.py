"""Table 9's measure on the digits: independent classifiers that are good ones, the same numbers again."""

from __future__ import annotations

import pytest
import torch

from benchmark.data.prepare import read, split
from benchmark.loading import methods, tracks

semantic_content = methods.module("Debenedetti2022XCiT", "measures").semantic_content


@pytest.mark.slow
def test_semantic_content_of_a_digits_model() -> None:
    spec = tracks.load("digits").data
    parts = split(spec, read(spec))
    train, test = parts["train"], parts["test"]
    images, labels = torch.from_numpy(test.floats()[:60]), torch.from_numpy(test.labels[:60])

    class Templates(torch.nn.Module):
        """Nearest class mean: its perturbations take the digit away, stroke by stroke."""

        def __init__(self) -> None:
            super().__init__()
            pixels = torch.from_numpy(train.floats()).flatten(1)
            self.means = torch.stack([pixels[train.labels == k].mean(0) for k in range(10)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -((x.flatten(1)[:, None] - self.means) ** 2).sum(2)

    training = torch.from_numpy(train.floats()), torch.from_numpy(train.labels)
    given = {"eps": 0.15, "steps": 10, "top": 1, "training": training}
    found = semantic_content(Templates().eval(), images, labels, seed=0, **given)
    names = {"SVM", "random forest", "perceptron"}
    assert found.keys() == names | {f"{name}, clean images" for name in names}
    assert all(found[f"{name}, clean images"] > 0.9 for name in names)
    assert all(0 <= found[name] <= 1 for name in names)
    assert found == semantic_content(Templates().eval(), images, labels, seed=0, **given)
