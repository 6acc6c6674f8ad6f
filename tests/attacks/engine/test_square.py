"""The fast engine's Square compared with the authors' file: the same chain, with fewer queries."""

from __future__ import annotations

import pytest
import torch
from tiny_attacked import RADII, Watched, authors, labelled, search_of
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.attacks import autoattack
from benchmark.attacks.engine import square
from benchmark.attacks.engine.slots import Search, generator
from benchmark.attacks.prediction import margins
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel

NORMS = pytest.mark.parametrize("norm", ["Linf", "L2"])


class Dealt:
    """Deals the authors' Square our random numbers: where it draws, it is given."""

    def __init__(self, attacker, rule, start: torch.Tensor, codes: torch.Tensor) -> None:
        self.attacker, self.rule, self.start, self.codes = attacker, rule, start, codes.tolist()
        self.tiles = [(y, x) for y in range(rule.height) for x in range(rule.width)]  # of side 1 in images of 6x6
        self.query, self.fields = -1, {}
        attacker.random_int, attacker.random_choice, attacker.eta = self.integer, self.choice, self.eta

    def integer(self, low=0, high=1, shape=(1,)) -> torch.Tensor:
        if not self.fields:
            self.query += 1
            self.fields = self.read(self.codes[self.query])
        return torch.tensor([self.fields["places"].pop(0)])

    def read(self, code: int) -> dict:
        signs = torch.tensor([2.0 * (code >> i & 1) - 1 for i in range(self.rule.channels)])
        rest, side = code >> self.rule.channels, self.rule.width
        if self.attacker.norm == "Linf":
            return {"places": list(divmod(rest, side)), "signs": signs}
        one, other = divmod(rest >> 1, self.rule.height * side)
        return {"places": [*divmod(one, side), *divmod(other, side)], "signs": signs, "turn": rest & 1}

    def choice(self, shape) -> torch.Tensor:
        if self.query >= 0:
            signs, self.fields = self.fields["signs"].view([*shape[:-3], -1, 1, 1]), {}
            return signs
        if self.attacker.norm == "Linf":
            return self.start[None, :, :1]
        y, x = self.tiles.pop(0)
        return self.start[None, :, y : y + 1, x : x + 1] / self.start[0, y, x]

    def eta(self, side: int) -> torch.Tensor:
        if self.query < 0:
            y, x = self.tiles[0]
            return self.start[0, y : y + 1, x : x + 1]
        shape = self.rule._two_halves(side)
        return shape.T if self.fields["turn"] else shape


@pytest.mark.sweep
@NORMS
@pytest.mark.parametrize("channels", [1, 2])
def test_square_walks_the_chain_that_the_authors_file_walks(norm, channels, monkeypatch) -> None:
    """Dealt the same random numbers, the authors' file takes the same proposals and ends at the same point."""
    shape, eps = (channels, 6, 6), {"Linf": 0.005, "L2": 0.05}[norm]
    monkeypatch.setattr(square, "QUERIES", 200)
    model = Watched(shape)
    images, labels = labelled(model, shape, n=1)
    ours, chains = end_of_chain(search_of(model, images, labels, norm, eps, 16), monkeypatch)
    attacker = authors(model, norm, eps).square
    attacker.n_queries = 200
    attacker.init_hyperparam(images)
    Dealt(attacker, chains.rule, *chains.rule.draw(generator(0, 0, square.PURPOSE, 0, 0)))
    _, theirs = attacker.attack_single_run(images, labels)
    with torch.no_grad():
        before, after, end = (float(margins(model(points), labels)) for points in (images, ours, theirs))
    assert abs(after - end) < 1e-4 * (before - after)
    assert torch.allclose(ours, theirs, atol=1e-6)


def end_of_chain(search: Search, monkeypatch) -> tuple[torch.Tensor, square.Chains]:
    """Where the chain of the only image stood when its queries were spent: it must not be broken."""
    chains, ends, leave = square.Chains(search), [], square.Chains._leave

    def kept(self, ended) -> None:
        if ended.any():
            ends.append(self.best.clone())
        leave(self, ended)

    monkeypatch.setattr(square.Chains, "_leave", kept)
    chains.run()
    monkeypatch.setattr(square.Chains, "_leave", leave)
    assert not search.broken.any()
    return ends[0], chains


@NORMS
@pytest.mark.slow
def test_square_asks_the_model_far_less_than_the_authors_file(norm, monkeypatch) -> None:
    """On 6x6 images, where proposals come back: each is asked once a point, and the end is that of asking one at a time."""
    monkeypatch.setattr(square, "QUERIES", 1500)
    model, eps = Watched(), {"Linf": 0.01, "L2": 0.05}[norm]
    images, labels = labelled(model, n=1)
    many, _ = end_of_chain(search_of(model, images, labels, norm, eps, 64), monkeypatch)
    asked = sum(len(batch) for _, batch in model.asked)
    model.asked.clear()
    monkeypatch.setattr(square, "MEMORY", 0)
    monkeypatch.setattr(square, "TOGETHER", 1)
    one, _ = end_of_chain(search_of(model, images, labels, norm, eps, 1), monkeypatch)
    assert torch.equal(many, one)
    assert asked < len(model.asked) <= 1501
    if norm == "Linf":
        assert asked < len(model.asked) / 2


def test_square_refuses_more_channels_than_it_can_number() -> None:
    images = torch.full((2, 60, 8, 8), 0.5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(60 * 64, 5)).requires_grad_(False)
    for norm in RADII:
        threat = ThreatModel(norm=norm, eps=1e-9)
        with pytest.raises(BenchmarkError, match="does not take images of 60 channels"):
            autoattack.attack(model, images, model(images).argmax(1), threat, seed=0, component="square")


@NORMS
def test_images_smaller_than_a_tile_of_square_are_attacked_too(norm) -> None:
    """The authors' file divides by zero below 5 pixels in l2."""
    model = Linear((1, 3, 3), classes=5).eval().requires_grad_(False)
    images = grey_images(6, (1, 3, 3))
    labels = model(images).argmax(1)
    threat = ThreatModel(norm=norm, eps=float(model.radius(images, labels, norm).max()) * 1.5)
    adversarial = autoattack.attack(model, images, labels, threat, seed=0, component="square")
    assert (model(adversarial).argmax(1) != labels).any()
