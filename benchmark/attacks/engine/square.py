"""The Square attack (Andriushchenko et al. 2020) on many images at once, with the same result as one query at a time.

The random search of an image is a chain: a proposal is made from the best point so far and accepted when it lowers the
margin. Most are rejected, and a rejection changes nothing. So several proposals of one image are evaluated in one call, as
if all would be rejected; those after the first that is accepted are discarded and proposed again from the new point. A
proposal that changes nothing, or that was rejected since the point last changed, is rejected without a query. The chain, and
with it the verdict, is the same as with one query at a time; a test compares the two.
"""

from __future__ import annotations

import math

import torch
from pyautoattack.square import SquareAttack

from benchmark.attacks.engine.slots import Search
from benchmark.attacks.engine.square_proposals import rule_of
from benchmark.attacks.engine.streams import generator
from benchmark.verdicts.margins import margins

QUERIES, P_INIT = 5000, 0.8
PURPOSE = 2  # what the streams are for
LOOK_AHEAD = 128  # proposals of an image that are looked through at a time, at most, for those that need a query
# What a call costs, and a proposal by pixel, in FLOPs, and a call in images where the model's are not known: they decide how
# many proposals are tried at once.
CALL, PIXEL, USUAL = 3e7, 1250, 32
TOGETHER = 2  # calls of the model whose proposals are made at once, at most


def untargeted(search: Search) -> None:
    """Square on images that the model classifies correctly: `QUERIES` proposals each at most."""
    _Chains(search).run()


def overhead(flops: int, pixels: int) -> float:
    """What a call costs beside its images, in images of so many pixels on which the model spends `flops`, 0 for unknown."""
    return CALL / (flops + PIXEL * pixels) if flops else USUAL


class _Chains:
    """The chains of the m images that are not broken yet, one row each."""

    def __init__(self, search: Search) -> None:
        self.search = search
        authors = SquareAttack(None, norm=search.norm, eps=search.eps, p_init=P_INIT, n_queries=QUERIES, device="cpu")
        authors.rescale_schedule = False
        self.rule = rule_of(search, authors)
        device = search.images.device
        self.image = torch.arange(len(search.images), device=device)
        streams = (generator(search.seed, index, PURPOSE, 0, 0) for index in search.indices)
        starts, codes = zip(*map(self.rule.draw, streams), strict=True)
        self.best = self.rule.begin(search.images, torch.stack(starts).to(search.images))
        self.codes = torch.stack(codes).to(device)  # (m, QUERIES)
        self.margin = self._margins(self.best, self.image)
        self._record(self.image, self.best, self.margin <= 0)
        self.query = torch.zeros_like(self.image)
        self.side = self.rule.sides.to(device)[self.query]  # that the remembered refusals are for
        self.refused = torch.zeros(len(self.image), self.rule.proposals, dtype=torch.bool, device=device)
        self.taken = 0.5  # running share of queried proposals that were accepted
        self.overhead = overhead(search.flops, search.images[0].numel())
        self.worth = 1.0  # running share of proposals looked through that needed a query
        self._leave(self.margin <= 0)

    def run(self) -> None:
        while len(self.image):
            self._ask(*self._choose(self._per_image()))
            self._leave((self.margin <= 0) | (self.query >= QUERIES))

    def _per_image(self) -> int:
        """How many proposals of an image to try at once, for the most progress in a given time; it does not affect a chain.

        Of k proposals, each accepted with probability p, (1 - (1 - p)^k) / p are of use, until the first that is accepted.
        """
        images, p = len(self.image), self.taken
        sizes = [2**i for i in range(16) if i == 0 or 2**i * images <= TOGETHER * self.search.slots]
        return max(sizes, key=lambda k: (1 - (1 - p) ** k) / p / (self.overhead + k * images))

    def _choose(self, per_image: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The next proposals that need a query, at most `per_image` a row, none beyond a change of the squares' side.

        Returns:
            Their rows (k,), their places after the row's current proposal (k,), and how many proposals each row has passed
            if all of them are rejected (m,).
        """
        sides = self.rule.sides.to(self.side.device)
        now = sides[self.query.clamp(max=QUERIES - 1)]
        if not torch.equal(now, self.side):
            self.refused[now != self.side] = False
        self.side = now
        scanned = min(max(math.ceil(2 * per_image / self.worth), 8), LOOK_AHEAD, QUERIES)
        ahead = torch.arange(scanned, device=now.device)
        queries = self.query[:, None] + ahead
        inside = (queries < QUERIES) & (sides[queries.clamp(max=QUERIES - 1)] == now[:, None])
        worth = inside
        if self.rule.proposals:
            worth = inside & ~self.refused.gather(1, self.codes.gather(1, queries.clamp(max=QUERIES - 1)))
        self.worth = 0.9 * self.worth + 0.1 * max(float(worth.sum()) / max(float(inside.sum()), 1.0), 1 / LOOK_AHEAD)
        rank = worth.cumsum(1)
        chosen = worth & (rank <= per_image)
        # a row passes every rejected proposal before the first one that is left for later
        passed = (inside & ((rank < per_image) | chosen | ((rank == per_image) & ~worth))).sum(1)
        row, place = chosen.nonzero(as_tuple=True)
        return row, place, passed

    def _ask(self, row: torch.Tensor, place: torch.Tensor, passed: torch.Tensor) -> None:
        code = self.codes[row, self.query[row] + place]
        clean, best = self.search.images[self.image[row]], self.best[row]
        points = self.rule.propose(clean, best, code, self.side[row])
        margin = self.margin[row].clone()
        new = (points != best).flatten(1).any(1)  # a proposal that changes nothing cannot be better
        if new.any():
            margin[new] = self._margins(points[new], self.image[row[new]])
        better = margin < self.margin[row]
        first = torch.full_like(self.query, LOOK_AHEAD).scatter_reduce(0, row[better], place[better], "amin")  # or none
        taken = better & (place == first[row])
        if self.rule.proposals:
            kept = ~taken & (place < first[row])
            self.refused[row[kept], code[kept]] = True
            self.refused[row[taken]] = False
        # a discarded point is not recorded even if misclassified: verdicts must not depend on how many were tried at once
        self._record(self.image[row[taken]], points[taken], margin[taken] <= 0)
        self.best[row[taken]], self.margin[row[taken]] = points[taken], margin[taken]
        if len(row):
            self.taken = 0.9 * self.taken + 0.1 * max(float(taken.sum()) / len(row), 1e-3)
        self.query += torch.where(first < LOOK_AHEAD, first + 1, passed)

    def _margins(self, points: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        label = self.search.labels[image]
        margin = margins(self.search.logits(points), label)
        wrong = margin <= 0
        if wrong.any():  # a chain must not end where only the rounding of the faster operations is wrong
            margin[wrong] = margins(self.search.own_logits(points[wrong]), label[wrong])
        return margin

    def _record(self, image: torch.Tensor, points: torch.Tensor, wrong: torch.Tensor) -> None:
        target, label = torch.zeros_like(image), self.search.labels[image]
        self.search.record({"image": image, "target": target, "point": points, "label": label}, wrong)

    def _leave(self, ended: torch.Tensor) -> None:
        if ended.any():
            for name in ("image", "best", "codes", "margin", "query", "side", "refused"):
                setattr(self, name, getattr(self, name)[~ended])
