"""How each layer carries a perturbation around its nominal input: one `Step` a layer, by exact type.

Around a nominal input x, with an input change D of l2 norm at most d:
  bound(d)      >= ||f(x + D) - f(x)||
  push(columns) =  J columns, J the nominal Jacobian
  gain          >= ||J||
  remainder(r)  >= ||R||, R = f(x + D) - f(x) - J D, for the reach r of D (see `Reach`)
  along(a, r)   >= -<a, R>, a bound of what R can take from a margin with gradient a at the output

A layer without a Step is refused. Columns are (directions, n, *shape); a is (n, rivals, *shape); all float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import nn

from benchmark.certificates.lofast import AttentionSensitivity, attention_sensitivity
from benchmark.certificates.spectral import psd_norm_upper, spectral_norm_upper
from benchmark.errors import BenchmarkError
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions

UP = 1 + 1e-12  # float64 rounding of one formula


@dataclass(frozen=True)
class Reach:
    """What is known of a layer's input change: D = L xi + rest, ||xi|| <= radius, ||rest|| <= rho, ||D|| <= delta."""

    columns: torch.Tensor  # L: (directions, n, *shape)
    radius: torch.Tensor  # (n,)
    rho: torch.Tensor  # (n,)
    delta: torch.Tensor  # (n,)


