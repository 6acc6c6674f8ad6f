"""The Square attack (Andriushchenko et al. 2020) on many images at once, with the same result as one query at a time.

The random search of an image is a chain: a proposal starts from the best point so far and is accepted if it lowers the
margin. Most are rejected, which changes nothing. So one call evaluates several proposals of an image as if all would be
rejected. Those after the first accepted one are discarded and proposed again from the new point. A proposal that changes
nothing, or that was rejected since the point last changed, needs no query. The chain, and with it the verdict, is that of
one query at a time (a test compares the two).
"""

from __future__ import annotations

import math

import torch
from pyautoattack.square import SquareAttack

from benchmark.attacks.engine.apgd import into_box, normalise
from benchmark.attacks.engine.slots import Search, column, generator, sizes
from benchmark.attacks.prediction import margins
from benchmark.runtime.errors import BenchmarkError

QUERIES, P_INIT = 5000, 0.8
PURPOSE = 2  # of random streams
MEMORY = 2**15  # possible proposals; with more, rejections hardly ever come back and are not remembered
LOOK_AHEAD = 128  # the most proposals of an image that are scanned at a time for those that need a query
# FLOPs of a call and of a pixel of a proposal, and images that a call costs if the model's FLOPs are unknown: they decide how
# many proposals are tried at once
CALL, PIXEL, USUAL = 3e7, 1250, 32
TOGETHER = 2  # the most calls of the model whose proposals are made at once


