"""Compare the effect of perturbations on each layer, found by gradient ascent, with the claims of its `LayerBound`.

Ascent gives a lower bound of a supremum that the claim bounds from above, so a ratio above 1 + 1e-9 is a failure. Float64
rounding is subtracted first: 64 units of the values met, and 64 times the effect of one unit of rounding of the input.
Attention is evaluated by its plain formula, not by the kernel that the network runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmark.certificates.bounds.layer_bound import LayerBound, PerturbationSet, exact_layer_bound, has_bound
from benchmark.runtime.errors import BenchmarkError

UNIT = 2.0**-53
TOLERANCE = 1e-9
Map = Callable[[torch.Tensor], torch.Tensor]
ASIDE = 1e-9  # by so much times a normal number the audited inputs are moved
WHOLE = 256  # directions in which an input is moved, at most


def float64_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double().eval().requires_grad_(False)


def ascend(
    objective: Map, project: Map, start: torch.Tensor, radius: torch.Tensor, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest value that projected gradient ascent finds for each item, and its place: (batch,), (batch, *shape).

    Args:
        objective: (batch, *shape) to (batch,), item by item.
        project: onto the feasible set.
        radius: (batch,); steps are 2 radius long, in the last third a quarter of it.

    Raises:
        BenchmarkError: the objective is not finite somewhere.
    """
    ones = (-1, *[1] * (start.ndim - 1))
    move = project(start.detach())
    where, best = move, torch.full((len(start),), -torch.inf, dtype=start.dtype, device=start.device)
    for number in range(steps + 1):
        move = move.detach().requires_grad_()
        value = objective(move)
        if not torch.isfinite(value).all():
            raise BenchmarkError("audit: a layer or network returns a value that is not finite near an audited input")
        better = value.detach() > best
        best = torch.where(better, value.detach(), best)
        where = torch.where(better.reshape(ones), move.detach(), where)
        (gradient,) = torch.autograd.grad(value.sum(), move)
        size = gradient.flatten(1).norm(dim=1).clamp(min=1e-300)
        stride = radius * (2.0 if 3 * number < 2 * steps else 0.25) / size
        move = project(move.detach() + gradient * stride.reshape(ones))
    return best, where