class Step:
    """A linear layer, given by its map without the constant and a bound of its norm; others override."""

    def __init__(self, linear: Callable[[torch.Tensor], torch.Tensor], gain: float | torch.Tensor) -> None:
        self.linear, self.gain = linear, gain

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return delta * self.gain

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        return self.linear(columns.flatten(0, 1)).unflatten(0, columns.shape[:2])

    def remainder(self, reach: Reach) -> torch.Tensor:
        return torch.zeros_like(reach.delta)

    def along(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        """(n, rivals)."""
        return a.flatten(2).norm(dim=2) * self.remainder(reach)[:, None] * UP


class AttentionStep(Step):
    def __init__(self, sensitivity: AttentionSensitivity) -> None:
        if sensitivity.derivative is None:
            raise BenchmarkError("attention this wide (tokens * width > 8192) has no formed Jacobian to carry on")
        self.sensitivity, self.derivative, self.gain = sensitivity, sensitivity.derivative, sensitivity.jacobian

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self.sensitivity.bound(delta)

    def remainder(self, reach: Reach) -> torch.Tensor:
        return self.sensitivity.remainder(reach.delta)

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bij,pbj->pbi", self.derivative, columns.flatten(2)).reshape(columns.shape)


class ProjectStep(Step):
    """Tokens x of norm r and direction u onto the ball R, with D moving one by at most d < r, by p = <u, D> along it.

    Outside (r > R) the map is h(y) = R y / |y|, less (R - |y|)+ y / |y| once y enters the ball. The first bends by at most
    (R / sqrt 3) |D|^2 / (r - d)^2; the second is at most (p- - (r - R))+, p- = -p, since |x + D| >= r + p. Inside, the map
    is y less (|y| - R)+ y / |y|, at most (p + d^2 / (2 (r - d)) - (R - r))+. Either way the kink is a ReLU of the radial
    move p alone, |p| <= radius ||u^T L|| + rho, and takes from a margin only along y / |y|, which lies within
    sqrt(2 - 2 sqrt(1 - d^2 / r^2)) of u. Tokens with r <= d: at most (1 + ||J_t||) d.
    """

    def __init__(self, x: torch.Tensor, ball: float) -> None:
        self.norms, self.ball = torch.linalg.vector_norm(x, dim=-1), ball
        self.unit = x / self.norms.clamp(min=1e-300)[..., None]
        self.outside = self.norms > ball
        self.gains = torch.where(self.outside, ball / self.norms.clamp(min=1e-300), 1.0)
        self.gain = self.gains.amax(1) * UP

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return projection_bound(self.norms, self.ball, delta)

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        radial = (columns * self.unit).sum(-1, keepdim=True) * self.unit
        return torch.where(self.outside[..., None], (columns - radial) * self.gains[..., None], columns)

    def _bends(self, reach: Reach) -> tuple[torch.Tensor, torch.Tensor]:
        """The coefficient of |D_t|^2 outside, and the largest kink: each (n, tokens)."""
        d, r = reach.delta[:, None], self.norms
        room = (r - d).clamp(min=1e-300)
        near = r > d
        square = torch.where(self.outside & near, self.ball / math.sqrt(3) / room**2, 0.0)
        rows = torch.linalg.vector_norm((reach.columns * self.unit).sum(-1), dim=0)  # ||u^T L||: (n, tokens)
        radial = torch.minimum(reach.radius[:, None] * rows + reach.rho[:, None], d)
        sideways = torch.where(self.outside, 0.0, d**2 / (2 * room))
        kink = (radial * UP + sideways * UP - (r - self.ball).abs()).clamp(min=0)
        return square * UP, torch.where(near, kink, (1 + self.gains) * d)

    def remainder(self, reach: Reach) -> torch.Tensor:
        square, kink = self._bends(reach)
        return (square.amax(1) * reach.delta**2 + torch.linalg.vector_norm(kink, dim=1)) * UP

    def along(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        square, kink = (bend[:, None] for bend in self._bends(reach))
        sizes, d = torch.linalg.vector_norm(a, dim=-1), reach.delta[:, None]
        turn = (2 - 2 * (1 - (d / self.norms.clamp(min=1e-300)) ** 2).clamp(min=0).sqrt()).sqrt()[:, None] * (1 + 1e-9)
        inward = ((a * self.unit[:, None]).sum(-1) + sizes * turn).clamp(min=0)
        taken = torch.where((self.norms > d)[:, None], torch.minimum(inward, sizes), sizes) * kink
        return ((sizes * square).amax(2) * d**2 + taken.sum(2)) * UP


class SLLStep(Step):
    """x - 2 W T^-1 relu(W^T x + b). Neuron u of token t with pre-activation z moves by D_tu; its remainder is
    0 <= relu(z + D) - relu(z) - 1[z > 0] D <= max(|D| - |z|, 0), and it hurts a margin only where alpha = 2 (a W) / T > 0.

    Summed over neurons, element by element with each |D_tu| at its largest; or quadratically, all neurons sharing one
    budget: max(|D| - |z|, 0) <= D^2 / (4 t) + t - |z| for every t >= |z|, t = max(|z|, share |D|max), so that the sum is
    at most (radius ||diag(sqrt(alpha / 4t)) Z|| + rho ||diag(...) W^T||)^2 + sum alpha (t - |z|), Z = W^T L.
    """

    SHARES = (1.0, 0.5)

    def __init__(self, layer: SLLBlock, x: torch.Tensor) -> None:
        self.weight, self.scale = layer.weight, layer.scale
        self.z = x @ layer.weight + layer.bias
        lam = spectral_norm_upper(layer.weight / layer.scale.sqrt()) ** 2
        self.gain = (1 + 4 * lam * (lam - 1).clamp(min=0)).sqrt() * UP  # 1 when T >= W^T W, as it should be
        self.back = spectral_norm_upper(2 * layer.weight / layer.scale)
        self.lengths = torch.linalg.vector_norm(layer.weight, dim=0)

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        return columns - 2 * ((columns @ self.weight) * (self.z > 0) / self.scale) @ self.weight.mT

    def _largest(self, reach: Reach, rows: torch.Tensor) -> torch.Tensor:
        """|D_tu| at most: (n, tokens, hidden)."""
        through = reach.radius[:, None, None] * torch.linalg.vector_norm(rows, dim=0)
        through = through + reach.rho[:, None, None] * self.lengths
        return torch.minimum(through, reach.delta[:, None, None] * self.lengths) * UP

    def remainder(self, reach: Reach) -> torch.Tensor:
        over = (self._largest(reach, reach.columns @ self.weight) - self.z.abs()).clamp(min=0)
        return torch.minimum((1 + self.gain) * reach.delta, self.back * over.flatten(1).norm(dim=1) * UP)

    def along(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        rows = reach.columns @ self.weight  # Z: (directions, n, tokens, hidden)
        largest, bend = self._largest(reach, rows), self.z.abs()
        alpha = (2 * (a @ self.weight) / self.scale).clamp(min=0) * (largest > bend)[:, None]
        least = (alpha * (largest - bend).clamp(min=0)[:, None]).flatten(2).sum(2)
        for share in self.SHARES:
            t = torch.maximum(bend, share * largest).clamp(min=1e-300)
            root = (alpha / (4 * t)[:, None]).sqrt()
            least = torch.minimum(
                least, self._quadratic(root, rows, reach) + (alpha * (t - bend)[:, None]).flatten(2).sum(2)
            )
        return least * (1 + 1e-9)

    def _quadratic(self, root: torch.Tensor, rows: torch.Tensor, reach: Reach) -> torch.Tensor:
        flat = rows.flatten(2).permute(1, 2, 0)  # (n, tokens * hidden, directions)
        gram = torch.einsum("nup,nru,nuq->nrpq", flat, root.flatten(2) ** 2, flat)
        own = ((root * self.lengths) ** 2).sum(-1).amax(-1).sqrt()  # at least ||diag(root) W^T|| token by token
        return (reach.radius[:, None] * psd_norm_upper(gram).sqrt() + reach.rho[:, None] * own) ** 2


@singledispatch
def step(layer: nn.Module, x: torch.Tensor) -> Step:
    """The Step of `layer` around nominal inputs x (n, *shape), float64.

    Raises:
        BenchmarkError: the layer has none, or x has a shape for which its bound does not hold.
    """
    raise BenchmarkError(
        f"no bound is declared for the layer {type(layer).__name__}; the certificate is refused rather than guessed"
    )


def exact_step(layer: nn.Module, x: torch.Tensor) -> Step:
    """`step`, refusing subclasses, which may compute something else, and hooks."""
    if type(layer) not in step.registry:
        return step.dispatch(object)(layer, x)
    return step(layer, x)


def _needs(layer: nn.Module, x: torch.Tensor, ndim: int) -> None:
    if x.ndim != ndim:
        raise BenchmarkError(f"the layer {type(layer).__name__} needs {ndim} axes; it is given shape {tuple(x.shape)}")


@step.register
def _(layer: Patchify, x: torch.Tensor) -> Step:
    _needs(layer, x, 4)
    if x.shape[2] % layer.patch or x.shape[3] % layer.patch:
        raise BenchmarkError(f"patches of {layer.patch} do not tile {x.shape[2]}x{x.shape[3]} images")
    return Step(layer, 1.0)


@step.register
def _(layer: Positions, x: torch.Tensor) -> Step:
    if x.shape[1:] != layer.offset.shape:  # broadcasting would repeat the input, which is no isometry
        raise BenchmarkError(f"positions {tuple(layer.offset.shape)} do not fit tokens {tuple(x.shape[1:])}")
    return Step(lambda y: y, 1.0)


@step.register
def _(layer: Normalise, x: torch.Tensor) -> Step:
    return Step(lambda y: y / layer.std, UP / layer.std)


@step.register
def _(layer: MeanPool, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    return Step(layer, UP / math.sqrt(x.shape[1]))


@step.register
def _(layer: BoundedLinear, x: torch.Tensor) -> Step:
    weight = layer.weight
    return Step(lambda y: y @ weight.mT, spectral_norm_upper(weight))


@step.register
def _(layer: SLLBlock, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    return SLLStep(layer, x)


@step.register
def _(layer: ResidualAttention, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    if any(linear.bias is not None for linear in (layer.query, layer.key, layer.value, layer.output)):
        raise BenchmarkError("ResidualAttention has a bias, which its bound leaves out; the certificate is refused")
    return AttentionStep(attention_sensitivity(x, *layer.head_weights()))


@step.register
def _(layer: LayerProject, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    return ProjectStep(x, layer.radius)


def projection_bound(norms: torch.Tensor, ball: float, radius: torch.Tensor) -> torch.Tensor:
    """How far the tokens' projections onto the ball move when the tokens move by at most `radius` together.

    Exact for one token up to radius norm + ball: the radius itself inside the ball; outside, the largest angle
    (e^2 <= r^2 - R^2) or the point of the ball nearest to leaving it. Each token's squared bound is convex in its
    squared budget and 0 at 0, so the worst case spends all on one token: the maximum over tokens.

    Args:
        norms: (n, tokens) norms r of the nominal tokens.
        ball: R.
        radius: (n,) budgets e.

    Returns:
        (n,) upper bounds; never above `radius`.
    """
    r, e = norms.clamp(min=1e-300), radius[:, None].expand_as(norms)
    inner = (1 - (e / r) ** 2).clamp(min=0).sqrt()
    # 2 (1 - inner) = 2 (e/r)^2 / (1 + inner), without cancellation
    by_angle = ball * (e / r) * (2 / (1 + inner)).sqrt()
    by_chord = ((ball / r) * (e**2 - (r - ball) ** 2).clamp(min=0)).sqrt()
    outside = torch.where(e**2 <= r**2 - ball**2, by_angle, by_chord)
    return torch.minimum(torch.where(r <= ball, e, outside).amax(1) * UP, radius)