class Rule:
    """How Square draws its starting points and its proposals (changes of one square of an image).

    Attributes:
        proposals: how many proposals exist, each encoded by a smaller number, `code`; 0 for too many to remember.
        sides: (queries,) the side of the square that each query changes.
    """

    def __init__(self, search: Search) -> None:
        self.search, device = search, search.images.device
        self.authors = SquareAttack(None, norm=search.norm, eps=search.eps, p_init=P_INIT, n_queries=QUERIES, device="cpu")
        self.authors.rescale_schedule = False
        self.channels, self.height, self.width = search.images.shape[1:]
        self.sides = torch.tensor([self._side(self.authors.p_selection(query)) for query in range(QUERIES)])
        self.rows = torch.arange(self.height, device=device)[:, None]
        self.columns = torch.arange(self.width, device=device)[None]
        count = self._count()
        if count >= 2**63:  # a code must fit into 64 bits
            raise BenchmarkError(f"Square does not take images of {self.channels} channels; leave some out")
        self.proposals = count if count <= MEMORY else 0

    def _side(self, p: float) -> int:
        raise NotImplementedError

    def _count(self) -> int:
        raise NotImplementedError

    def _corner(self, stream: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the upper left corner of a window for every query, uniform below height - side, as the authors do."""
        u = torch.rand(2, QUERIES, generator=stream)
        return ((self.height - self.sides) * u[0]).long(), ((self.width - self.sides) * u[1]).long()

    def _signs(self, stream: torch.Generator) -> torch.Tensor:
        """Draw a sign a channel for every query, as bits of one number."""
        bits = (torch.rand(QUERIES, self.channels, generator=stream) > 0.5).long()
        return (bits << torch.arange(self.channels)).sum(1)

    def _unsigned(self, code: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split codes into the rest (m,) and their signs (m, c, 1, 1)."""
        channel = torch.arange(self.channels, device=code.device)
        signs = 2.0 * ((code[:, None] >> channel) & 1) - 1
        return code >> self.channels, signs[:, :, None, None]

    def _window(self, top: torch.Tensor, left: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        """Return a mask of the square of this side at this corner: (m, 1, h, w) bool."""
        top, left, side = column(top), column(left), column(side)
        return (self.rows >= top) & (self.rows < top + side) & (self.columns >= left) & (self.columns < left + side)


class Linf(Rule):
    """Algorithm 2: a square of one colour, added at twice the radius."""

    def _side(self, p: float) -> int:
        return min(max(round((p * self.height * self.width) ** 0.5), 1), self.height, self.width)

    def _count(self) -> int:
        return self.height * self.width << self.channels

    def draw(self, stream: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the start's change (c, h, w), stripes of one sign, and the codes (queries,)."""
        stripes = torch.sign(2 * torch.rand(self.channels, 1, self.width, generator=stream) - 1)
        top, left = self._corner(stream)
        return stripes.expand(-1, self.height, -1), (top * self.width + left << self.channels) + self._signs(stream)

    def begin(self, clean: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
        return torch.clamp(clean + self.search.eps * change, 0.0, 1.0)

    def propose(self, clean: torch.Tensor, best: torch.Tensor, code: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        corner, signs = self._unsigned(code)
        window = self._window(corner // self.width, corner % self.width, side)
        moved = best + torch.where(window, 2.0 * self.search.eps * signs, 0.0)
        return into_box(moved, clean, self.search.eps)


class L2(Rule):
    """Algorithm 3: the mass of one window moves to another."""

    def __init__(self, search: Search) -> None:
        super().__init__(search)
        sides = {*self.sides.tolist(), self._tile()}
        shapes = torch.zeros(max(sides) + 1, 2, max(sides), max(sides))
        for side in sides:
            shape = self._two_halves(side)
            shapes[side, 0, :side, :side], shapes[side, 1, :side, :side] = shape, shape.T
        self.shapes = shapes.to(search.images)

    def _side(self, p: float) -> int:
        side = max(round((p * self.height * self.width) ** 0.5), 3)
        return min(side + (side % 2 == 0), self.height, self.width)

    def _count(self) -> int:
        return 2 * (self.height * self.width) ** 2 << self.channels

    def _tile(self) -> int:
        return max(self.height // 5, 1)

    def _two_halves(self, side: int) -> torch.Tensor:
        """Return the authors' `eta` before its random turn: two opposite bumps of norm 1 together."""
        upper = self.authors.eta_rectangles(side // 2, side) if side > 1 else torch.zeros(0, side)
        shape = torch.cat((upper, -self.authors.eta_rectangles(side - side // 2, side)))
        return shape / (shape**2).sum().sqrt()

    def draw(self, stream: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the start's change (c, h, w), a grid of bumps, and the codes (queries,)."""
        tile, change = self._tile(), torch.zeros(self.channels, self.height, self.width)
        edge = (self.height - tile * 5) // 2
        for y in range(edge, edge + tile * (self.height // tile), tile):
            for x in range(edge, edge + tile * (self.width // tile), tile):
                shape = self.shapes[tile, int(torch.rand(1, generator=stream) > 0.5)].cpu()[:tile, :tile]
                signs = torch.sign(2 * torch.rand(self.channels, 1, 1, generator=stream) - 1)
                target = change[:, y : y + tile, x : x + tile]
                target += (shape * signs)[:, : target.shape[1], : target.shape[2]]
        (top, left), (top2, left2) = self._corner(stream), self._corner(stream)
        turn = (torch.rand(QUERIES, generator=stream) > 0.5).long()
        cells = (top * self.width + left) * self.height * self.width + top2 * self.width + left2
        return change, ((cells * 2 + turn) << self.channels) + self._signs(stream)

    def begin(self, clean: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
        return torch.clamp(clean + normalise(change, "L2") * self.search.eps, 0.0, 1.0)

    def propose(self, clean: torch.Tensor, best: torch.Tensor, code: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        rest, signs = self._unsigned(code)
        cells, turn, area = rest >> 1, rest & 1, self.height * self.width
        corner, other, eps = cells // area, cells % area, self.search.eps
        top, left = corner // self.width, corner % self.width
        window = self._window(top, left, side)
        second = self._window(other // self.width, other % self.width, side)
        change = best - clean
        spent = column(sizes(change, "L2"))
        mass = _planes(change * (window | second))
        old = change * window / (1e-12 + _planes(change * window))
        new = old + self._placed(top, left, side, turn, window) * signs
        free = torch.clamp(eps**2 - spent**2, min=0) / self.channels
        new = new / (1e-12 + _planes(new)) * (free + mass**2).sqrt()
        moved = torch.where(window, new, torch.where(second, 0.0, change))
        return torch.clamp(clean + normalise(moved, "L2") * eps, 0.0, 1.0)

    def _placed(
        self, top: torch.Tensor, left: torch.Tensor, side: torch.Tensor, turn: torch.Tensor, window: torch.Tensor
    ) -> torch.Tensor:
        """Place the bumps of each side, turned or not, in their window: (m, 1, h, w)."""
        row, col = self.rows - column(top), self.columns - column(left)
        limit = self.shapes.shape[-1] - 1
        shape = self.shapes[column(side), column(turn), row.clamp(0, limit), col.clamp(0, limit)]
        return torch.where(window, shape, 0.0)


def _planes(points: torch.Tensor) -> torch.Tensor:
    """Return the l2 norm of each channel of (m, c, h, w): (m, c, 1, 1).

    It is summed as rows of a matrix, so that the rounding of a row does not depend on the others.
    """
    return (points.flatten(0, 1).flatten(1) ** 2).sum(1).sqrt().view(*points.shape[:2], 1, 1)


class Chains:
    """Square on images that the model classifies correctly, with at most `QUERIES` proposals each.

    Each tensor has one row for each of the m images that are not broken yet.
    """

    def __init__(self, search: Search) -> None:
        self.search, self.rule = search, Linf(search) if search.norm == "Linf" else L2(search)
        device, pixels = search.images.device, search.images[0].numel()
        self.image = torch.arange(len(search.images), device=device)
        streams = (generator(search.seed, index, PURPOSE, 0, 0) for index in search.indices)
        starts, codes = zip(*map(self.rule.draw, streams), strict=True)
        self.best = self.rule.begin(search.images, torch.stack(starts).to(search.images))
        self.codes = torch.stack(codes).to(device)  # (m, QUERIES)
        self.margin = self._margins(self.best, self.image)
        self._record(self.image, self.best, self.margin <= 0)
        self.query = torch.zeros_like(self.image)
        self.side = self.rule.sides.to(device)[self.query]  # for which `refused` holds
        self.refused = torch.zeros(len(self.image), self.rule.proposals, dtype=torch.bool, device=device)
        self.taken = 0.5  # running share of queried proposals that were accepted
        # the cost of a call beside its images, in images
        self.overhead = CALL / (search.flops + PIXEL * pixels) if search.flops else USUAL
        self.worth = 1.0  # running share of scanned proposals that needed a query
        self._leave(self.margin <= 0)

    def run(self) -> None:
        while len(self.image):
            self._ask(*self._choose(self._per_image()))
            self._leave((self.margin <= 0) | (self.query >= QUERIES))

    def _per_image(self) -> int:
        """Return how many proposals of an image to try at once, for the most progress for the time; no chain depends on it.

        Of k proposals, each accepted with probability p, (1 - (1 - p)^k) / p are useful: those up to the first accepted.
        """
        images, p = len(self.image), self.taken
        sizes = [2**i for i in range(16) if i == 0 or 2**i * images <= TOGETHER * self.search.slots]
        return max(sizes, key=lambda k: (1 - (1 - p) ** k) / p / (self.overhead + k * images))

    def _choose(self, per_image: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the next proposals that need a query, at most `per_image` a row, none beyond a change of the square's side.

        Returns:
            Their rows (k,), their places after the row's current proposal (k,), and how many proposals each row passes if
            all of them are rejected (m,).
        """
        sides = self.rule.sides.to(self.side.device)
        side = sides[self.query.clamp(max=QUERIES - 1)]
        if not torch.equal(side, self.side):
            self.refused[side != self.side] = False
        self.side = side
        scanned = min(max(math.ceil(2 * per_image / self.worth), 8), LOOK_AHEAD, QUERIES)
        queries = self.query[:, None] + torch.arange(scanned, device=side.device)
        inside = (queries < QUERIES) & (sides[queries.clamp(max=QUERIES - 1)] == side[:, None])
        worth = inside
        if self.rule.proposals:
            worth = inside & ~self.refused.gather(1, self.codes.gather(1, queries.clamp(max=QUERIES - 1)))
        self.worth = 0.9 * self.worth + 0.1 * max(float(worth.sum()) / max(float(inside.sum()), 1.0), 1 / LOOK_AHEAD)
        rank = worth.cumsum(1)
        chosen = worth & (rank <= per_image)
        # a row passes every rejected proposal before the first that is left for later
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
        # discarded points are not recorded even if misclassified: verdicts must not depend on how many were tried at once
        self._record(self.image[row[taken]], points[taken], margin[taken] <= 0)
        self.best[row[taken]], self.margin[row[taken]] = points[taken], margin[taken]
        if len(row):
            self.taken = 0.9 * self.taken + 0.1 * max(float(taken.sum()) / len(row), 1e-3)
        self.query += torch.where(first < LOOK_AHEAD, first + 1, passed)

    def _margins(self, points: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        label = self.search.labels[image]
        margin = margins(self.search.logits(points), label)
        wrong = margin <= 0
        if wrong.any():  # a chain must not end by the rounding of the faster operations
            margin[wrong] = margins(self.search.own_logits(points[wrong]), label[wrong])
        return margin

    def _record(self, image: torch.Tensor, points: torch.Tensor, wrong: torch.Tensor) -> None:
        target, label = torch.zeros_like(image), self.search.labels[image]
        self.search.record({"image": image, "target": target, "point": points, "label": label}, wrong)

    def _leave(self, ended: torch.Tensor) -> None:
        if ended.any():
            for name in ("image", "best", "codes", "margin", "query", "side", "refused"):
                setattr(self, name, getattr(self, name)[~ended])