def shrink(moves: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Project moves (batch, *shape) onto the l2 balls of `radius` (batch,)."""
    size = moves.flatten(1).norm(dim=1).clamp(min=1e-300)
    return moves * (radius / size).clamp(max=1).reshape(-1, *[1] * (moves.ndim - 1))


@dataclass
class Tally:
    layers: int = 0  # tried
    trials: int = 0  # (layer, image, radius, quantity)
    worst: float = 0.0  # the largest ratio of a value found to its claim


@dataclass(frozen=True)
class Effort:
    radii: tuple[float, ...] = (0.01, 0.1, 1.0)  # of the layer's input, l2
    starts: int = 4
    steps: int = 6


def audit_layers(
    model: nn.Module, images: torch.Tensor, names: list[int], row: str, *, effort: Effort, seed: int = 0
) -> Tally:
    """Audit every layer but the head, around the activations of `images` (n, c, h, w), which errors call `names`. The tally
    is empty unless the model is a sequence of layers with a `LayerBound`.

    Raises:
        BenchmarkError: a bound is exceeded; with the layer, the quantity, the image, the radius and both values.
    """
    tally = Tally()
    layers = list(float64_copy(model).children()) if type(model) is nn.Sequential else []
    if not layers or not all(map(has_bound, layers[:-1])):
        return tally
    x = images.double()
    with sdpa_kernel(SDPBackend.MATH):
        for index, layer in enumerate(layers[:-1]):
            place = f"{row}: layer {index} ({type(layer).__name__})"
            LayerAudit(layer, x, place, names, tally, seed + index).run(effort)
            x = layer(x)
            tally.layers += 1
    return tally


class LayerAudit:
    """The audit of one layer around nominal inputs x (n, *shape), float64."""

    def __init__(self, layer: nn.Module, x: torch.Tensor, place: str, names: list[int], tally: Tally, seed: int) -> None:
        self.layer, self.place, self.names, self.tally = layer, place, names, tally
        # at a tie up to rounding automatic differentiation mixes two branches, and is the derivative of neither
        aside = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(x.device)
        self.x = x = x + ASIDE * aside
        self.generator = torch.Generator().manual_seed(seed)
        self.claims: LayerBound = exact_layer_bound(layer, x)
        self.out = layer(x)
        self.noise = self._noise()

    def run(self, effort: Effort) -> None:
        steep = self._jacobian_norm()
        for radius in effort.radii:
            delta = torch.full((len(self.x),), radius, dtype=torch.float64, device=self.x.device)
            self._jvp(delta)
            self._bound(delta, steep, effort)
            self._remainders(delta, False, effort)
            self._remainders(delta, True, effort)

    def _noise(self) -> torch.Tensor:
        """Return (n,): by how much rounding alone may change the output."""
        signs = torch.sign(self._draw(*self.x.shape))
        moved = (self.layer(self.x * (1 + UNIT * signs)) - self.out).flatten(1).norm(dim=1)
        sizes = self.x.flatten(1).norm(dim=1) + self.out.flatten(1).norm(dim=1) + 1
        return 64 * (UNIT * sizes + moved)

    def _draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator).to(self.x.device)

    def _jacobian(self, moves: torch.Tensor) -> torch.Tensor:
        """Return J D by automatic differentiation, not by the `LayerBound`: (s * n, *shape) to (s * n, *output shape)."""
        x = self.x.repeat(len(moves) // len(self.x), *[1] * (self.x.ndim - 1))
        return torch.func.jvp(self.layer, (x,), (moves,))[1]

    def _change(self, moves: torch.Tensor) -> torch.Tensor:
        """Return f(x + D) - f(x)."""
        copies = len(moves) // len(self.x)
        x, out = (t.repeat(copies, *[1] * (t.ndim - 1)) for t in (self.x, self.out))
        return self.layer(x + moves) - out

    def _check(self, reached: torch.Tensor, claimed: torch.Tensor, delta: torch.Tensor, what: str) -> None:
        """Compare values reached (s * n,) with claims (n,) and count them; a claim of NaN fails."""
        reached, claimed = reached.reshape(-1, len(self.x)).amax(0) - self.noise, claimed.to(reached.device)
        share = self._share(reached, claimed, delta, what)
        self.tally.trials += len(self.x)
        self.tally.worst = max(self.tally.worst, float(share.max()))

    def _share(self, reached: torch.Tensor, claimed: torch.Tensor, delta: torch.Tensor, what: str) -> torch.Tensor:
        """Return the ratio of reached to claimed values, (n,); raise a BenchmarkError where it is above 1."""
        share = torch.where(reached > 0, reached / claimed.clamp(min=1e-300), 0.0)
        bad = ~(share <= 1 + TOLERANCE) | torch.isnan(claimed)
        if bad.any():
            at = int(bad.nonzero()[0])
            raise BenchmarkError(
                f"{self.place} exceeds its {what} at image {self.names[at]}, radius {float(delta[at]):.6g}: "
                f"found {float(reached[at]):.9g}, claimed at most {float(claimed[at]):.9g}; "
                "the certificate is wrong and nothing is published"
            )
        return share

    def _jacobian_norm(self) -> torch.Tensor:
        """Check `jacobian_norm`; return the steepest direction that power iteration finds, of norm 1: (n, *shape)."""
        unit = torch.ones(len(self.x), dtype=torch.float64, device=self.x.device)
        v = shrink(self._draw(*self.x.shape) * 1e6, unit)
        pull = torch.func.vjp(self.layer, self.x)[1]
        for _ in range(30):
            v = shrink(pull(self._jacobian(v))[0] * 1e6, unit)
        reached = self._jacobian(v).flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1).clamp(min=1e-300)
        claimed = torch.as_tensor(self.claims.jacobian_norm, dtype=torch.float64).expand(len(self.x))
        self._check(reached, claimed, unit, "gain")
        try:
            everywhere = self.claims.everywhere
        except BenchmarkError:
            return v  # it has no global constant
        self._share(reached - self.noise, everywhere * unit, unit, "global constant")
        return v

    def _jvp(self, delta: torch.Tensor) -> None:
        """Check that `jvp` is the nominal Jacobian, to 1e-9 of the largest it can be."""
        moves = shrink(self._draw(*self.x.shape) * 1e6, delta)
        gap = (self.claims.jvp(moves[None])[0] - self._jacobian(moves)).flatten(1).norm(dim=1)
        self._check(gap, 1e-9 * self.claims.jacobian_norm * delta + self.noise, delta, "Jacobian (push)")

    def _bound(self, delta: torch.Tensor, steep: torch.Tensor, effort: Effort) -> None:
        """Check `bound` and `quick_bound` by ascent from the steepest direction and random ones."""
        random = self._draw(max(effort.starts - 2, 1) * len(self.x), *self.x.shape[1:]) * 1e6
        start = torch.cat([steep * delta.reshape(-1, *[1] * (steep.ndim - 1)), -steep, random])
        radius = delta.repeat(len(start) // len(delta))
        reached, _ = ascend(
            lambda move: self._change(move).flatten(1).norm(dim=1),
            lambda move: shrink(move, radius),
            shrink(start, radius),
            radius,
            effort.steps,
        )
        self._check(reached, self.claims.bound(delta), delta, "bound")
        self._check(reached, self.claims.quick_bound(delta), delta, "quick bound")

    def _remainders(self, radius: torch.Tensor, split: bool, effort: Effort) -> None:
        """Check `remainder` and `remainder_along` over D = L xi + rest, ||xi|| <= radius, ||rest|| <= rho. L is the identity,
        or WHOLE orthonormal directions, and rho 0. If `split`, L has 8 directions and rho is a quarter of the radius.
        """
        n, size = len(self.x), self.x[0].numel()
        width = min(8 if split else WHOLE, size)
        basis = torch.eye(size, dtype=torch.float64, device=self.x.device)
        if width < size:
            basis = torch.linalg.qr(self._draw(size, width)).Q
        columns = basis.mT.reshape(width, 1, *self.x.shape[1:]).expand(-1, n, *self.x.shape[1:]).contiguous()
        rho = radius / 4 if split else torch.zeros_like(radius)
        perturbation = PerturbationSet(columns, radius, rho, radius + rho)
        most, rest = radius.repeat(effort.starts), rho.repeat(effort.starts)

        def left(z: torch.Tensor) -> torch.Tensor:
            """Return R(D), flat."""
            moves = (z[:, :width] @ basis.mT + z[:, width:]).reshape(len(z), *self.x.shape[1:])
            return (self._change(moves) - self._jacobian(moves)).flatten(1)

        def project(z: torch.Tensor) -> torch.Tensor:
            return torch.cat([shrink(z[:, :width], most), shrink(z[:, width:], rest)], 1)

        start = project(self._draw(n * effort.starts, width + size) * 1e6)
        reached, where = ascend(lambda z: left(z).norm(dim=1), project, start, most, effort.steps)
        self._check(reached, self.claims.remainder(perturbation), radius, "remainder")
        worst = reached.reshape(-1, n).argmax(0) * n + torch.arange(n, device=self.x.device)
        with torch.no_grad():
            against = -left(where[worst])
        against = against / against.norm(dim=1, keepdim=True).clamp(min=1e-300)
        random = self._draw(*against.shape)
        random = random / random.norm(dim=1, keepdim=True).clamp(min=1e-300)
        claimed = self.claims.remainder_along(
            torch.stack([against, random], 1).unflatten(2, self.out.shape[1:]), perturbation
        )
        for place, direction in enumerate((against, random)):
            along = direction.repeat(effort.starts, 1)
            begin = torch.cat([where[worst], start[n:]])
            reached, _ = ascend(lambda z, a=along: -(a * left(z)).sum(1), project, begin, most, effort.steps)  # type: ignore[misc]
            self._check(reached, claimed[:, place], radius, "remainder along a margin")
