"""The network with attention by competition and its twin: sizes, constants, budgets, and steps of training that certify."""

from __future__ import annotations

import pytest
import torch

from benchmark.attacks.replaced_attention import mean_patterns, predictions_with_patterns
from benchmark.certificates import lipschitz, local
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.layers.competitive_attention import Competition, CompetitiveAttention
from benchmark.specs.data import DataSpec
from benchmark.specs.methods import method, module

build = method("Havens2024LoFAST").build
local_margin = module("Havens2024LoFAST", "local_margin")
SMALL = {"network": "content", "patch_size": 2, "width": 12, "stages": 2, "depth": 2, "last": 1, "outputs": 16}
IMAGES = torch.rand(12, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def data(side: int = 12) -> DataSpec:
    return DataSpec(source="digits", shape=(3, side, side), classes=4, validation=1, test=1)


def network(mixer: str, side: int = 12, **changes: int) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return build(data(side), mixer=mixer, **{**SMALL, **changes})


def test_the_twin_has_as_many_parameters_but_for_the_budgets() -> None:
    sizes = {mixer: sum(p.numel() for p in network(mixer, 8, width=24).parameters()) for mixer in ("competition", "shift")}
    model = network("competition", 8, width=24)
    budgets = sum(layer.heads for layer in model if isinstance(layer, CompetitiveAttention))
    assert sizes["competition"] - sizes["shift"] == budgets == 2 + 2 + 6
    assert [layer.window for layer in model if isinstance(layer, Competition)] == [5, 5, 4]


@pytest.mark.sweep
@pytest.mark.parametrize("mixer", ["competition", "cone", "shift"])
def test_two_steps_of_its_recipe_certify(mixer) -> None:
    model, labels = network(mixer, 8), torch.arange(12) % 4
    images = IMAGES[..., :8, :8]
    objective = local_margin.objective(None, radius=0.1412, margin=0.8, temperature=4)
    objective.attach(model, images)
    budgets = [layer.budgets.detach() for layer in model if isinstance(layer, CompetitiveAttention)]
    assert all(not torch.allclose(part, torch.ones_like(part)) for part in budgets), "set by the scores"
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    for _ in range(2):
        optimizer.zero_grad()
        objective.loss(model.train(), images, labels, 1.0).backward()
        optimizer.step()
    model = model.eval().requires_grad_(False)
    predicted = model(images).argmax(1)
    delta = torch.full((12,), 0.1, dtype=torch.float64)
    for bound in bound_network(checked_copy(model), images, predicted).layer_bounds:
        assert (bound.bound(delta) <= 0.1 * (1 + 1e-6)).all()
    radii = lipschitz.certify(model, images, predicted)
    assert (radii > 0).any()
    assert (local.certify(model, images[:2], predicted[:2], precision=0.05) >= 0.9 * radii[:2]).all()
    if mixer != "shift":
        means = mean_patterns(model, images, 6)
        assert len(means) == 3
        assert predictions_with_patterns(means, model, images, 6).shape == (12,)


@pytest.mark.parametrize(("change", "side"), [({"mixer": "swin"}, 8), ({"stages": 3}, 12), ({"width": 10}, 8)])
def test_what_does_not_fit_is_refused(change, side) -> None:
    with pytest.raises(ValueError, match=r"tile|mixer|multiple of 12"):
        build(data(side), **{**SMALL, "mixer": "competition", **change})
