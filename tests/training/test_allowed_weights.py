"""What keeps weights where a recipe or an objective wants them, and the state that an objective keeps."""

from __future__ import annotations

import pytest
import torch
from tiny_training import model, resumed_to_the_same_bytes, run, spec
from torch import nn

from benchmark.training import standard


def sparse() -> nn.Module:
    made = model()
    with torch.no_grad():
        made[1].weight[:, ::2] = 0
        made[4].bias[:] = 0
    return made


@pytest.mark.parametrize("options", [{}, {"ema": 0.5}, {"optimizer": "sgd", "sam": 0.05, "accumulation": 2}])
def test_zeros_of_matrices_stay_and_all_else_learns(tmp_path, options) -> None:
    network = sparse()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    best, _ = run(network, standard.objective(None), spec(keep_zeros=True, **options), tmp_path / "c")
    for weights in (best, network.state_dict()):
        assert not weights["1.weight"][:, ::2].any()
        assert (weights["1.weight"][:, 1::2] != before["1.weight"][:, 1::2]).any()
        assert weights["4.bias"].any(), "vectors are free"
    free, _ = run(sparse(), standard.objective(None), spec(**options), tmp_path / "free")
    assert free["1.weight"][:, ::2].any()


def test_the_pattern_is_that_of_the_start_after_a_kill_too(tmp_path) -> None:
    rules = spec(keep_zeros=True)

    def start(place: str, **more):
        return run(sparse(), standard.objective(None), rules, tmp_path / place, **more), {}

    resumed_to_the_same_bytes(start, 2)


class Counting(standard.Standard):
    """Keeps how many steps it has seen, and holds the last bias below 0.01."""

    def attach(self, network, images):
        assert images.shape == (1, 1, 6, 6)
        self.state = nn.Module()
        self.state.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.order: list[str] = []
        return self.state

    def advance(self) -> None:
        self.state.steps += 1
        self.order.append("advance")

    def loss(self, network, images, labels, eps_factor):
        self.order.append("loss")
        return super().loss(network, images, labels, eps_factor)

    def after_step(self, network) -> None:
        self.order.append("after")
        network[4].bias.clamp_(max=0.01)


@pytest.mark.parametrize("options", [{}, {"accumulation": 2}, {"sam": 0.05}])
def test_an_objective_moves_its_state_once_a_step_and_has_the_last_word(tmp_path, options) -> None:
    objective = Counting()
    best, _ = run(model(), objective, spec(epochs=1, batch_size=32, **options), tmp_path / "c")
    losses = 1 if not options else 2  # of the first step
    assert objective.order[: losses + 2] == ["advance", *["loss"] * losses, "after"]
    assert int(objective.state.steps) == objective.order.count("after") == objective.order.count("advance")
    assert best["4.bias"].max() <= 0.01
