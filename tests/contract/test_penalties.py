"""Penalties give the loop what benchmark/training/objective.py asks for: the benchmark's, and those in `components.OWN`."""

from __future__ import annotations

import copy
import math
from typing import Any

import components
import pytest
import torch
from tiny_models import attentive
from torch import nn

from benchmark.layers.attention_weights import attention_weights
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.training import TrainingSpec
from benchmark.training.fitting import check_recipe
from benchmark.training.objective import Penalty

PARAMETERS: dict[str, dict[str, Any]] = {
    "msvp": {"lambda_q": 0.1, "lambda_k": 0.1, "lambda_v": 0.1},
    "spectral_norm": {"factor": 0.1},
}
PENALTIES = components.names("training/penalties", "penalty")


def given(name: str) -> dict[str, Any]:
    function = components.module("training/penalties", name).penalty
    return components.parameters(function, PARAMETERS.get(name, {}), (), "PARAMETERS of tests/contract/test_penalties.py")


def penalty(name: str, network: nn.Module) -> Penalty:
    return components.module("training/penalties", name).penalty(network, lambda: attention_weights(network), **given(name))


@pytest.mark.parametrize("name", PENALTIES)
def test_it_is_a_scalar_with_a_gradient_whose_state_is_its_own_and_follows_the_weights(name) -> None:
    network = attentive()
    made = penalty(name, network)
    assert isinstance(made, Penalty)
    assert not list(made.parameters()), "the model's weights are none of its own"
    value = made()
    assert (value.shape, value.dtype) == ((), torch.float32)
    assert 0 < value.item() < math.inf
    before = copy.deepcopy(made.state_dict())
    made().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
    assert all(torch.equal(before[key], tensor) for key, tensor in made.state_dict().items()), "forward moved its state"
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    assert made().item() > value.item()


@pytest.mark.parametrize("name", PENALTIES)
def test_it_draws_nothing_and_follows_its_state(name) -> None:
    """Equal states give equal values, and the run's random numbers are not touched."""
    network = attentive()
    first, second = penalty(name, network), penalty(name, network)
    state = torch.get_rng_state()
    for _ in range(3):
        first.advance()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(), second())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", PENALTIES)
def test_recipes_name_it_and_misspelled_parameters_are_told(name) -> None:
    rules = {"objective": "standard", "epochs": 1, "batch_size": 8, "learning_rate": 0.1}
    owner = components.owner("training/penalties", name)
    check_recipe(TrainingSpec(**rules, penalties=[{"name": name, "parameters": given(name)}]), owner)
    with pytest.raises(BenchmarkError, match=f"penalty {name}: unknown parameter 'lamda'"):
        check_recipe(TrainingSpec(**rules, penalties=[{"name": name, "parameters": {"lamda": 1.0}}]), owner)
