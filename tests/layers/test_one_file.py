"""A layer is one file with module, description, constant and bound; it is certified and attacked without other changes."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from tiny_certified import assert_unbroken
from torch import nn

from benchmark.attacks import pgd
from benchmark.certificates import lipschitz, local
from benchmark.evaluation.audit_layers import Effort, audit_layers
from benchmark.layers import kinds
from benchmark.layers.description import describe, rebuild
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.specs.threat import ThreatModel
from benchmark.training.layer_norms import LayerNorms

FILE = '''
import torch
from torch import nn

from benchmark.certificates.bounds.layer_bound import UP, LayerBound, layer_bound, within
from benchmark.certificates.bounds.rounding import FLOAT64, LARGEST, TINY, UNIT32, size
from benchmark.layers.kinds import known, positive


@known(factor=positive, constant=lambda layer, _: layer.factor)
class Damp(nn.Module):
    """x times a number: any shape to the same."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@layer_bound.register
def _(layer: Damp, x: torch.Tensor) -> LayerBound:
    within(layer, 1 / LARGEST, LARGEST, factor=layer.factor)
    moved = 2 * UNIT32 * layer.factor * FLOAT64
    return LayerBound(layer, layer.factor * UP, lambda delta: moved * (size(x) + delta) + TINY)
'''


@pytest.fixture
def damp(tmp_path):
    path = tmp_path / "damp.py"
    path.write_text(FILE)
    spec = importlib.util.spec_from_file_location("damp", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.Damp
    del kinds.BY_NAME["Damp"], kinds.BY_TYPE[module.Damp]


@pytest.mark.slow
def test_a_layer_of_one_file_is_described_rebuilt_bounded_certified_and_attacked(damp) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(damp(0.3), nn.Flatten(), NormalisedHead(16, 3)).eval().requires_grad_(False)
    images = torch.rand(6, 1, 4, 4)
    model[2].bias.sub_(model(images).mean(0))
    labels = model(images).argmax(1)
    tree, tensors = describe(model)
    assert tree["parts"][0] == {"layer": "Damp", "arguments": {"factor": 0.3}}
    assert torch.equal(rebuild(json.loads(json.dumps(tree)), tensors)(images), model(images))
    assert float(LayerNorms([model[0]], images[:1], 1).upper()[0]) == pytest.approx(0.3)
    tally = audit_layers(model, images, list(range(6)), "row", effort=Effort(radii=(0.1,), starts=2))
    assert 0.9 < tally.worst <= 1 + 1e-9
    for certificate in (local, lipschitz):
        radii = certificate.certify(model, images, labels)
        assert (radii > 0).all()
        assert_unbroken(model, images, labels, radii)
    moved = pgd.attack(model, images, labels, ThreatModel(norm="L2", eps=2.0), seed=0, steps=10, step_size=0.5)
    assert (model(moved).argmax(1) != labels).any()
